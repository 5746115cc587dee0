"""Keras's own `model.export` on models of this package, in every format that it has."""

from __future__ import annotations

import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.models.vit import build_vit
from tests.checks import quick
from tests.export.families import FAMILIES
from tests.fixtures import images_for, tiny_config, tiny_vit


def run_saved_model(path, images):
    loaded = tf.saved_model.load(path)  # a name, so that its variables live
    return np.asarray(loaded.serve(images))


def run_onnx(path, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (pixels,) = session.get_inputs()  # no weight or constant is left as an input
    return session.run(None, {pixels.name: images})[0]


def run_litert(path, images):
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(path).get_signature_runner()
    (name,) = run.get_input_details()
    (output,) = run(**{name: images}).values()
    return output


def run_openvino(path, images):
    import openvino

    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    return openvino.Core().compile_model(path, "CPU", exact)(images)[0]


FORMATS = {
    "tf_saved_model": ("model", run_saved_model),
    "onnx": ("model.onnx", run_onnx),
    "litert": ("model.tflite", run_litert),
    "openvino": ("model.xml", run_openvino),
}
CASES = [(family, format) for family in FAMILIES for format in FORMATS]


@pytest.mark.parametrize(
    ("family", "format"),
    quick(CASES, *(("vit", format) for format in ("tf_saved_model", "onnx", "litert"))),
)
def test_files_of_keras_give_the_models_outputs(family, format, tmp_path):
    pytest.importorskip(f"keras.src.export.{format.removeprefix('tf_')}")  # newer formats
    if format == "openvino" and sys.version_info >= (3, 13):
        pytest.skip("OpenVINO deletes a local variable by `exec`, which Python 3.13 does not allow")
    model = tiny_vit(**FAMILIES[family], depth=1)
    images = np.asarray(images_for(model, 3), "float32")
    name, run = FORMATS[format]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the converters about themselves
        model.export(str(tmp_path / name), format=format, verbose=False)
    expected = np.asarray(model(images))
    found = run(str(tmp_path / name), images)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_statistics_are_constants_of_a_graph():
    """What the converter of Keras makes inputs of an ONNX file: captured tensors."""
    model = build_vit(tiny_config(depth=1))
    copy = keras.models.clone_model(model)
    for each in (model, copy):
        function = tf.function(each).get_concrete_function(tf.TensorSpec((None, 32, 32, 3)))
        assert {tensor.dtype for tensor in function.captured_inputs} == {tf.resource}
