"""LiteRT files compared with the model."""

from __future__ import annotations

import json
import math
import os
import sys
import types
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_vit.export import litert_int8
from keras_vit.export.litert import export_litert, litert_errors
from keras_vit.export.litert_metadata import _Builder, pack, unpack
from keras_vit.export.runners import (
    _interpreter,
    count_litert_operators,
    litert_kernels,
    load_litert,
)
from keras_vit.models.vit import build_vit
from keras_vit.runtime.private_names import litert_schema
from tests.counts import check_counts, script
from tests.export.conftest import LABELS
from tests.fixtures import fill_random, tiny_config


@pytest.fixture(scope="module")
def wide():
    """A model whose weights outweigh its graph."""
    model = build_vit(tiny_config(depth=1, width=128, mlp_dim=512, gelu="exact"))
    fill_random(model, stddev=0.05)
    return model


@pytest.fixture(scope="module")
def photographs():
    """Images of several sizes."""
    rng = np.random.default_rng(2)
    return [rng.integers(0, 256, (30 + i, 44, 3), "uint8") for i in range(12)]


@pytest.fixture(scope="module")
def reports(wide, photographs, tmp_path_factory):
    """Reports of exports of the wide model by precision."""
    folder = tmp_path_factory.mktemp("litert")
    return {
        precision: export_litert(
            wide,
            folder / f"{precision}.tflite",
            precision,
            calibration=photographs if precision == "int8" else None,
            batch_size=1,
        )
        for precision in ("float32", "float16", "dynamic", "int8")
    }


def test_litert_runs_on_the_cores_that_the_process_may_use(monkeypatch):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    received = []
    monkeypatch.setattr(interpreter, "Interpreter", lambda **options: received.append(options))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 9}, raising=False)
    _interpreter("model.tflite")
    assert received == [{"model_path": "model.tflite", "num_threads": 3}]


def test_fewer_bits_make_smaller_files(reports):
    exact = reports["float32"].size
    assert 0.45 < reports["float16"].size / exact < 0.6
    assert 0.2 < reports["dynamic"].size / exact < 0.4
    assert 0.2 < reports["int8"].size / exact < 0.4
    assert 1e-6 < reports["float16"].max_difference < 5e-3
    assert 1e-4 < reports["dynamic"].max_difference < 0.1
    assert 1e-4 < reports["int8"].max_difference < 0.15


@pytest.mark.parametrize("precision", ["float32", "dynamic", "int8"])
def test_compiled_model_gives_the_outputs_of_the_interpreter(precision, reports, photographs):
    """LiteRT's newer interface, which takes the place of the interpreter."""
    compiled_model = pytest.importorskip("ai_edge_litert.compiled_model")
    path = reports[precision].path
    pixels = np.resize(photographs[0], (1, 32, 32, 3)).astype("float32")
    model = compiled_model.CompiledModel.from_file(str(path))
    inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
    inputs[0].write(pixels)
    model.run_by_index(0, inputs, outputs)
    expected = load_litert(path)(pixels)["logits"][0]
    np.testing.assert_allclose(outputs[0].read(10, np.float32), expected, rtol=0, atol=1e-6)


def test_four_bits_are_smaller_than_eight(wide, reports, photographs, tmp_path):
    pytest.importorskip("ai_edge_quantizer")
    report = export_litert(wide, tmp_path / "a.tflite", "int4", images=photographs, tolerance=0.5)
    assert 0.1 < report.size / reports["float32"].size < 0.25 < 1.5 * report.size
    assert 1e-3 < report.max_difference < 0.3
    assert report.size < 0.75 * reports["dynamic"].size


def test_four_bits_without_their_package_or_whole_blocks(wide, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer", None)
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer.quantizer", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformer\[int4\]"):
        export_litert(wide, tmp_path / "a.tflite", "int4")
    monkeypatch.setitem(sys.modules, "ai_edge_quantizer.quantizer", types.ModuleType("quantizer"))
    narrow = build_vit(tiny_config(width=24, num_heads=2, mlp_dim=40))
    with pytest.raises(ValueError, match=r"multiple of 32\. Received: block_0/.* \(24\)"):
        export_litert(narrow, tmp_path / "a.tflite", "int4")
    assert not list(tmp_path.iterdir())


def test_exact_gelu_is_one_operator_and_shapes_are_static(reports):
    counts = count_litert_operators(reports["float32"].path)
    assert counts["GELU"] == 1
    assert counts["BATCH_MATMUL"] == 2
    assert not {"SHAPE", "PACK", "GATHER", "TILE", "BROADCAST_TO"} & set(counts)


def test_xnnpack_takes_all_operators_but_those_that_are_named(reports):
    for precision in ("float32", "dynamic", "int8"):
        kernels = litert_kernels(reports[precision].path)
        assert kernels.builtin == {"STRIDED_SLICE": 1, "SPLIT_V": 4} and kernels.parts == 2
        assert kernels.xnnpack + kernels.builtin == count_litert_operators(reports[precision].path)
    assert "built-in kernels 4 SPLIT_V, 1 STRIDED_SLICE" in str(
        litert_kernels(reports["float32"].path)
    )
    assert kernels.xnnpack["FULLY_CONNECTED"] >= 5


def test_int8_quantises_dense_layers_only_and_measures_their_errors(wide, photographs):
    errors = litert_errors(wide, photographs)
    assert {row.operator for row in errors} == {"FULLY_CONNECTED", "CONV_2D"}
    assert [row.error for row in errors] == sorted((row.error for row in errors), reverse=True)
    assert 0.001 < errors[-1].error < errors[0].error < 0.2
    worst = errors[0].tensor
    rest = litert_errors(wide, photographs, float_layers=[worst])
    assert worst not in {row.tensor for row in rest}
    assert len(rest) == len(errors) - 1
    with pytest.raises(ValueError, match=r"parts of the names .*Received: \['no such'\], which"):
        litert_errors(wide, photographs, float_layers=[worst, "no such"])


@pytest.fixture(scope="module")
def uneven():
    """A model whose keys are far larger than the queries and values in the same dense layer."""
    model = build_vit(tiny_config(depth=1, width=128, mlp_dim=512, gelu="exact"))
    fill_random(model, stddev=0.05)
    factors = np.repeat([1 / 300, 300, 1], 128)  # the products of queries and keys stay
    for variable in model.get_layer("block_0").attention.qkv.variables:
        variable.assign(variable * factors)
    return model


def test_int8_rounds_at_run_time_where_one_range_does_not_fit_all(
    uneven, photographs, tmp_path, monkeypatch
):
    (qkv,) = [row for row in litert_errors(uneven, photographs) if "qkv" in row.tensor]
    assert qkv.at_run_time and qkv.error > 0.3
    options = {"calibration": photographs, "tolerance": 10}
    good = export_litert(uneven, tmp_path / "a.tflite", "int8", **options)
    monkeypatch.setattr(litert_int8, "_ALLOWED", math.inf)
    poor = export_litert(uneven, tmp_path / "b.tflite", "int8", **options)
    assert good.max_difference < poor.max_difference / 3
    assert abs(good.size - poor.size) < 0.02 * poor.size  # weights stay in 8 bits
    counts = [count_litert_operators(report.path)["QUANTIZE"] for report in (good, poor)]
    assert counts[0] < counts[1]


def test_biases_make_up_for_what_rounded_weights_add_to_all_images(
    photographs, tmp_path, monkeypatch
):
    model = build_vit(tiny_config(depth=1, width=128, mlp_dim=512, gelu="exact"))
    fill_random(model, stddev=0.05)
    model.get_layer("encoder_norm").beta.assign(np.full(128, 40.0))  # a mean for the head
    monkeypatch.setattr(litert_int8, "_ALLOWED", 0.0)  # weights alone are rounded before the run
    good = export_litert(model, tmp_path / "a.tflite", "int8", calibration=photographs)
    monkeypatch.setattr(litert_int8, "correct_biases", lambda data, exact, images: data)
    poor = export_litert(model, tmp_path / "b.tflite", "int8", calibration=photographs)
    assert good.max_difference < poor.max_difference / 2


def test_int8_is_no_full_integer_model_as_coral_needs(wide, photographs, tmp_path, monkeypatch):
    from ai_edge_litert.interpreter import Interpreter

    monkeypatch.setattr(litert_int8, "_ALLOWED", math.inf)
    path = export_litert(wide, tmp_path / "m.tflite", "int8", calibration=photographs).path
    interpreter = Interpreter(str(path))
    ends = [*interpreter.get_input_details(), *interpreter.get_output_details()]
    assert {end["dtype"] for end in ends} == {np.float32}
    types = {each["index"]: each["dtype"] for each in interpreter.get_tensor_details()}
    operators = interpreter._get_ops_details()
    kinds = {each["op_name"]: types[each["outputs"][0]] for each in operators}
    assert kinds["FULLY_CONNECTED"] == kinds["CONV_2D"] == np.int8
    assert {kinds[name] for name in ("SOFTMAX", "GELU", "ADD", "RSQRT")} == {np.float32}


def test_int8_needs_calibration_images(model, tmp_path):
    with pytest.raises(ValueError, match='precision="int8" needs `calibration`'):
        export_litert(model, tmp_path / "tiny.tflite", "int8")


def test_int8_needs_a_batch_size_of_one(model, photographs, tmp_path):
    with pytest.raises(ValueError, match='"int8" needs batch_size=1'):
        export_litert(
            model, tmp_path / "tiny.tflite", "int8", calibration=photographs, batch_size=2
        )


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """Report of a float32 file with labels."""
    path = tmp_path_factory.mktemp("litert") / "tiny.tflite"
    return export_litert(model, path, labels=LABELS, batch_size=1)


def test_labels_and_model_card_are_in_the_file(exported):
    with zipfile.ZipFile(exported.path) as archive:
        assert archive.read("labels.txt").decode().splitlines() == LABELS
        assert json.loads(archive.read("model_card.json"))["input_shape"] == [32, 32, 3]


def test_float32_gives_the_models_logits_with_unchanged_operators(exported, model, pixels):
    check_counts("litert", script()["litert_operators"](exported.path, model))
    assert exported.max_difference < 1e-5
    run = load_litert(exported.path)
    logits = np.concatenate([run(image[None])["logits"] for image in pixels])
    np.testing.assert_allclose(logits, model(pixels), rtol=0, atol=1e-5)


def test_a_smaller_last_batch(model, pixels, tmp_path):
    report = export_litert(model, tmp_path / "tiny.tflite", batch_size=len(pixels) - 1)
    logits = load_litert(report.path)(pixels)["logits"]
    np.testing.assert_allclose(logits, model(pixels), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("make", [Interpreter, tf.lite.Interpreter], ids=["litert", "tensorflow"])
def test_both_interpreters_take_any_number_of_images_or_refuse_it(make, model, pixels, tmp_path):
    any_number = export_litert(model, tmp_path / "any.tflite").path
    three = export_litert(model, tmp_path / "three.tflite", batch_size=3).path
    expected = model(pixels).numpy()

    def run(path, images):
        interpreter = make(str(path))
        index = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(index, images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(index, images)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    for count in (1, 2, len(pixels)):
        found = run(any_number, pixels[:count])
        np.testing.assert_allclose(found, expected[:count], rtol=0, atol=1e-5)
        with pytest.raises(RuntimeError, match="SPLIT_V"):
            run(three, pixels[:count])
    np.testing.assert_allclose(run(three, pixels[:3]), expected[:3], rtol=0, atol=1e-5)
    for path, batch_size in ((any_number, None), (three, 3)):
        with zipfile.ZipFile(path) as archive:
            assert json.loads(archive.read("model_card.json"))["batch_size"] == batch_size


def test_metadata_tells_mediapipe_the_range_of_pixels_and_the_labels(exported, pixels):
    """MediaPipe 1.2.3's ImageClassifier ran such a file; here its fields are read back."""
    schema = litert_schema()
    data = exported.path.read_bytes()
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    (entry,) = [each for each in model.metadata if each.name == b"TFLITE_METADATA"]
    metadata = bytes(model.buffers[entry.buffer].data)
    assert metadata[4:8] == b"M001"  # the identifier of its format
    for text in (b"pixels", b"logits", b"labels.txt"):
        assert text in metadata
    for numbers in ([0.0], [1.0], [255.0]):  # mean, standard deviation, maximum
        assert np.array(numbers, "float32").tobytes() in metadata
    weights = [each.data for each in model.buffers if each.data is not None]
    start = np.frombuffer(data, "uint8").ctypes.data
    plain = schema.ModelT.InitFromPackedBuf(data, 0)
    addresses = [x.data.ctypes.data for x in plain.buffers if isinstance(x.data, np.ndarray)]
    assert weights and {(place - start) % 16 for place in addresses} <= {0}


def test_a_file_has_room_for_the_tables_of_a_deep_model(exported, monkeypatch):
    """A growing file is copied to one of twice the size."""
    model = unpack(exported.path.read_bytes())
    model.description = "x" * 1_500_000  # tables of 40 blocks in 8 bits have half of it
    monkeypatch.setattr(_Builder, "GrowByteBuffer", None)
    assert len(pack(model)) > exported.size


def test_weights_behind_the_tables_of_a_file_are_kept(exported):
    """Where ai-edge-quantizer writes those of large models."""
    model = unpack(exported.path.read_bytes())
    filled = [each for each in model.buffers if each.data is not None]
    weights = max(filled, key=lambda each: len(each.data))
    values, weights.data = weights.data, None
    weights.offset, weights.size = 2 * exported.size, len(values)
    data = pack(model).ljust(weights.offset, b"\0") + values.tobytes()
    found = unpack(pack(unpack(data))).buffers
    assert any(np.array_equal(each.data, values) for each in found if each.data is not None)
