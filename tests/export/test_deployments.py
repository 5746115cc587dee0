"""The scripts in `export/`; tests/export/test_model_server.py has the clients of a server."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import socket

import numpy as np
import PIL
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.data.transforms import eval_transform
from tests.export.conftest import LABELS
from tests.fixtures import tiny_vit

SCRIPTS = pathlib.Path(__file__).parents[2] / "export"
pytestmark = pytest.mark.xdist_group("saved_model")


def script(name):
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def images(pixels):
    return [tf.io.encode_png(image.astype("uint8")).numpy() for image in pixels]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_the_rest_client_reports_a_missing_server(images):
    client = script("tf_serving/rest_client")
    with pytest.raises(ConnectionError, match="refused"):
        client.classify(images[:1], address=f"http://127.0.0.1:{free_port()}", attempts=1)


@pytest.fixture
def photographs(images, tmp_path):
    """A folder of image files."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for index, image in enumerate(images):
        (folder / f"{index}.png").write_bytes(image)
    return folder


@pytest.fixture(scope="module")
def small():
    """A model of one block: the scripts convert it in every precision."""
    return tiny_vit(depth=1)


@pytest.fixture
def files(small, tmp_path):
    """Files of a model and its labels, as command line arguments."""
    small.save(tmp_path / "tiny.keras")
    (tmp_path / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    return [str(tmp_path / "tiny.keras"), "--labels", str(tmp_path / "labels.txt")]


@pytest.mark.slow
def test_the_serving_script_writes_model_and_configuration(files, tmp_path, capsys):
    options = ["--to", str(tmp_path / "serving"), "--name", "tiny", "--no-jit-compile"]
    script("tf_serving/export").main([*files, *options])
    assert "(saved_model float32)" in capsys.readouterr().out
    assert "/models/tiny" in (tmp_path / "serving" / "models.config").read_text()
    assert (tmp_path / "serving" / "tiny" / "1" / "saved_model.pb").is_file()


@pytest.mark.parametrize(
    ("name", "suffix", "precisions"),
    [
        pytest.param(
            *("litert", "tflite", ("float32", "float16", "dynamic", "int8")), marks=pytest.mark.slow
        ),
        pytest.param(
            *("onnxruntime", "onnx", ("float32", "float16", "int8")), marks=pytest.mark.slow
        ),
    ],
)
def test_the_scripts_export_and_classify(
    name, suffix, precisions, files, photographs, small, tmp_path, capsys
):
    folder = tmp_path / "exported"
    script(f"{name}/export").main([*files, "--images", str(photographs), "--to", str(folder)])
    printed = capsys.readouterr().out
    assert printed.count("(6 images)") == len(precisions)
    assert ("ranges: FULLY_CONNECTED" in printed) == (name == "litert")
    assert {path.stem for path in folder.iterdir()} == set(precisions)
    exact = str(folder / f"float32.{suffix}")
    classify = script("classify")
    logits = np.asarray(small(keras_vit.data.read_images(photographs)[0][None]))[0]
    best = classify.classify(exact, photographs / "0.png")
    assert [label for label, _ in best] == [LABELS[i] for i in np.argsort(-logits)[:5]]
    np.testing.assert_allclose([x for _, x in best], np.sort(logits)[:-6:-1], rtol=0, atol=1e-4)
    classify.main([exact, str(photographs / "0.png"), "--check"])
    difference, row = capsys.readouterr().out.splitlines()
    assert float(difference.split()[1]) < 1e-5
    assert row.startswith(f"{photographs / '0.png'}\t{best[0][0]} ")
    classify.open_model = lambda path, open=classify.open_model: (
        open(path)[0],
        lambda pixels: open(path)[1](pixels) * 1.1,
    )
    with pytest.raises(SystemExit, match="answers differently here"):
        classify.main([exact, "--check"])


@pytest.mark.slow
def test_the_table_of_all_formats(files, photographs, tmp_path):
    folder = tmp_path / "table"
    script("compare").main([files[0], "--images", str(photographs), "--to", str(folder)])
    rows = json.loads((folder / "table.json").read_text())
    assert len(rows) == 13 and {row["images"] for row in rows} == {6}
    assert (folder / "table.md").read_text().count("\n| ") == 14
    assert (folder / "compare.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("size", [(32, 32), (20, 50), (75, 40)])
@pytest.mark.parametrize("crop_ratio", [None, 0.875, 1.0])
@pytest.mark.parametrize(
    ("interpolation", "tolerance"),
    [("bilinear", 1e-3), ("bicubic", 1.01), ("area", 1.01), ("nearest", 0.0)],
)
def test_the_client_preprocesses_as_in_evaluation(interpolation, tolerance, crop_ratio, size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), "uint8")
    preprocessing = Preprocessing(interpolation=interpolation, crop_ratio=crop_ratio)
    card = {
        "input_shape": [32, 24, 3],
        "preprocessing": {"interpolation": interpolation, "crop_ratio": crop_ratio},
    }
    pixels = script("classify").eval_transform(Image.fromarray(image), card)
    expected = eval_transform(image, preprocessing, (32, 24))
    np.testing.assert_allclose(pixels[0], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("size", [(32, 32), (20, 51), (75, 40)])
@pytest.mark.parametrize(
    "fields",
    [
        {"library": "timm", "crop_ratio": 0.9, "interpolation": "bicubic"},
        {"library": "timm", "crop_ratio": 0.9, "crop_mode": "border", "mean": (120.0, 90.0, 70.0)},
        {"library": "transformers", "crop_ratio": 0.7, "crop_mode": "squash"},
        {"library": "transformers", "crop_ratio": None},
    ],
)
@pytest.mark.parametrize("image_size", [(32, 24), (31, 31)])
def test_the_client_follows_timm_and_transformers_to_the_pixel(fields, size, image_size):
    if size == (75, 40) and "crop_ratio" in fields and int(PIL.__version__.split(".")[0]) < 13:
        pytest.skip("Pillow 12 resizes the width first where Pillow 13 begins with the height")
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), "uint8")
    preprocessing = Preprocessing(**{"mean": (127.5,) * 3, "std": (127.5,) * 3, **fields})
    card = {"input_shape": [*image_size, 3], "preprocessing": dataclasses.asdict(preprocessing)}
    pixels = script("classify").eval_transform(Image.fromarray(image), card)
    np.testing.assert_array_equal(pixels[0], eval_transform(image, preprocessing, image_size))


def test_the_client_refuses_a_small_file_that_claims_to_be_large(tmp_path, monkeypatch):
    classify, bomb = script("classify"), tmp_path / "bomb.png"
    monkeypatch.setattr(classify, "open_model", lambda path: ({}, None))
    Image.new("1", (8_000, 6_000)).save(bomb)
    with pytest.raises(ValueError, match="has 6000 x 8000 pixels, more than 33,554,432"):
        classify.classify("a.onnx", bomb)
