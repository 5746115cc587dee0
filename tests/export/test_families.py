"""Every family in every format."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from tests.export.families import FAMILIES, build_family
from tests.fixtures import images_for

EXPORTS = {
    "saved_model": (export_saved_model, {}),
    "litert": (export_litert, {}),
    "onnx": (export_onnx, {}),
    "onnx float16": (export_onnx, {"precision": "float16"}),
}
SMALL = {
    "litert float16": (export_litert, {"precision": "float16"}),
    "litert dynamic": (export_litert, {"precision": "dynamic"}),
    "litert int8": (export_litert, {"precision": "int8"}),
    "onnx int8": (export_onnx, {"precision": "int8"}),
    "saved_model bfloat16": (export_saved_model, {"precision": "bfloat16"}),
}
# Families that differ in their operators; the others take minutes.
QUICK = ("vit", "bit")
# Half precision has 11 bits: differences are of the order of 2 ** -11 a layer; bfloat16 has 8, as
# have the quantised formats, whose steps are as wide as the largest value of a tensor demands.
LARGEST = {
    "onnx float16": 1e-2,
    "saved_model bfloat16": 0.1,
    "litert float16": 1e-2,
    "litert dynamic": 0.1,
    "litert int8": 0.25,
    "onnx int8": 0.1,
}


@pytest.mark.parametrize("format", EXPORTS)
@pytest.mark.parametrize("family", [*FAMILIES, "bit"])
def test_every_family_in_every_format(family, format, tmp_path):
    export, options = EXPORTS[format]
    report = export(build_family(family), tmp_path / "model", tolerance=1.0, **options)
    assert report.max_difference < LARGEST.get(format, 1e-5)
    assert report.images == 8


@pytest.mark.parametrize(
    "format", [*[*SMALL][:-1], pytest.param("saved_model bfloat16", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in QUICK else pytest.mark.slow)
        for family in [*FAMILIES, "bit"]
    ],
)
def test_every_family_in_few_bits(family, format, tmp_path):
    export, options = SMALL[format]
    model = build_family(family)
    if format == "litert int8":
        options = {**options, "calibration": images_for(model, 8)}
    report = export(model, tmp_path / "model", tolerance=1.0, **options)
    assert 1e-6 < report.max_difference < LARGEST[format]


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
