"""`keras-vit segment`: from folders of images and masks to a run, its mean IoU and overlays."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import zipfile

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.cli.main import main
from keras_vit.segmentation import commands, draw_classes, predict_masks
from keras_vit.segmentation.settings import SegmentSettings
from tests.fixtures import fill_random, tiny_config

COLOURS = np.array([(200, 40, 40), (40, 200, 40), (40, 40, 200)], "uint8")
VOID = (224, 224, 192)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve images of squares in three colours, their masks, and a tiny model."""
    folder = tmp_path_factory.mktemp("squares")
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for index in range(12):
        labels = np.kron(rng.integers(0, 3, (2, 2)), np.ones((16, 16), int))
        pixels = COLOURS[labels] + rng.integers(0, 20, (32, 32, 3)).astype("uint8")
        PIL.Image.fromarray(pixels).save(folder / f"images/{index}.png")
        PIL.Image.fromarray((labels + 1).astype("uint8")).save(folder / f"masks/{index}.png")
    (folder / "classes.txt").write_text("red\ngreen\nblue light\n")
    keras_vit.build_vit(tiny_config(depth=1), name="tiny").save(folder / "tiny.keras")
    return folder


def words_of(folder, run, *more):
    words = ["--images", folder / "images", "--masks", folder / "masks"]
    words += ["--classes", folder / "classes.txt", "--model", folder / "tiny.keras"]
    words += ["--output", run, "--first-value", 1]
    words += ["--epochs", 2, "--batch-size", 4, "--learning-rate", 0.05, *more]
    return ["segment", "train", *map(str, words)]


def train(folder, run, *more):
    return main(words_of(folder, run, *more))


@pytest.fixture(scope="module")
def coloured(folder):
    """The masks of the squares in colours, with a border of no class."""
    (folder / "coloured").mkdir()
    for index in range(12):
        labels = np.asarray(PIL.Image.open(folder / f"masks/{index}.png")) - 1
        pixels = COLOURS[labels]
        pixels[:2] = VOID
        PIL.Image.fromarray(pixels).save(folder / f"coloured/{index}.png")
    lines = zip(("red", "green", "blue"), COLOURS.tolist(), strict=True)
    text = "".join(f"{name} {' '.join(map(str, colour))}\n" for name, colour in lines)
    (folder / "colours.txt").write_text(text)
    return folder


def test_coloured_masks_have_an_ignored_colour(coloured, tmp_path, capsys):
    words = words_of(coloured, tmp_path / "run", "--classes", coloured / "colours.txt")
    words += ["--masks", str(coloured / "coloured")]
    assert main(words) == 2
    assert "12 masks hold values beyond the 3 classes" in capsys.readouterr().err
    masks = [*words, "--ignored", "224,224,192", "--validation", "12"]
    assert main(masks) == 2  # the next error, after the masks were read
    assert "12 images, of which some must be held out" in capsys.readouterr().err
    for value, message in (("255,0", "a colour such as 224,224,192"), ("0", "three integers each")):
        with contextlib.suppress(SystemExit):
            assert main([*words, "--ignored", value]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_trained_evaluated_and_applied(folder, tmp_path, capsys):
    run = tmp_path / "run"
    assert train(folder, run, "--layer-decay", 0.9) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "memory: about 0.0 GiB on one device" in printed and "mean IoU" in printed
    assert {"best.keras", "model.keras", "results.json", "metrics.csv", "overlays"} <= {
        path.name for path in run.iterdir()
    }
    assert len(list((run / "overlays").iterdir())) == 2  # of 12 images, a fifth is held out
    lists = json.loads((run / "config.json").read_text())["image_lists"]
    assert [lists[part]["images"] for part in ("training", "validation")] == [10, 2]
    pairs = [str(folder / "images"), str(folder / "masks")]
    assert main(["segment", "evaluate", *pairs, "--model", str(run), "--flip", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["mean_iou"] > 0.6 and set(found["iou"]) == {"red", "green", "blue light"}
    out = tmp_path / "out"
    image = folder / "images/3.png"
    assert main(["segment", "predict", str(image), "--model", str(run), "--output", str(out)]) == 0
    assert "%" in capsys.readouterr().out
    mask = np.asarray(PIL.Image.open(out / "3.png"))
    model = keras_vit.train.load_run(run).model
    np.testing.assert_array_equal(
        mask, keras_vit.segmentation.predict_masks(model, image.read_bytes())
    )
    overlay = np.asarray(PIL.Image.open(out / "3_overlay.png"))
    pixels = np.asarray(PIL.Image.open(image))
    np.testing.assert_array_equal(overlay, draw_classes(pixels, mask))
    lost = ["segment", "predict", str(image), "--model", str(run), "--output", str(image.parent)]
    capsys.readouterr()
    assert main(lost) == 2
    assert "would replace images that they are predicted for" in capsys.readouterr().err
    np.testing.assert_array_equal(PIL.Image.open(image), pixels)
    assert main(["predict", str(image), "--model", str(run)]) == 2
    assert "keras-vit segment predict" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_coloured_masks_is_exported_and_serves_class_maps(coloured, tmp_path, capsys):
    run, served = tmp_path / "run", tmp_path / "served"
    words = words_of(coloured, run, "--classes", coloured / "colours.txt")
    words += ["--masks", str(coloured / "coloured")]
    assert main([*words, "--ignored", "224,224,192", "--epochs", "1"]) == 0
    assert json.loads((run / "config.json").read_text())["ignored"] == [list(VOID)]
    pairs = [str(coloured / "images"), str(coloured / "coloured")]
    assert main(["segment", "evaluate", *pairs, "--model", str(run)]) == 0  # ignores them too
    assert main(["export", str(run), "--to", "saved_model", "--output", str(served)]) == 0
    assert (served / "1/assets.extra/labels.txt").read_text() == "red\ngreen\nblue\n"
    loaded = tf.saved_model.load(str(served / "1"))
    image = (coloured / "images/3.png").read_bytes()
    large = tf.io.encode_png(tf.cast(tf.image.resize(tf.io.decode_png(image), (50, 70)), "uint8"))
    model = keras_vit.train.load_run(run).model
    for data, size in ((image, (32, 32)), (large.numpy(), (50, 70))):
        found = loaded.signatures["serving_default"](image_bytes=tf.constant(data))["class_map"]
        assert found.shape == size
        assert np.mean(found == keras_vit.segmentation.predict_masks(model, data)) > 0.999
    capsys.readouterr()
    assert main(["verify", str(served), str(run)]) == 0
    assert "saved_model" in capsys.readouterr().out
    report = keras_vit.train.load_run(run).export("saved_model", tmp_path / "again")
    assert report.top1_agreement > 0.999
    with pytest.raises(ValueError, match=r"as saved_model only. Received: 'litert'"):
        keras_vit.train.load_run(run).export("litert", tmp_path / "file")


@pytest.mark.slow
def test_a_file_of_settings_and_the_folder_repeat_a_run(coloured, tmp_path, capsys):
    """Flags win over the file; `run.toml` of the folder trains the same weights."""
    settings = {name: coloured / name for name in ("images", "masks")}
    settings |= {"masks": coloured / "coloured", "classes": coloured / "colours.txt"}
    settings |= {"model": coloured / "tiny.keras", "output": tmp_path / "one"}
    lines = [f"{name} = {json.dumps(str(value))}" for name, value in settings.items()]
    more = ["ignored = [[224, 224, 192]]", "epochs = 9", "batch_size = 4", "validation = 0"]
    (tmp_path / "run.toml").write_text("\n".join([*lines, *more]))
    words = ["segment", "train", "--config", str(tmp_path / "run.toml"), "--epochs", "1"]
    assert main(words) == 0
    again = ["segment", "train", "--config", str(tmp_path / "one/run.toml")]
    assert main([*again, "--output", str(tmp_path / "two"), "--quiet"]) == 0
    one, two = (keras_vit.train.load_run(tmp_path / name) for name in ("one", "two"))
    assert one.config == two.config and one.config["epochs"] == 1
    assert one.config["ignored"] == [list(VOID)] and one.config["task"] == "segmentation"
    assert one.results["seconds"] > 0
    for mine, expected in zip(one.model.get_weights(), two.model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, expected)
    capsys.readouterr()
    assert main([*words, "--seed", "1"]) == 2
    assert "holds another run: seed was 0, is 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dry_run_prints_the_plan_and_writes_nothing(folder, tmp_path, capsys):
    assert train(folder, tmp_path / "run", "--dry-run") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "model: tiny_seg",
        "10 to train on, 2 to evaluate on",
        "4 of 4 images: 2 epochs",
        "steps of warm-up, decay 0.0001, gradients clipped to a norm of 1",
    ):
        assert text in printed
    assert "memory: about" in printed and "of training here, from" in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_run_takes_its_optimizer_from_the_recipe(is_weighted, folder, tmp_path, monkeypatch):
    """Warm-up, clipping and factors of the rate; with --class-weights, weights of the masks."""
    seen = {}

    def stop(masks, model, batch_size, **options):
        seen.update(options, optimizer=model.optimizer)
        raise ValueError("seen")

    monkeypatch.setattr("keras_vit.segmentation.commands.mask_batches", stop)
    more = ("--epochs", 20, "--layer-decay", 0.9, "--validation", 0)  # 3 steps an epoch
    changes = ("--class-weights", "--warmup-steps", 30, "--clip-norm", "none")
    assert train(folder, tmp_path / "run", *more, *(changes if is_weighted else ())) == 2
    optimizer, warmup = seen["optimizer"], 30 if is_weighted else 6
    assert optimizer.global_clipnorm == (None if is_weighted else 1.0)
    rate = optimizer._learning_rate
    assert [float(rate(step)) for step in (0, warmup, 60)] == pytest.approx([0, 0.05, 0])
    assert sorted({*optimizer.rate_factors.values()}) == pytest.approx([0.81, 0.9, 1])
    assert optimizer.weight_decay == 1e-4
    labels = [np.asarray(PIL.Image.open(path)) for path in (folder / "masks").iterdir()]
    counts = np.bincount(np.ravel(labels), minlength=4)[1:]
    if is_weighted:
        np.testing.assert_allclose(seen["class_weights"], counts.sum() / (3 * counts))
    else:
        assert "class_weights" not in seen


@pytest.mark.parametrize(
    ("changes", "trained", "random"),
    [
        ({}, 1e-4, 1e-3),
        ({"head": "dpt"}, 1e-4, 5e-4),
        ({"head": "dpt", "freeze": True}, 1e-3, 1e-3),
        ({"head": "mlp", "freeze": True}, 3e-3, 3e-3),
        ({"head": "linear", "freeze": True}, 1e-2, 1e-2),
        ({"freeze": True, "learning_rate": 0.5}, 0.5, 0.5),
    ],
)
def test_the_learning_rate_depends_on_the_head_and_on_what_is_trained(changes, trained, random):
    names = dict.fromkeys(("images", "masks", "classes", "model"), "x")
    settings = SegmentSettings(**names, **changes)
    assert settings.with_learning_rate(True).learning_rate == trained
    assert settings.with_learning_rate(False).learning_rate == random


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("heads = 3", r"heads is unknown (the nearest is head)"),
        ('ignored = ["255"]', "ignored must be tuple[int | tuple[int, int, int], ...]"),
        ("epochs = 0", "`epochs` must be"),
        ('head = "unet"', "'unet'"),
    ],
)
def test_wrong_settings_are_named(line, message, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(line)
    words = ["segment", "train", "--config", str(tmp_path / "run.toml")]
    words += ["--images", "a", "--masks", "b", "--classes", "c", "--model", "d"]
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stored", "names", "labels"),
    [
        ((0, 1, 2, 255), ["0", "1", "2"], (0, 1, 2, 255)),
        ((1, 2, 4), ["1", "2", "3", "4"], (0, 1, 3)),  # other images may have class 3
        ((0, 255), ["0", "255"], (0, 1)),  # masks of black and white
        ((0, 128, 255), ["0", "128"], (0, 1, 255)),
    ],
)
def test_without_names_the_values_of_the_masks_are_classes(stored, names, labels, tmp_path, capsys):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    values = np.resize(np.array(stored, "uint8"), (8, 8))
    PIL.Image.fromarray(values).save(tmp_path / "masks/0.png")
    PIL.Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(tmp_path / "images/0.png")
    settings = SegmentSettings(images=str(tmp_path / "images"), masks=str(tmp_path / "masks"))
    found, colors, settings = commands._find_classes(settings)
    assert found == names and "the values of the masks" in capsys.readouterr().out
    masks = {**commands._of_masks(vars(settings)), "colors": colors}
    [(_, read)] = commands._read(settings.images, settings.masks, found, masks).pairs()
    np.testing.assert_array_equal(read, np.resize(labels, (8, 8)))


def test_without_a_model_the_number_of_images_chooses_one(capsys):
    model = commands._build(SegmentSettings(image_size=16), 3, num_images=12)
    assert model.output_shape == (None, 16, 16, 3) and model.name == "r_vit_ti16_segmenter"
    assert "r_vit_ti16, random weights, for 12 images" in capsys.readouterr().out


@pytest.mark.slow
def test_images_and_masks_alone_are_enough_to_train(folder, tmp_path, capsys):
    words = ["segment", "train", folder / "images", folder / "masks", "--image-size", 16]
    words += ["--epochs", 2, "--batch-size", 32, "--output", tmp_path / "run"]
    assert main(list(map(str, words))) == 0
    assert "2 of 10 images: 2 epochs" in capsys.readouterr().out  # fewer than a batch
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["class_names"] == ["1", "2", "3"] and config["model"] == "r_vit_ti16_segmenter"
    evaluate = ["segment", "evaluate", tmp_path / "run", folder / "images", folder / "masks"]
    assert main(list(map(str, evaluate))) == 0


def test_windows_and_scales_are_those_of_python(folder, tmp_path, capsys):
    backbone = keras_vit.build_vit(tiny_config(depth=1, image_size=(16, 24), classes=None))
    fill_random(backbone)
    model = keras_vit.segmentation.build_segmenter(backbone, 3)
    fill_random(model.get_layer("segmentation_head"))
    path, out = tmp_path / "segmenter.keras", tmp_path / "out"
    model.save(path)
    options = ["--model", path, "--mode", "slide", "--scales", 0.5, 1.5, "--flip"]
    image = folder / "images/3.png"
    words = ["segment", "predict", image, "--output", out, *options]
    assert main(list(map(str, words))) == 0
    settings = {"mode": "slide", "scales": (0.5, 1.5), "flip": True}
    expected = predict_masks(model, image.read_bytes(), **settings)
    assert (expected != predict_masks(model, image.read_bytes())).any()
    np.testing.assert_array_equal(PIL.Image.open(out / "3.png"), expected)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    (tmp_path / "images/3.png").write_bytes(image.read_bytes())
    labels = np.asarray(PIL.Image.open(folder / "masks/3.png")) - 1
    PIL.Image.fromarray(labels).save(tmp_path / "masks/3.png")
    capsys.readouterr()
    words = ["segment", "evaluate", tmp_path / "images", tmp_path / "masks", *options, "--json"]
    assert main(list(map(str, words))) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["pixel_accuracy"] == np.mean(expected == labels) and found["images"] == 1


def test_exports_without_class_maps_are_refused(folder, tmp_path, capsys):
    backbone = keras_vit.build_vit(tiny_config(depth=1, classes=None))
    path = tmp_path / "segmenter.keras"
    keras_vit.segmentation.build_segmenter(backbone, 3).save(path)
    for to in ("onnx", "litert", "openvino"):
        assert main(["export", str(path), "--to", to, "--output", str(tmp_path / "file")]) == 2
        assert f"as saved_model only. Received: '{to}'" in capsys.readouterr().err
    words = ["export", str(path), "--to", "saved_model", "--output", str(tmp_path / "file")]
    assert main([*words, "--precision", "float16"]) == 2
    assert "in float32. Received: --precision float16" in capsys.readouterr().err
    assert main(["find-export", str(path), str(folder)]) == 2
    assert "classifies pixels" in capsys.readouterr().err
    assert not (tmp_path / "file").exists()


@pytest.mark.slow
def test_other_maps_are_exported_as_they_are(tmp_path, capsys):
    """A map of the image's size, such as a depth, is no class map."""
    backbone = keras_vit.build_vit(tiny_config(depth=1, classes=None, pooling=None))
    (x,) = keras_vit.models.feature_maps(backbone).output.values()
    x = keras.layers.Conv2DTranspose(1, 8, 8, activation="sigmoid", name="depth")(x)
    path = tmp_path / "depth.keras"
    keras_vit.Model(backbone.input, {"depth": x}).save(tmp_path / "named.keras")
    keras_vit.Model(backbone.input, x).save(path)
    for name in ("depth", "named"):
        words = ["export", str(tmp_path / f"{name}.keras"), "--to", "litert"]
        assert main([*words, "--output", str(tmp_path / name)]) == 0
        assert "top-1" not in capsys.readouterr().out
        with zipfile.ZipFile(tmp_path / name) as archive:
            assert archive.read("labels.txt") == b""


KILLED = """
import os, signal, sys
import keras_vit.segmentation.commands as segment
from keras_vit.cli.main import main
from tests.resume.runs import KillAfter

callbacks_of = segment.callbacks_of
kill = KillAfter(5, lambda: os.kill(os.getpid(), signal.SIGKILL))
segment.callbacks_of = lambda *arguments: [kill, *callbacks_of(*arguments)]
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_end(folder, tmp_path):
    runs = tmp_path / "whole", tmp_path / "killed"
    more = ("--epochs", 3, "--layer-decay", 0.9)  # 10 images, so two steps an epoch
    command = [sys.executable, "-c", KILLED, *words_of(folder, runs[1], *more)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert (runs[1] / "best.keras").exists() and not (runs[1] / "model.keras").exists()
    assert [train(folder, run, *more) for run in runs] == [0, 0]
    models = [keras_vit.train.load_run(run).model for run in runs]
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)
    results = [json.loads((run / "results.json").read_text()) for run in runs]
    assert results[0]["mean IoU"] == results[1]["mean IoU"]
    tables = []
    for run in runs:
        with open(run / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        tables.append([{**row, "seconds": None} for row in rows])
    assert tables[0] == tables[1] and len(tables[0]) == 3


def test_what_is_wrong_with_masks_is_one_error_before_training(folder, tmp_path, capsys):
    assert train(folder, tmp_path / "run", "--ignored", "--first-value", 0) == 2
    error = capsys.readouterr().err
    assert "masks hold values beyond the 3 classes" in error and "pixels of values" in error
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit):
        train(folder, tmp_path / "run", "--validation", "others")
    assert "validation must be float. Received: 'others'" in capsys.readouterr().err
    (tmp_path / "classes.txt").write_text("sky 70 130 180\nroad\n")
    assert train(folder, tmp_path / "run", "--classes", tmp_path / "classes.txt") == 2
    assert "2 lines, 1 of them with a colour" in capsys.readouterr().err
    pairs = [str(folder / "images"), str(folder / "masks")]
    assert main(["segment", "evaluate", *pairs, "--model", str(folder / "tiny.keras")]) == 2
    assert "is no segmentation model" in capsys.readouterr().err


@pytest.mark.parametrize("names", ["a/x.png b/x.png", "x.png x.jpg", "x.png x_overlay.png"])
def test_results_that_would_replace_one_another_are_found_before_any_work(
    names, folder, tmp_path, capsys
):
    files = [tmp_path / name for name in names.split()]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        PIL.Image.new("RGB", (8, 8)).save(file)
    command = ["segment", "predict", *map(str, files), "--model", str(folder / "tiny.keras")]
    assert main([*command, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "would replace one another" in error and all(str(file) in error for file in files)
    assert not (tmp_path / "out").exists()


def test_help_says_how_predicted_masks_count_classes(capsys):
    with pytest.raises(SystemExit):
        main(["segment", "predict", "--help"])
    help = " ".join(capsys.readouterr().out.split())
    assert "the first class is 0, whatever --first-value was" in help


def test_classes_are_drawn_over_the_image():
    image = np.full((2, 2, 1), 100, "uint8")
    found = draw_classes(image, [[0, 1], [255, 1]], colors=[(0, 0, 0), (200, 100, 0)])
    assert found.tolist() == [[[50] * 3, [150, 100, 50]], [[100] * 3, [150, 100, 50]]]
    assert draw_classes(image * 0, np.full((2, 2), 14), opacity=1).tolist()[0][0] == [192, 128, 128]
    with pytest.raises(ValueError, match=r"size of the image, \(2, 2\)"):
        draw_classes(image, [[0]])
    with pytest.raises(ValueError, match=r"colours for the classes 0 to 0.*classes 0 to 1"):
        draw_classes(image, [[0, 1], [0, 1]], colors=[(0, 0, 0)])
