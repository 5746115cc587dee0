"""ONNX files compared with the model, and the operators of their graphs."""

from __future__ import annotations

import base64
import collections
import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf

from keras_vit.errors import ExportMismatchError
from keras_vit.export.inference import prepare
from keras_vit.export.onnx import export_onnx
from keras_vit.export.onnx_convert import convert
from keras_vit.export.runners import load_onnx
from keras_vit.models.vit import build_vit
from tests.export.conftest import LABELS
from tests.fixtures import fill_random, tiny_config


@pytest.fixture(scope="module")
def wide():
    """A model whose weights outweigh its graph."""
    model = build_vit(tiny_config(depth=1, width=128, mlp_dim=512))
    fill_random(model, stddev=0.05)
    return model


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """Report of a float32 file with labels."""
    return export_onnx(model, tmp_path_factory.mktemp("onnx") / "tiny.onnx", labels=LABELS)


def count_operators(graph):
    return collections.Counter(node.op_type for node in graph.nodes)


def test_float32_gives_the_models_logits_for_any_batch(exported, model, pixels):
    assert exported.max_difference < 1e-6
    run = load_onnx(exported.path)
    for batch in (pixels[:1], pixels):
        np.testing.assert_allclose(run(batch)["logits"], model(batch), rtol=0, atol=1e-5)


def test_a_batch_without_images(exported):
    assert load_onnx(exported.path)(np.zeros((0, 32, 32, 3)))["logits"].shape == (0, 10)


def test_all_requested_outputs(model, pixels, tmp_path):
    outputs = ("features", "probabilities", "logits")
    report = export_onnx(model, tmp_path / "tiny.onnx", outputs=outputs)
    results = load_onnx(report.path)(pixels)
    assert tuple(results) == outputs
    assert results["features"].shape == (6, 32)
    np.testing.assert_allclose(results["probabilities"].sum(-1), 1, rtol=0, atol=1e-6)


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_layer_norm_and_gelu_are_one_operator_each(gelu):
    inference = prepare(build_vit(tiny_config(gelu=gelu)))
    counts = count_operators(convert(inference, ("logits",), 20))
    assert counts["LayerNormalization"] == 5
    assert counts["Gelu"] == 2
    for operator in ("Erf", "Tanh", "Pow", "Sqrt", "ReduceMean", "Reciprocal"):
        assert counts[operator] == 0


def test_onnx_runtime_fuses_what_opset_18_has_no_operator_for(model, tmp_path):
    report = export_onnx(model, tmp_path / "tiny.onnx", opset=18)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(report.path), options, providers=["CPUExecutionProvider"])
    kinds = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert "LayerNormalization" in kinds or "SkipLayerNormalization" in kinds
    assert "Tanh" not in kinds  # inside FastGelu or BiasGelu


def test_external_data(model, pixels, tmp_path):
    report = export_onnx(model, tmp_path / "tiny.onnx", external_data=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tiny.onnx", "tiny.onnx.data"]
    assert report.size == sum(file.stat().st_size for file in tmp_path.iterdir())
    np.testing.assert_allclose(
        load_onnx(report.path)(pixels)["logits"], model(pixels), rtol=0, atol=1e-5
    )
    with pytest.raises(FileExistsError, match=r"tiny\.onnx\.data"):
        (tmp_path / "tiny.onnx").unlink()
        export_onnx(model, tmp_path / "tiny.onnx", external_data=True)


def test_weights_above_the_limit_of_a_file_become_external_data(model, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.export.onnx._PROTOBUF_LIMIT", 50_000)  # bytes; tiny has more
    report = export_onnx(model, tmp_path / "tiny.onnx")
    assert (tmp_path / "tiny.onnx.data").stat().st_size > 50_000
    assert report.max_difference < 1e-5


def test_weights_keep_their_names(exported):
    names = {tensor.name for tensor in onnx.load(exported.path).graph.initializer}
    assert {"block_0/attention/qkv/kernel", "head/kernel", "class_token/token"} <= names


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_model_card_is_in_the_metadata(precision, exported, model, tmp_path):
    path = exported.path
    if precision == "int8":
        path = export_onnx(model, tmp_path / "tiny.onnx", precision, LABELS).path
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    card = json.loads(session.get_modelmeta().custom_metadata_map["model_card"])
    assert card["labels"] == LABELS and card["precision"] == precision
    image = tf.io.decode_png(base64.b64decode(card["golden"]["png"])).numpy()[None]
    logits = session.run(["logits"], {"pixels": image.astype("float32")})[0]
    tolerance = {"float32": 1e-5, "int8": 0.5}[precision]
    np.testing.assert_allclose(logits[0], card["golden"]["logits"], rtol=0, atol=tolerance)


def test_fewer_bits_make_smaller_files(wide, tmp_path):
    reports = {
        precision: export_onnx(wide, tmp_path / f"{precision}.onnx", precision, tolerance=1.0)
        for precision in ("float32", "float16", "int8")
    }
    exact = reports["float32"].size
    assert 0.45 < reports["float16"].size / exact < 0.6
    assert 0.2 < reports["int8"].size / exact < 0.4
    assert 1e-6 < reports["float16"].max_difference < 5e-3
    assert 1e-4 < reports["int8"].max_difference < 0.1
    assert reports["float16"].top1_agreement == 1.0


def test_an_export_that_differs_leaves_no_file(model, tmp_path):
    with pytest.raises(ExportMismatchError, match="differs from the model"):
        export_onnx(model, tmp_path / "m.onnx", "int8", external_data=True, tolerance=1e-9)
    assert not list(tmp_path.iterdir())


def test_an_unsupported_opset(model, tmp_path):
    with pytest.raises(ValueError, match=r"`opset` must be one of 18.*22\. Received: 23"):
        export_onnx(model, tmp_path / "m.onnx", opset=23)


def test_a_missing_package_names_the_extra(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformer\[onnx\]"):
        export_onnx(model, tmp_path / "m.onnx")
