"""Exports of hybrids and BiT ResNets have plain convolutions and static shapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from keras_vit.create import build
from keras_vit.export.inference import prepare
from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.runners import load_litert, load_onnx
from keras_vit.layers.convolution import StdConv2D
from tests.checks import quick
from tests.fixtures import fill_random, images_for
from tests.models.test_hybrids import CONFIGS


@pytest.fixture(scope="module", params=quick(CONFIGS, "bit"))
def model(request):
    model = build(CONFIGS[request.param])
    fill_random(model)
    return model


def check(logits, model, images):
    expected = np.asarray(model(images))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=5e-6 * np.abs(expected).max())


def test_weight_standardisation_is_folded(model):
    layers = prepare(model).model._flatten_layers()
    convolutions = [layer for layer in layers if isinstance(layer, StdConv2D)]
    assert len(convolutions) == 9
    assert {layer.standardization for layer in convolutions} == {None}


def test_litert_has_static_shapes(model, tmp_path):
    images = images_for(model)
    report = export_litert(model, tmp_path / "model.tflite", batch_size=1)
    run = load_litert(report.path)
    check(np.concatenate([run(image[None])["logits"] for image in images]), model, images)
    operators = operator_names(report.path)
    patches = hasattr(model.config, "patch_size")  # their projection is a convolution too
    assert operators.count("CONV_2D") == 9 + patches
    assert "SHAPE" not in operators


def operator_names(path):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    return [operator["op_name"] for operator in interpreter._get_ops_details()]


def test_onnx_has_static_shapes(model, tmp_path):
    images = images_for(model)
    report = export_onnx(model, tmp_path / "model.onnx")
    run = load_onnx(report.path)
    for batch in (images, images[:1]):
        check(run(batch)["logits"], model, batch)
    operators = [node.op_type for node in onnx.load(report.path).graph.node]
    patches = hasattr(model.config, "patch_size")
    assert operators.count("Conv") == 9 + patches
    assert "Shape" not in operators or patches  # the class token reads the batch size
