"""OpenVINO files compared with the model."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import keras_vit
from keras_vit.export.formats import find_format
from keras_vit.export.openvino import export_openvino
from keras_vit.export.runners import load_openvino
from keras_vit.export.verify import synthetic_images
from keras_vit.models.vit import build_vit
from tests.checks import quick
from tests.export.conftest import LABELS
from tests.export.families import FAMILIES
from tests.export.test_deployments import script
from tests.fixtures import fill_random, images_for, tiny_config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "m.onnx"}, r"must end in \.xml.*Received: '.*m\.onnx'"),
        ({"precision": "int8"}, 'precision="int8" needs `calibration`'),
        ({"precision": "int4"}, "`precision` must be one of 'float32'"),
        ({"float_layers": ["head"]}, '`float_layers` needs precision="int8"'),
    ],
)
def test_wrong_arguments(changes, message, model, tmp_path):
    changes = {"path": "m.xml", **changes}
    with pytest.raises(ValueError, match=message):
        export_openvino(model, tmp_path / changes.pop("path"), **changes)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_names_the_extra(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformer\[openvino\]"):
        export_openvino(model, tmp_path / "m.xml")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def wide():
    """A model whose weights outweigh its graph."""
    model = build_vit(tiny_config(depth=1, width=128, mlp_dim=512))
    fill_random(model, stddev=0.05)
    return model


def test_16_bits_make_smaller_files(wide, tmp_path):
    reports = {
        precision: export_openvino(wide, tmp_path / f"{precision}.xml", precision)
        for precision in ("float32", "float16", "bfloat16")
    }
    exact = reports["float32"].size
    assert exact == sum(file.stat().st_size for file in tmp_path.glob("float32.*"))
    assert 0.4 < reports["float16"].size / exact < 0.65
    assert 0.4 < reports["bfloat16"].size / exact < 0.65
    assert reports["float32"].max_difference < 1e-5
    assert 1e-6 < reports["float16"].max_difference < 5e-3
    assert 1e-5 < reports["bfloat16"].max_difference < 3e-2


def test_any_batch_names_labels_and_the_client(model, pixels, tmp_path):
    outputs = ("probabilities", "features", "logits")
    report = export_openvino(model, tmp_path / "m.xml", labels=LABELS, outputs=outputs)
    assert find_format(report.path) == "openvino"
    assert keras_vit.verify_export(report.path, model, pixels).max_difference < 1e-5
    run = load_openvino(report.path)
    for batch in (pixels[:1], pixels):
        found = run(batch)
        assert tuple(found) == outputs
        np.testing.assert_allclose(found["logits"], model(batch), rtol=0, atol=1e-5)
        np.testing.assert_allclose(found["probabilities"].sum(-1), 1, rtol=0, atol=1e-6)
    client = script("classify")
    card, _ = client.open_model(str(report.path))
    assert card["labels"] == LABELS and card["precision"] == "float32"
    assert json.loads(json.dumps(card))["input_shape"] == [32, 32, 3]
    difference, allowed = client.check(str(report.path))
    assert difference < 1e-5 == allowed  # in float32, also on processors with bfloat16
    plain = export_openvino(model, tmp_path / "values.xml", activation="linear")  # of regression
    assert tuple(load_openvino(plain.path)(pixels)) == ("logits",)


def test_a_head_with_a_bias_of_zeros_keeps_its_name(tmp_path):
    """The compiler of OpenVINO 2026.4 removes the addition, and gives the output a second name."""
    model = build_vit(tiny_config(depth=1))
    fill_random(model)
    model.get_layer("head").bias.assign([0.0] * model.output_shape[-1])
    path = keras_vit.export_onnx(model, tmp_path / "m.onnx").path
    assert tuple(load_openvino(path)(images_for(model, 1))) == ("logits",)


CASES = [(family, precision) for family in FAMILIES for precision in ("float32", "int8")]


@pytest.mark.parametrize(("family", "precision"), quick(CASES, ("registers", "int8")))
def test_every_family(family, precision, tmp_path):
    options = {}
    model = build_vit(tiny_config(**FAMILIES[family], depth=1))
    fill_random(model)
    if precision == "int8":
        pytest.importorskip("nncf")
        # As those of the check: a range of noise clips what they make.
        options = {"calibration": synthetic_images(model.input_shape[1:])}
    report = export_openvino(model, tmp_path / "m.xml", precision, tolerance=1.0, **options)
    largest = {"float32": 1e-5, "int8": 0.1}[precision]
    assert (1e-6 if precision == "int8" else 0) <= report.max_difference < largest


def test_int8_of_more_tokens_than_dimensions_without_biases(tmp_path):
    """OpenVINO 2026.4 takes tokens for channels there, and failed with 17 of 16 dimensions."""
    pytest.importorskip("nncf")
    without = ("query", "key", "value", "projection", "mlp")
    for prefix in (0, 1):
        options = {"class_token": bool(prefix), "pooling": "gap", "without_bias": without}
        model = build_vit(tiny_config(depth=1, width=16, **options))
        assert model.config.num_patches == 16
        fill_random(model)
        pixels = synthetic_images(model.input_shape[1:])
        path = tmp_path / f"{prefix}.xml"
        report = export_openvino(model, path, "int8", calibration=pixels, tolerance=1.0)
        assert 1e-6 < report.max_difference < 0.1


@pytest.mark.slow
def test_weights_that_openvino_reads_late(tmp_path):
    """It reads those of a large file when they are asked for: B/16 was not saved."""
    model = keras_vit.create_model("vit_b16", depth=4)
    fill_random(model, stddev=0.02)
    report = export_openvino(model, tmp_path / "m.xml")
    assert report.max_difference < 1e-5


@pytest.mark.slow
def test_layers_that_stay_float(wide, tmp_path):
    pytest.importorskip("nncf")
    calibration = images_for(wide, 8)

    def export(name, float_layers):
        path = tmp_path / name
        return export_openvino(
            wide, path, "int8", calibration=calibration, float_layers=float_layers
        )

    less = export("all.xml", ())
    second = export("some.xml", ["mlp"])
    assert less.size < second.size
    with pytest.raises(
        ValueError, match=r"Received: \['no such'\], which match none of \d+: .*head"
    ):
        export("none.xml", ["mlp", "no such"])
