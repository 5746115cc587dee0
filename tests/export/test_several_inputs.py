"""Models of several named inputs in every format."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.errors import ExportMismatchError
from keras_vit.export.formats import FORMATS
from keras_vit.export.several_inputs import export_several_inputs

pytestmark = pytest.mark.xdist_group("saved_model")
FILES = {"onnx": "m.onnx", "openvino": "m.xml", "litert": "m.tflite", "saved_model": "m"}


@pytest.fixture(scope="module")
def model():
    """Points of any number are compared with maps."""
    keras.utils.set_random_seed(0)
    maps = keras.Input((4, 4, 8), name="maps")
    points = keras.Input((None, 2), name="points")
    labels = keras.Input((None,), dtype="int32", name="labels")
    known = keras.ops.cast(labels > 0, "float32")[..., None]
    x = keras.ops.sum(keras.layers.Dense(8)(points) * known, axis=1, keepdims=True)  # (B, 1, 8)
    y = keras.layers.LayerNormalization()(keras.layers.Reshape((16, 8))(maps) * x)
    inputs = {"maps": maps, "points": points, "labels": labels}
    return keras_vit.Model(inputs, {"compared": y, "means": keras.ops.mean(y, axis=1)})


def sample(count, batch=1):
    rng = np.random.default_rng(count)
    return {
        "maps": rng.normal(size=(batch, 4, 4, 8)).astype("float32"),
        "points": rng.normal(size=(batch, count, 2)).astype("float32"),
        "labels": np.ones((batch, count), "int32"),
    }


@pytest.mark.parametrize("format", FILES)
def test_the_file_takes_any_number_of_points(format, model, tmp_path):
    path = tmp_path / FILES[format]
    report = export_several_inputs(model, path, format, [sample(1), sample(3)])
    assert report.max_difference < 1e-5 and report.images == 2 and report.format == format
    run = FORMATS[format].load(
        report.path, **({"name": "decode"} if format == "saved_model" else {})
    )
    inputs = sample(5, batch=1 if format in ("litert", "openvino") else 2)
    expected, found = model(inputs), run(inputs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


def test_a_file_of_given_shapes_refuses_others(model, tmp_path):
    shapes = {"points": (3, 2), "labels": (3,)}
    path = tmp_path / "m.tflite"
    export_several_inputs(model, path, "litert", [sample(3)], shapes)
    run = FORMATS["litert"].load(path)
    assert run(sample(3))["means"].shape == (1, 8)
    with pytest.raises((ValueError, RuntimeError)):
        run(sample(4))


def test_a_file_that_differs_is_not_left(model, tmp_path):
    wrong = {**sample(1), "maps": np.full((1, 4, 4, 8), np.nan, "float32")}
    with pytest.raises(ExportMismatchError):
        export_several_inputs(model, tmp_path / "m.onnx", "onnx", [sample(1), wrong])
    assert not list(tmp_path.iterdir())
