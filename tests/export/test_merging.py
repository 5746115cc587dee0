"""Models that merge tokens, in every format."""

from __future__ import annotations

import pytest

from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, images_for, tiny_config

slow = pytest.mark.slow
EXPORTS = {
    "onnx": (export_onnx, {}, 1e-5),
    "onnx 23": (export_onnx, {"opset": 23}, 1e-5),
    "onnx float16": (export_onnx, {"precision": "float16"}, 2e-2),
    "onnx int8": (export_onnx, {"precision": "int8"}, 0.3),
    "saved_model": (export_saved_model, {}, 1e-5),
    "saved_model xla": (export_saved_model, {"jit_compile": True}, 1e-5),
    "saved_model bfloat16": (export_saved_model, {"precision": "bfloat16"}, 0.1),
    "litert": (export_litert, {}, 1e-5),
    "litert open": (export_litert, {"batch_size": None}, 1e-5),
    "litert float16": (export_litert, {"precision": "float16"}, 2e-2),
    "litert dynamic": (export_litert, {"precision": "dynamic"}, 0.3),
    "litert int8": (export_litert, {"precision": "int8"}, 0.3),
}


@pytest.mark.parametrize(
    "format", [pytest.param(name, marks=() if name == "onnx" else slow) for name in EXPORTS]
)
def test_merged_tokens_in_every_format(format, tmp_path):
    model = build_vit(tiny_config(num_merged_tokens=3, pooling="map", num_registers=1))
    fill_random(model)
    export, options, largest = EXPORTS[format]
    if format == "litert int8":
        options = {**options, "calibration": images_for(model, 8)}
    report = export(model, tmp_path / "model", tolerance=1.0, **options)
    assert report.max_difference < largest
