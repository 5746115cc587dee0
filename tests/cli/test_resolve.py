"""Every command takes a model in every form: train, evaluate, predict, export, inspect, verify."""

from __future__ import annotations

import json
import re
import shutil
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.cli.resolve import open_model, resolve_model
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import CARDS
from keras_vit.models.resizing import resize_model
from keras_vit.train.fit import TrainingResult
from keras_vit.variants import VARIANTS
from tests.data.pictures import write_colours
from tests.fixtures import fill_random, images_for, tiny_config

TRAIN = ("--data", "train", "--recipe", "finetune_pets", "--image-size", "16", "--batch-size", "4")
FORMS = {
    "run": "keras",
    "run/best.keras": "keras",
    "tiny.npz": "checkpoint",
    "tiny.safetensors": "checkpoint",
    "folder": "checkpoint",
    "file://{folder}/tiny.npz": "checkpoint",
    "vit_tiny/in2": "published",
    "vit_tiny": "variant",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a tiny model in every form, and images."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config(image_size=16, patch_size=8, depth=1))
    card = Card("vit_tiny", "in2", "gs://tests/tiny.npz", "official", (16, 16), 2)
    monkeypatch.setitem(CARDS, (card.variant, card.tag), card)
    monkeypatch.chdir(tmp_path)
    model = keras_vit.create_model("vit_tiny", classes=2)
    fill_random(model, 0.1)
    bucket = tmp_path / "mirror/storage.googleapis.com/tests"
    for path in (bucket, tmp_path / "folder", tmp_path / "run"):
        path.mkdir(parents=True)
    keras_vit.save_weights(model, "tiny.npz", "official")
    keras_vit.save_weights(model, "tiny.safetensors", "timm")
    (tmp_path / "config.json").write_text('{"model_args": {"num_heads": 4}}')
    shutil.copy("tiny.npz", bucket)
    shutil.copy("tiny.safetensors", "folder/model.safetensors")
    shutil.copy("config.json", "folder")
    model.save("run/best.keras")
    write_colours(tmp_path / "train", 4)
    (tmp_path / "labels.txt").write_text("blue\nred\n" + "".join(f"{i}\n" for i in range(998)))
    (tmp_path / "two.txt").write_text("blue\nred\n")
    yield tmp_path
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def handed_on(monkeypatch):
    """The models that commands hand to the function that does the work, in place of that work."""
    models = []

    def receive(*arguments, **_):
        model = next(value for value in arguments if isinstance(value, keras.Model))
        models.append(model)
        return types.SimpleNamespace(format="saved_model")

    def train(*arguments, **options):
        receive(*arguments, **options)
        history = types.SimpleNamespace(history={"loss": [0.0]}, epoch=[0])
        return TrainingResult(models[-1], history)

    monkeypatch.setattr("keras_vit.cli.training.train_as_built", train)
    monkeypatch.setattr("keras_vit.export.saved_model.export_saved_model", receive)
    monkeypatch.setattr("keras_vit.export.verify.verify_export", receive)
    monkeypatch.setattr("keras_vit.report.model_page.write_report", receive)
    return models


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_command_opens_a_model_in_every_form(form, folder, handed_on, capsys):
    model = form.format(folder=folder)
    source = resolve_model(model)
    assert source.kind == FORMS[form] and (source.path is not None) == (source.kind == "keras")
    labels = evaluate_and_predict(model, source.kind, capsys)
    assert main(["train", *TRAIN, "--model", model, "--steps", "2", "--output", "trained"]) == 0
    assert main(["export", model, "--to", "saved_model", "--output", "exported"]) == 0
    assert "1 export as saved_model in float32, and a check against" in capsys.readouterr().err
    assert main(["verify", "exported/1", model]) == 0
    assert main(["inspect", model, "--output", "report.html"]) == 0
    assert len(handed_on) == 4
    assert keras.saving.load_model("trained/model.keras").output_shape[1] in (2, labels)
    if source.kind == "variant":  # random weights
        return
    expected = keras.saving.load_model("run/best.keras").trainable_weights
    for number, received in enumerate(handed_on):
        for weight, same in zip(received.trainable_weights, expected, strict=True):
            assert weight.path == same.path
            is_new = number == 0 and weight.path.startswith("head/")  # of the model to train
            np.testing.assert_array_equal(weight, 0 * same if is_new else same)


def evaluate_and_predict(model, kind, capsys):
    """Number of classes of the labels that fit."""
    labels, count = ("labels.txt", 1000) if kind == "variant" else ("two.txt", 2)
    assert main(["evaluate", "--data", "train", "--model", model, "--labels", labels]) == 0
    assert capsys.readouterr().out.endswith("% of 8 images\n")
    words = ["predict", "train/red/0.png", "--model", model, "--labels", labels, "--top", "1"]
    assert main(words) == 0
    name, _, share = capsys.readouterr().out.split()
    assert name == "train/red/0.png" and share.endswith("%")
    return count


@pytest.mark.slow
def test_a_model_from_training_to_a_verified_export(folder, capsys):
    words = ["train", *TRAIN, "--model", "vit_tiny/in2", "--steps", "2", "--output", "trained"]
    assert main(words) == 0
    capsys.readouterr()
    assert evaluate_and_predict("trained", "keras", capsys) == 2
    assert main(["export", "trained", "--to", "saved_model", "--output", "exported"]) == 0
    assert main(["verify", "exported/1", "trained"]) == 0
    assert "differ" in capsys.readouterr().out


def test_weights_of_a_run_are_converted(folder, capsys):
    assert main(["weights", "info", "run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "classes: 2 image_size: 16 x 16" in printed and "patch_size=" in printed
    words = ["weights", "convert", "run", "out.npz", "--layout", "official"]
    assert main([*words, "--num-heads", "4"]) == 2
    assert main(words) == 0
    with np.load("out.npz") as ours, np.load("tiny.npz") as expected:
        assert sorted(ours) == sorted(expected)
        for name in expected:
            np.testing.assert_array_equal(ours[name], expected[name])
    words[3] = "larger.npz"
    assert main([*words, "--image-size", "32"]) == 0
    assert keras_vit.inspect_file("larger.npz").image_size == (32, 32)


@pytest.mark.parametrize("form", ["run", "tiny.npz", "vit_tiny/in2", "vit_tiny"])
def test_a_model_of_every_form_has_the_size_that_is_asked_for(form, folder, capsys):
    model = open_model(form, (24, 16))
    assert model.input_shape == (None, 24, 16, 3)
    printed = capsys.readouterr().err
    if FORMS[form] in ("checkpoint", "published"):
        text = f"{form}: images of 24 x 16 pixels (the caller); resized: 2 x 2 to 3 x 2 positions"
        assert text in printed
    if form != "vit_tiny":
        expected = resize_model(open_model("run"), (24, 16))
        x = images_for(model)
        np.testing.assert_allclose(model(x), expected(x), rtol=0, atol=1e-5)


def test_a_model_that_cannot_be_resized_is_named(folder, capsys):
    inner = keras.saving.load_model("run/best.keras")
    keras.Sequential([keras.Input((16, 16, 3)), inner]).save("nested.keras")
    words = ["predict", "train/red/0.png", "--model", "nested.keras", "--image-size"]
    assert main([*words, "32"]) == 2
    expected = "nested.keras cannot take images of 32 x 32 pixels. Only models of this package can"
    assert expected in capsys.readouterr().err
    assert main([*words, "16"]) == 0  # as it is


def test_a_segmenter_of_another_size_says_why_and_what_to_do(folder, capsys):
    backbone = keras_vit.build_vit(tiny_config(image_size=16, patch_size=8, depth=1, classes=None))
    keras_vit.segmentation.build_segmenter(backbone, 2, "linear").save("maps.keras")
    words = ["export", "maps.keras", "--to", "onnx", "--image-size", "32"]
    assert main(words) == 2
    assert (
        "maps.keras cannot take images of 32 x 32 pixels: the decoder of a segmentation model is "
        "built for the maps of one size, here of 16 x 16 pixels. Leave --image-size out: images of "
        "any size are resized to the model, or covered by windows with --mode slide."
    ) in capsys.readouterr().err


def test_the_size_of_the_preprocessing_is_printed_and_trained_at(folder, capsys):
    """Positions are for 16 pixels, and stay so in a converted file."""
    config = {"model_args": {"num_heads": 4}, "pretrained_cfg": {"input_size": [3, 32, 24]}}
    (folder / "folder/config.json").write_text(json.dumps(config))
    words = ["--model", "folder", "--data", "train", "--steps", "2", "--dry-run"]
    assert main(["train", *words]) == 0
    printed = capsys.readouterr()
    expected = "folder: images of 32 x 24 pixels (config.json: pretrained_cfg: input_size)"
    assert f"{expected}; resized: 2 x 2 to 4 x 3 positions" in printed.err
    assert re.search(r"size: +32 x 24 x 3", printed.out)
    assert main(["weights", "info", "folder"]) == 0
    assert "input_size: 32 x 24" in " ".join(capsys.readouterr().out.split())
    assert main(["weights", "convert", "folder", "out.npz", "--layout", "official"]) == 0
    assert keras_vit.inspect_file("out.npz").image_size == (16, 16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "--data", "train", "--model", "vit_tinny"), "Similar names: vit_tiny"),
        (("inspect", "tiny.npy"), "Similar names: tiny.npz"),
        (("inspect", "tiny.npy"), "VARIANT/TAG, or VARIANT for random weights; `keras-vit weights"),
        (("weights", "fetch", "run"), "'run' is a saved model, not a checkpoint"),
        (("train", *TRAIN, "--model", "run", "--weights", "tiny.npz"), "Leave out --weights"),
        (
            ("train", *TRAIN, "--model", "vit_b16", "--weights", "vit_tiny/in2"),
            "does not hold weights of --model vit_b16",
        ),
    ],
)
def test_wrong_names_are_explained(words, message, folder, capsys):
    assert main(list(words)) == 2
    assert message in capsys.readouterr().err
