"""scripts/check-published with weights of our own in place of those that it downloads."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import runpy

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.detection.open_vocabulary import load_open_vocabulary
from tests.detection.open_vocabulary import owl_folder
from tests.fixtures import images_for, tiny_vit
from tests.image_text.towers import write_transformers, write_vocabulary
from tests.networks.cases import network_folder
from tests.segmentation.sam_folder import sam_folder

DENSE = ("network", "poses", "detector", "clicks")
SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/check-published"


@pytest.fixture
def script(monkeypatch):
    """Its names, with a tiny model for every name of weights."""
    model = tiny_vit(image_size=224, patch_size=32, num_registers=4)
    monkeypatch.setattr(keras_vit, "from_pretrained", lambda weights, input_shape: model)
    script = runpy.run_path(str(SCRIPT))
    return script, model


@pytest.fixture(scope="module")
def picture():
    rows, columns = np.mgrid[:300, :400]
    pixels = np.stack([rows * 0.8, columns * 0.6, (rows + columns) % 256], axis=-1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype("uint8")).save(file, "PNG")
    return file.getvalue()


def as_jpeg(picture):
    file = io.BytesIO()
    Image.open(io.BytesIO(picture)).resize((640, 480)).save(file, "JPEG")
    return file.getvalue()


def test_right_and_wrong_numbers_are_told_apart(script, picture, tmp_path, capsys):
    names, model = script
    pixels = names["pixels_of"](picture, "crop")
    logits = np.asarray(model(pixels))[0]
    tokens = np.asarray(keras_vit.features_of(model, ["encoder_norm"])(pixels)["encoder_norm"])[0]
    norm = {0: tuple(tokens[0, :3]), 5: tuple(tokens[5, :3])}
    right = names["Values"]("vit_b16/a", "logits", {0: tuple(logits[:3])}, "crop")
    other = names["Values"]("vit_b14/b", "encoder_norm", norm, "crop")
    wrong = dataclasses.replace(other, rows={1: tuple(tokens[1, :3] + 0.01)})
    (tmp_path / "picture.png").write_bytes(picture)
    arguments = ["--picture", str(tmp_path / "picture.png")]
    main = names["main"]
    main.__globals__["PUBLISHED"] = (right, other)
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("as published") == 2
    main.__globals__["PUBLISHED"] = (right, wrong)
    assert main(arguments) == 1
    assert "vit_b14/b: 3 numbers of encoder_norm: 1.0e-02 DIFFERS" in capsys.readouterr().out
    assert main([*arguments[:1], str(tmp_path / "none.png")]) == 3
    assert "NOT RUN:\n    vit_b16/a: 3 numbers of logits: [Errno 2]" in capsys.readouterr().out


def test_pictures_are_resized_as_by_the_sources(script, picture):
    names, _ = script
    image = Image.open(io.BytesIO(picture))
    for resize in ("float", "bilinear", "bicubic", "crop", "clip"):
        pixels = names["pixels_of"](picture, resize)
        assert pixels.shape == (1, 224, 224, 3) and pixels.min() >= 0 and pixels.max() <= 255
    assert names["pixels_of"](picture, "448").shape == (1, 448, 448, 3)
    whole = np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR), "float32")
    # Pillow rounds to whole numbers after each axis.
    np.testing.assert_allclose(names["pixels_of"](picture, "float")[0], whole, rtol=0, atol=1)
    middle = image.resize((341, 256), Image.Resampling.BICUBIC).crop((58, 16, 282, 240))
    np.testing.assert_array_equal(names["pixels_of"](picture, "crop")[0], np.asarray(middle))


def test_the_weights_it_names_are_published(script):
    names, _ = script
    cards = {f"{card.variant}/{card.tag}" for card in keras_vit.list_weights()}
    of_cards = {each.weights for each in names["PUBLISHED"] if each.stage not in DENSE}
    assert {weights for weights in of_cards if not weights.startswith("hf://")} <= cards


def test_corners_of_networks_and_poses_are_compared(picture, tmp_path, capsys):
    names = runpy.run_path(str(SCRIPT))
    (tmp_path / "picture.jpg").write_bytes(as_jpeg(picture))
    main, arguments = names["main"], ["--picture", str(tmp_path / "picture.jpg")]
    depth = network_folder("depth anything", tmp_path / "depth")
    poses = network_folder("vitpose", tmp_path / "poses")
    pixels = names["pixels_of"](as_jpeg(picture), "56 x 84 bicubic")
    network = keras_vit.from_pretrained(depth, input_shape=(56, 84, 3))
    corner = network.predict_on_batch(pixels)["predicted_depth"][0, :2, :2]
    right = names["Values"](
        str(depth), "network", {"predicted_depth": tuple(corner)}, "56 x 84 bicubic"
    )
    wrong = dataclasses.replace(right, rows={"predicted_depth": tuple(corner.T + 1)})
    points = names["Values"](str(poses), "poses", {"scores": (99.0,)}, "boxes")
    for values, expected in ((right, 0), (wrong, 1), (points, 1)):
        main.__globals__["PUBLISHED"] = (values,)
        assert main(arguments) == expected
    assert "4 numbers of network" in capsys.readouterr().out
    padded = names["pixels_of"](as_jpeg(picture), "640 x 640 padded")
    assert padded.shape == (1, 640, 640, 3) and padded[0, :480].any(axis=-1).mean() > 0.9
    assert not padded[0, 480:].any()


def test_detectors_of_texts_and_clicks_are_compared(picture, tmp_path, capsys):
    names = runpy.run_path(str(SCRIPT))
    (tmp_path / "picture.jpg").write_bytes(as_jpeg(picture))
    owl = load_open_vocabulary(owl_folder("owlv2", tmp_path / "owl"))
    pixels = names["pixels_of"](as_jpeg(picture), "64 x 64 bilinear")
    found = owl.detector(["a cat", "dog"]).predict_on_batch(pixels)
    rows = {"logits": tuple(map(tuple, found["logits"][0, :3]))}
    rows["boxes"] = tuple(map(tuple, found["boxes"][0, :3, :3]))
    values = names["Values"]
    right = values(str(owl.folder), "detector", rows, "64 x 64 bilinear", ("a cat", "dog"))
    wrong = dataclasses.replace(right, texts=("dog", "a cat"))
    (tmp_path / "sam").mkdir()
    click = values(str(sam_folder(tmp_path / "sam")), "clicks", {"scores": (9.0, 9, 9)}, "whole")
    main = names["main"]
    main.__globals__["CLICK"] = (400, 200)  # inside of this picture
    for each, expected in ((right, 0), (wrong, 1), (click, 1)):
        main.__globals__["PUBLISHED"] = (each,)
        assert main(["--picture", str(tmp_path / "picture.jpg")]) == expected
    assert "3 numbers of clicks" in capsys.readouterr().out


def test_logits_of_texts_are_compared(script, picture, tmp_path, capsys):
    write_transformers(tmp_path)
    write_vocabulary(tmp_path)
    names, _ = script
    names["pixels_of"].__globals__["pixels_of"] = lambda *_: pixels
    towers, texts = keras_vit.image_text.load_towers(tmp_path), ("a cat", "dog")
    pixels = images_for(towers.image, 1)
    logits = tuple(towers.logits(pixels, list(texts))[0])
    right = names["Values"](str(tmp_path), "logits", {0: logits}, "clip", texts)
    wrong = dataclasses.replace(right, rows={0: logits[::-1]})
    (tmp_path / "picture.png").write_bytes(picture)
    main = names["main"]
    for values, expected in ((right, 0), (wrong, 1)):
        main.__globals__["PUBLISHED"] = (values,)
        assert main(["--picture", str(tmp_path / "picture.png"), tmp_path.name]) == expected
    assert "DIFFERS" in capsys.readouterr().out
