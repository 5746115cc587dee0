"""Exports, and refusals, of models that take images of any aspect ratio."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.config import make_config
from keras_vit.data.any_aspect import fit_patches
from keras_vit.export.formats import FORMATS
from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.verify import verify_export
from keras_vit.families.siglip import SIGLIP2_NAFLEX
from keras_vit.models.naflex import build_naflex
from tests.fixtures import fill_random

SIZES = {"patch_size": 4, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "image_size": 16}
CONFIG = make_config(**{**SIGLIP2_NAFLEX, **SIZES, "max_num_patches": 20, "classes": 5})


@pytest.fixture(scope="module")
def model():
    model = build_naflex(CONFIG)
    fill_random(model)
    return model


def photo(height, width, seed):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), "uint8")


@pytest.mark.slow
def test_signatures_take_files_of_any_aspect_ratio(model, tmp_path):
    report = export_saved_model(model, tmp_path / "served", labels=list("abcde"))
    assert report.max_difference < 1e-5 and report.images == 4
    signatures = tf.saved_model.load(report.path).signatures
    images = [photo(37, 90, 0), photo(80, 21, 1), photo(33, 33, 2)]
    fitted = [fit_patches(image, model) for image in images]
    assert len({tuple(x["grid"].numpy()) for x in fitted}) == 3
    batch = {name: tf.stack([x[name] for x in fitted]) for name in fitted[0]}
    expected = model(batch).numpy()
    files = tf.constant([tf.io.encode_png(image).numpy() for image in images])
    served = signatures["serving_default"](image_bytes=files)
    np.testing.assert_allclose(served["logits"], expected, rtol=0, atol=1e-5)
    assert served["classes"].shape == (3, 5)
    plain = signatures["patches"](**batch)
    np.testing.assert_allclose(plain["logits"], expected, rtol=0, atol=1e-5)
    broken = tf.concat([files[:1], [b"no image"], files[2:]], 0)
    tolerant = signatures["tolerant"](image_bytes=broken)
    assert tolerant["valid"].numpy().tolist() == [True, False, True]
    np.testing.assert_allclose(tolerant["logits"][0], expected[0], rtol=0, atol=1e-5)
    assert not tolerant["logits"][1].numpy().any()
    card = json.loads((report.path / "assets.extra" / "model_card.json").read_text())
    assert np.isfinite(card["golden"]["logits"]).all()
    assert verify_export(report.path, model, images).max_difference < 1e-5


@pytest.mark.parametrize(
    ("export", "name", "precision"),
    [
        (export_litert, "model.tflite", "float32"),
        pytest.param(export_litert, "model.tflite", "float16", marks=pytest.mark.slow),
        pytest.param(export_litert, "model.tflite", "dynamic", marks=pytest.mark.slow),
        (export_onnx, "model.onnx", "float32"),
        pytest.param(export_onnx, "model.onnx", "float16", marks=pytest.mark.slow),
        pytest.param(export_onnx, "model.onnx", "int8", marks=pytest.mark.slow),
    ],
)
def test_files_take_patches_and_grid(export, name, precision, model, tmp_path):
    path = tmp_path / name
    report = export(model, path, precision, tolerance=0.3)
    assert report.images == 4
    assert report.max_difference < {"float32": 1e-5, "float16": 2e-2}.get(precision, 0.3)
    fitted = [fit_patches(photo(*size, 0), model) for size in ((37, 90), (80, 21), (33, 33))]
    fitted.append(
        {**fitted[0], "grid": np.zeros(2, "int32")}
    )  # padding alone: no key is attended to
    batch = {name: np.stack([x[name] for x in fitted]) for name in fitted[0]}
    outputs = FORMATS[report.format].load(path)(batch)["logits"]
    expected = model(batch).numpy()
    assert np.isfinite(outputs).all() and np.isfinite(expected).all()
    outputs, expected = outputs[:3], expected[:3]
    assert (
        np.abs(outputs - expected).max() < 2 * report.max_difference * np.abs(expected).max() + 1e-5
    )
    again = verify_export(path, model)
    assert again.max_difference == pytest.approx(report.max_difference, rel=0.1, abs=1e-6)


def test_what_needs_pixels_refuses_by_name(model, tmp_path):
    for options in ({"precision": "int8"}, {"precision": "int4"}):
        with pytest.raises(ValueError, match=r"any aspect ratio .* float precision"):
            export_litert(model, tmp_path / "x.tflite", **options)
    with pytest.raises(ValueError, match=r"any aspect ratio .*`patches` and `grid`"):
        export_openvino(model, tmp_path / "model.xml")


def test_xla_is_refused_by_name(model, tmp_path):
    with pytest.raises(ValueError, match="without XLA"):
        export_saved_model(model, tmp_path / "served", jit_compile=True)
    assert not (tmp_path / "served").exists()


@pytest.mark.slow
def test_half_precision_is_close(model, tmp_path):
    report = export_saved_model(model, tmp_path / "served", precision="bfloat16", tolerance=0.1)
    assert 1e-6 < report.max_difference < 0.1
