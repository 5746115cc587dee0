"""Every family and option in every format: pairs in the quick run, all combinations in the slow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from tests.checks import quick
from tests.export.families import (
    EXCLUDED,
    FAMILIES,
    MERGING,
    OPTIONS,
    all_pairs,
    build_family,
    build_options,
    pairwise_cover,
)
from tests.fixtures import images_for, tiny_config, tiny_vit

EXPORTS = {
    "saved_model": (export_saved_model, {}),
    "litert": (export_litert, {}),
    "onnx": (export_onnx, {}),
    "onnx float16": (export_onnx, {"precision": "float16"}),
}
QUANTIZED = {
    "litert float16": (export_litert, {"precision": "float16"}),
    "litert dynamic": (export_litert, {"precision": "dynamic"}),
    "litert int8": (export_litert, {"precision": "int8"}),
    "onnx int8": (export_onnx, {"precision": "int8"}),
    "saved_model bfloat16": (export_saved_model, {"precision": "bfloat16"}),
}
MORE = {
    "onnx 22": (export_onnx, {"opset": 22}),
    "saved_model xla": (export_saved_model, {"jit_compile": True}),
    "litert open": (export_litert, {"batch_size": None}),
}
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
LARGEST_WITH_MERGING = {
    "onnx float16": 2e-2,
    "saved_model bfloat16": 0.1,
    "litert float16": 2e-2,
    "litert dynamic": 0.3,
    "litert int8": 0.3,
    "onnx int8": 0.3,
}
ROWS = pairwise_cover(OPTIONS, EXCLUDED)


def slow_but(families, formats, quick):
    """All combinations, marked slow unless `quick` has them."""
    return [
        pytest.param(*row, marks=() if row in quick else pytest.mark.slow)
        for row in itertools.product(families, formats)
    ]


def test_the_rows_cover_every_pair_of_options():
    covered = {frozenset(pair) for row in ROWS for pair in itertools.combinations(row.items(), 2)}
    assert covered == set(all_pairs(OPTIONS, EXCLUDED))
    assert len(ROWS) <= 20


@pytest.mark.parametrize(
    "pair", sorted(map(sorted, EXCLUDED)), ids=lambda pair: " ".join(v for _, v in pair)
)
def test_excluded_pairs_are_refused(pair):
    changes = {}
    for factor, value in pair:
        changes |= OPTIONS[factor][value]
    with pytest.raises(ValueError, match="Received"):
        tiny_config(**changes)


# Every twentieth row; the tests of the formats have more.
@pytest.mark.parametrize("row", quick(ROWS, *ROWS[::20]), ids=lambda row: "-".join(row.values()))
def test_pairs_of_options_in_float32(row, tmp_path):
    model = build_options(row)
    export, options = EXPORTS[row["format"]]
    report = export(model, tmp_path / "model", tolerance=1.0, **options)
    assert report.max_difference < 1e-5
    assert report.images == 8
    assert model.dtype_policy.name == row["policy"]
    if row["head"] != "none":  # the model's own logits are float32 too
        assert np.asarray(model(images_for(model, 1))).dtype == np.float32


@pytest.mark.parametrize(
    ("family", "format"),
    slow_but(
        [*FAMILIES, "bit"],
        EXPORTS,
        [
            ("eva02", "litert"),
            ("dinov3", "onnx"),
        ],
    ),
)
def test_every_family_in_every_format(family, format, tmp_path):
    export, options = EXPORTS[format]
    report = export(build_family(family), tmp_path / "model", tolerance=1.0, **options)
    assert report.max_difference < LARGEST.get(format, 1e-5)
    assert report.images == 8


@pytest.mark.parametrize(
    ("family", "format"),
    # The quick tests of each format quantise a ViT.
    slow_but([*FAMILIES, "bit"], QUANTIZED, [("bit", "onnx int8")]),
)
def test_every_family_in_few_bits(family, format, tmp_path):
    export, options = QUANTIZED[format]
    model = build_family(family)
    if format == "litert int8":
        options = {**options, "calibration": images_for(model, 8)}
    report = export(model, tmp_path / "model", tolerance=1.0, **options)
    assert 1e-6 < report.max_difference < LARGEST[format]


@pytest.mark.slow
@pytest.mark.parametrize("format", [*EXPORTS, *QUANTIZED, *MORE])
def test_merged_tokens_in_every_format(format, tmp_path):
    model = tiny_vit(**MERGING)
    export, options = {**EXPORTS, **QUANTIZED, **MORE}[format]
    if format == "litert int8":
        options = {**options, "calibration": images_for(model, 8)}
    report = export(model, tmp_path / "model", tolerance=1.0, **options)
    assert report.max_difference < LARGEST_WITH_MERGING.get(format, 1e-5)


@pytest.mark.slow
def test_models_trained_in_half_precision_are_exported_to_float16(tmp_path):
    row = {"gelu": "exact", "image": "wide", "policy": "mixed_bfloat16"}
    report = export_onnx(build_options(row), tmp_path / "model", precision="float16", tolerance=1.0)
    assert report.max_difference < LARGEST["onnx float16"]
