"""Every family in every format."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from tests.export.families import FAMILIES, build_family

EXPORTS = {
    "saved_model": (export_saved_model, {}),
    "litert": (export_litert, {}),
    "onnx": (export_onnx, {}),
    "onnx float16": (export_onnx, {"precision": "float16"}),
}
# Half precision has 11 bits: differences are of the order of 2 ** -11 a layer.
LARGEST = {"onnx float16": 1e-2}


@pytest.mark.parametrize("format", EXPORTS)
@pytest.mark.parametrize("family", [*FAMILIES, "bit"])
def test_every_family_in_every_format(family, format, tmp_path):
    export, options = EXPORTS[format]
    report = export(build_family(family), tmp_path / "model", tolerance=1.0, **options)
    assert report.max_difference < LARGEST.get(format, 1e-5)
    assert report.images == 8


@pytest.mark.parametrize("format", EXPORTS)
def test_models_trained_in_half_precision_are_exported_in_float32(format, pixels, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build_family("exact_gelu")
    finally:
        keras.config.set_dtype_policy("float32")
    export, options = EXPORTS[format]
    report = export(model, tmp_path / "model", tolerance=1.0, **options)
    assert report.max_difference < LARGEST.get(format, 1e-5)
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert np.asarray(model(pixels)).dtype == np.float32
