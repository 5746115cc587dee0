"""A probe is one ordinary model: what it computes, its files and exports."""

from __future__ import annotations

import json
import re

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.cli.main import main
from keras_vit.train.probe import fit_probe
from keras_vit.train.run_folder import read_results
from tests.checks import quick
from tests.data.pictures import write_colours
from tests.fixtures import images_for, tiny_vit


def make_model(**changes):
    return tiny_vit(depth=1, image_size=16, **changes)


def coloured(count, seed=0, classes=3):
    """Images of a colour for each class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    x = rng.uniform(0, 120, (count, 16, 16, 3))
    x += 135 * np.eye(3)[labels][:, None, None]
    return keras_vit.read_arrays(x.astype("uint8"), labels, [f"class {i}" for i in range(classes)])


@pytest.mark.parametrize("method", quick(["logistic", "ridge", "knn", "attentive"], "logistic"))
def test_a_probe_is_one_model(method, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.evaluate.attentive.STEPS", 20)
    model = make_model(pre_logits=16)
    train, test = coloured(24), coloured(12, seed=1)
    found = fit_probe(model, train, test, tmp_path / "features", method, folds=3, batch_size=12)
    predictions = keras_vit.evaluate.predict_set(found.model, test)
    assert found.right == int(predictions.is_right.sum()) >= 11 and found.tested == 12
    assert found.interval == keras_vit.intervals.wilson_interval(found.right, 12)
    assert f"{method} probe, " in str(found) and "95 % interval" in str(found)
    assert (found.model.config is None) == (method in ("knn", "attentive"))
    if method in ("logistic", "ridge"):  # an ordinary dense head, which other tests export
        return
    found.model.save(tmp_path / "probe.keras")
    loaded = keras.saving.load_model(tmp_path / "probe.keras")
    x = images_for(model)
    np.testing.assert_array_equal(loaded.predict(x), found.model.predict(x))
    for export, name in ((keras_vit.export_onnx, "onnx"), (keras_vit.export_litert, "tflite")):
        report = export(found.model, tmp_path / f"probe.{name}", images=x)
        assert report.top1_agreement == 1.0 and report.max_difference < 1e-4, name


@pytest.mark.slow
def test_models_of_any_kind_have_probes(tmp_path, monkeypatch):
    train = coloured(18)
    deit = make_model(distillation_token=True)
    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, keras.layers.Dense(4)(make_model(classes=None)(inputs)))
    lora = keras_vit.models.add_lora(make_model(), 2)
    for number, (model, stage) in enumerate(
        [
            (deit, None),
            (outer, None),
            (lora, None),
            (make_model(), "encoder_norm"),
            (make_model(classes=3), "block_0"),  # whose vectors fit the head as well
        ]
    ):
        folder = tmp_path / str(number)
        found = fit_probe(model, train, train, folder, "ridge", [1.0, 64.0], stage=stage, folds=2)
        right = keras_vit.evaluate.predict_set(found.model, train).is_right.sum()
        assert found.right == right >= 12, number
    monkeypatch.setattr("keras_vit.evaluate.attentive.STEPS", 20)
    model = make_model(pooling="gap", norm_after_pooling=True)
    found = fit_probe(model, train, None, tmp_path / "tokens", "attentive", [1e-3], folds=2)
    assert not {"pooling", "encoder_norm"} & {layer.name for layer in found.model.layers}


def test_labels_that_are_not_classes_are_refused(tmp_path):
    vectors = np.eye(2)[np.arange(4) % 2]
    images = keras_vit.read_arrays(np.zeros((4, 16, 16, 3), "uint8"), vectors, task="multi_label")
    with pytest.raises(ValueError, match="A probe needs one class for each image"):
        fit_probe(make_model(), images, None, tmp_path)
    with pytest.raises(ValueError, match=r"`folds` must be 2 to 6, the images. Received: 7"):
        fit_probe(make_model(), coloured(6), None, tmp_path / "folds", folds=7)
    assert not (tmp_path / "folds").exists()  # no features were computed


def test_ctrl_c_says_what_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_colours(tmp_path / "photos", 10)
    make_model().save("model.keras")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_vit.cli.probe.fit_probe", interrupted)
    assert main(["probe", "model.keras", "photos", "--output", "run"]) == 130
    assert "computed are kept in run/features, fits are not. The same" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_writes_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_colours(tmp_path / "photos", 10)
    make_model().save("model.keras")
    words = ["probe", "model.keras", "photos", "--image-size", "24", "--output", "run"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for text in (
        r"images: +16 to fit to, 4 to test on, 2 classes",
        r"size: +24 x 24 x 3",
        r"features: +32 of each image, 0\.0 MiB",
        r"fits: +36: 7 values of C on 5 folds, one on all images",
        r"memory: +about 0\.0 GiB",
        r"time: +about . seconds for the features here, from 8 blank images",
    ):
        assert re.search(text, printed), text
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 4
    results = read_results(tmp_path / "run")
    assert results["at least"] <= results["test accuracy"] <= results["at most"] + 1e-9
    assert main(["predict", "photos/red/0.png", "--model", "run", "--top", "1"]) == 0
    assert "red" in capsys.readouterr().out
    run = keras_vit.train.load_run("run")
    assert run.class_names[-1] == "red" and run.results["test accuracy"] == results["test accuracy"]
    assert main(["export", "run", "--to", "onnx", "--output", "probe.onnx"]) == 0
    assert keras_vit.verify_export("probe.onnx", run.model).top1_agreement == 1
    assert main(["report", "run"]) == 0
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "red" in page and "not measured" not in page
    (tmp_path / "photos" / "red" / "0.png").rename(tmp_path / "photos" / "red" / "new.png")
    assert main(["report", "run"]) == 2
    assert "images are others. So the run may have been trained on" in capsys.readouterr().err
    (tmp_path / "photos" / "red" / "new.png").rename(tmp_path / "photos" / "red" / "0.png")
    assert main([*words, "--method", "knn"]) == 2  # another run
    assert "holds another run: method was 'logistic', is 'knn'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_chooses_among_sizes(tmp_path, capsys):
    """Gray, and a pattern whose mean is the same gray: small images do not tell them apart."""
    pattern = 255 * (np.indices((16, 16)).sum(axis=0) % 2)
    for name, pixels in (("gray", np.full((16, 16), 127)), ("pattern", pattern)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            picture = Image.fromarray((pixels + i % 2).clip(0, 255).astype("uint8")).convert("RGB")
            picture.save(tmp_path / "photos" / name / f"{i}.png")
    model = tiny_vit(depth=1, image_size=8, patch_size=4)
    model.save(tmp_path / "tiny.keras")
    command = ["probe", str(tmp_path / "tiny.keras"), str(tmp_path / "photos"), "--method", "ridge"]
    command += ["--output", str(tmp_path / "run"), "--folds", "2", "--image-size"]
    main([*command, "8,16"])
    said = capsys.readouterr().out
    assert "16 x 16 pixels are the best in cross-validation." in said
    assert keras.saving.load_model(tmp_path / "run" / "model.keras").input_shape[1:3] == (16, 16)
    main([*command, "8,16", "--json"])
    assert json.loads(capsys.readouterr().out)["image_size"] == "16 x 16"
    with pytest.raises(SystemExit):
        main([*command, "8,16,"])
    assert "Received: ''" in capsys.readouterr().err
