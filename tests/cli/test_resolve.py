"""Every command takes a model in every form: train, evaluate, predict, export, inspect, verify."""

from __future__ import annotations

import shutil
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.cli.resolve import resolve_model
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import CARDS
from keras_vit.train.fit import TrainingResult
from keras_vit.variants import VARIANTS
from tests.data.pictures import write_colours
from tests.fixtures import fill_random, tiny_config

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

    monkeypatch.setattr("keras_vit.cli.training.pretrain", train)
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
    assert main([*words, "--image-size", "32"]) == 2
    assert main(words) == 0
    with np.load("out.npz") as ours, np.load("tiny.npz") as expected:
        assert sorted(ours) == sorted(expected)
        for name in expected:
            np.testing.assert_array_equal(ours[name], expected[name])


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
