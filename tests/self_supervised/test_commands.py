"""`keras-vit pretrain`: a run without labels, which goes on, and which `train` starts from."""

from __future__ import annotations

import json

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.cli.main import main
from tests.fixtures import tiny_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve images in two folders, and a tiny model with a head."""
    folder = tmp_path_factory.mktemp("unlabelled")
    rng = np.random.default_rng(0)
    for index in range(12):
        pixels = np.kron(rng.integers(0, 255, (4, 4, 3)), np.ones((8, 8, 1))).astype("uint8")
        path = folder / f"images/{'ab'[index % 2]}/{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(pixels).save(path)
    keras_vit.build_vit(tiny_config(depth=1), name="tiny").save(folder / "tiny.keras")
    return folder


def pretrain(folder, run, *more, images="images"):
    words = ["pretrain", folder / images, "--model", folder / "tiny.keras", "--output", run]
    words += ["--epochs", 2, "--batch-size", 4, "--decoder-width", 12, "--decoder-depth", 1]
    return main(list(map(str, [*words, *more])))


@pytest.fixture(scope="module")
def run(folder):
    assert pretrain(folder, folder / "run") == 0
    return folder / "run"


def test_a_run_has_an_encoder_sheets_and_results(run):
    assert [x.name for x in sorted((run / "reconstructions").iterdir())] == [
        "epoch_0001.png", "epoch_0002.png",
    ]  # fmt: skip
    with PIL.Image.open(run / "reconstructions/epoch_0002.png") as sheet:
        assert sheet.size == (96, 8 * 32)
    assert np.isfinite(json.loads((run / "results.json").read_text())["loss"])
    model = keras_vit.train.load_run(run).model
    assert model.config.classes is None and all(layer.trainable for layer in model.layers)
    again = keras_vit.self_supervised.load_masked_autoencoder(run / "autoencoder")
    images = np.full((1, 32, 32, 3), 100.0)
    np.testing.assert_allclose(again.encoder(images)[:, 0], model(images), atol=1e-5)


def test_an_interrupted_run_ends_as_a_whole_one(folder, run, tmp_path, monkeypatch):
    fit = keras.Model.fit

    def stopped(self, *args, **kwargs):
        return fit(self, *args, **{**kwargs, "epochs": 1})

    with monkeypatch.context() as patch:
        patch.setattr(keras.Model, "fit", stopped)
        assert pretrain(folder, tmp_path / "run") == 0
    assert pretrain(folder, tmp_path / "run") == 0
    models = [keras_vit.train.load_run(each).model for each in (run, tmp_path / "run")]
    for ours, whole in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(ours, whole)


def test_train_starts_from_it(folder, run, tmp_path):
    words = ["train", folder / "images", "--model", run, "--output", tmp_path / "tuned", "--recipe"]
    words += ["mae_finetune_b", "--epochs", 1, "--batch-size", 4, "--image-size", 32, "--no-report"]
    assert main(list(map(str, [*words, "--rand-augment", "none"]))) == 0
    tuned = keras_vit.train.load_run(tmp_path / "tuned")
    assert tuned.config["plan"]["layer_decay"] == 0.65
    assert tuned.model.optimizer.rate_factors["block_0/mlp/hidden/kernel"] == 0.65


def test_a_plan_trains_nothing(folder, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "run", "--dry-run") == 0
    text = capsys.readouterr().out
    assert "12" in text and "decoder" in text and not (tmp_path / "run").exists()


def test_wrong_input_is_named(folder, run, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "run", "--batch-size", 64) == 2
    assert "Received: 12 images, --batch-size 64" in capsys.readouterr().err
    assert pretrain(folder, tmp_path / "run", "--method", "dino") == 2
    assert pretrain(folder, tmp_path / "run", "--mask-rate", 1) == 2
    assert "mask_rate=1" in capsys.readouterr().err
    assert pretrain(folder, run, "--seed", 3) == 2  # another run


def test_damaged_files_are_listed_or_skipped(folder, tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    for path in folder.glob("images/*/*.png"):
        (images / path.name).write_bytes(path.read_bytes())
    (images / "bad.png").write_bytes(b"no picture")
    assert pretrain(folder, tmp_path / "run", images=images) == 2
    assert "bad.png" in capsys.readouterr().err
    with pytest.warns(UserWarning, match=r"bad\.png"):
        assert pretrain(folder, tmp_path / "run", "--unreadable", "skip", images=images) == 0
