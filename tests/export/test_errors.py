"""Models and arguments that cannot be exported, and their error messages."""

from __future__ import annotations

import os
import pathlib
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.export.inference import POLICIES, check_labels, check_model, prepare
from keras_vit.export.litert import check_operators, export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.runners import _interpreter
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.verify import verification_images
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config

EXPORTS = (export_saved_model, export_litert, export_onnx)


def subclassed():
    class Mine(keras.Model):
        pass

    return Mine(name="mine")


def functional(outputs=1, shape=(8, 8, 3)):
    x = keras.Input(shape)
    y = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(x, [keras.layers.Dense(2)(y) for _ in range(outputs)])


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: "model.keras", TypeError, r"must be a keras\.Model\. Received: str"),
        (
            subclassed,
            ValueError,
            r"a symbolic input\. Received: Mine 'mine'.*Wrap a subclassed",
        ),
        (lambda: functional(2), ValueError, "Received: 2 outputs"),
        (
            lambda: functional(shape=(None, None, 3)),
            ValueError,
            r"Received: an input of shape \(None, None, None, 3\)",
        ),
        (functional, ValueError, r"neither a `config` nor a layer.*Pass preprocessing="),
    ],
)
def test_models_that_cannot_be_exported(make, error, message, export, tmp_path):
    with pytest.raises(error, match=message):
        export(make(), tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_a_subclassed_model_exports_when_wrapped_as_the_message_says(model, pixels, tmp_path):
    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = model

        def call(self, images):
            return self.inner(images)

    mine = Mine()
    mine(pixels)  # called, and still without a symbolic input
    with pytest.raises(ValueError, match=r"Wrap .*keras_vit.Model\(images, model\(images\)\)"):
        check_model(mine)
    images = keras.Input(pixels.shape[1:])
    wrapped = keras_vit.Model(images, mine(images))
    raw = Preprocessing(0.0, 1.0)
    report = export_onnx(wrapped, tmp_path / "m.onnx", preprocessing=raw, images=pixels)
    assert report.max_difference < 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 0}, r"`top_k` must be a positive integer. Received: top_k=0"),
        ({"warmup_batch_sizes": (1, 0)}, r"`warmup_batch_sizes` must be a positive integer"),
        ({"version": -1}, r"`version` must be a whole number, 0 or more.*Received: -1"),
        ({"version": 1.5}, r"`version` must be a whole number.*Received: 1.5"),
        ({"version": "2"}, r"`version` must be a whole number.*Received: '2'"),
    ],
)
def test_numbers_that_no_server_takes(arguments, message, model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_saved_model(model, tmp_path / "m", **arguments)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_named(tmp_path):
    model = build_vit(tiny_config(depth=1))
    kernel = model.get_layer("head").kernel
    kernel.assign(np.full(kernel.shape, np.nan))
    with pytest.raises(ValueError, match=r"NaN or infinite\. These weights are: head/kernel\."):
        export_onnx(model, tmp_path / "tiny.onnx")
    assert not list(tmp_path.iterdir())


def test_float_layers_without_int8(model, tmp_path):
    with pytest.raises(ValueError, match=r"`float_layers` needs precision=\"int8\""):
        export_litert(model, tmp_path / "tiny.tflite", float_layers=["head"])


def test_a_model_of_another_backend(model, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match=r"on the backend 'jax'.*KERAS_BACKEND=tensorflow"):
        check_model(model)


def test_an_unknown_activation(model):
    with pytest.raises(ValueError, match=r"`activation` must be None or one of .*'relu'"):
        prepare(model, activation="relu")


@pytest.mark.parametrize("export", [export_litert, export_onnx])
def test_an_unknown_output(export, model, tmp_path):
    with pytest.raises(ValueError, match=r"`outputs` must be some of .*Received: .*'scores'"):
        export(model, tmp_path / "tiny", outputs=("scores",))


def test_a_model_without_a_head_has_no_logits(tmp_path):
    model = build_vit(tiny_config(classes=None))
    with pytest.raises(ValueError, match=r"`outputs` must be some of 'features'"):
        export_onnx(model, tmp_path / "tiny.onnx", outputs=("logits",))


@pytest.mark.parametrize("export", EXPORTS)
def test_a_directory_that_cannot_be_written_to(export, model, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(OSError, match=r"Cannot write to the directory of .*file"):
        export(model, tmp_path / "file" / "exported")


@pytest.mark.parametrize(
    "numbers",
    [{0: "dog", 1: "cat"}, {"cat": 1, "dog": 0}, {np.int64(0): "dog", np.int64(1): "cat"}],
)
def test_labels_with_numbers_are_in_the_order_of_the_numbers(numbers):
    assert check_labels(numbers, 2) == ["dog", "cat"]
    model = build_vit(tiny_config(classes=2))
    model.class_names = numbers
    assert model.class_names == ("dog", "cat")
    for wrong in ({"cat": 1, "dog": 2}, {"cat": 0, "dog": 0}, {"cat": "a", "dog": "b"}):
        with pytest.raises(ValueError, match=r"must be 0 to 1, one for each.* Received: {'cat'"):
            check_labels(wrong, 2)


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize(
    ("labels", "received"), [(["a"] * 9, "9 labels"), ("cat", "the string 'cat'")]
)
def test_a_wrong_number_of_labels(export, labels, received, model, tmp_path):
    with pytest.raises(ValueError, match=f"each of the model's 10 classes.*Received: {received}"):
        export(model, tmp_path / "exported", labels=labels)


@pytest.mark.parametrize("export", EXPORTS)
def test_an_unsupported_precision(export, model, tmp_path):
    with pytest.raises(ValueError, match=r"`precision` must be one of .*Received: 'int2'"):
        export(model, tmp_path / "exported", precision="int2")
    assert "int2" not in POLICIES


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 4)])
def test_images_of_any_size_with_other_channels(shape, model, tmp_path):
    images = [np.zeros((8, 9, 3)), np.zeros(shape)]
    with pytest.raises(ValueError, match=r"must have the shape \(h, w, 3\). Received: image 1 of"):
        export_onnx(model, tmp_path / "tiny.onnx", images=images)


@pytest.mark.parametrize(
    ("value", "message"),
    [(1.0, r"look like a range of \[0, 1\]"), (-1.0, "not normalised"), (np.nan, "not normalised")],
)
def test_a_list_of_images_that_are_not_pixels(value, message, model, tmp_path):
    images = [np.zeros((8, 9, 3)), np.full((9, 8, 3), value)]
    with pytest.raises(ValueError, match=message):
        export_onnx(model, tmp_path / "tiny.onnx", images=images)
    with pytest.raises(ValueError, match=message):  # ranges of 8 bits would come from them
        export_litert(model, tmp_path / "tiny.tflite", "int8", calibration=images)


def test_pixels_that_were_resized_may_exceed_their_range_by_rounding(model):
    images = np.full((1, 32, 32, 3), 255.00002, "float32")
    inference = prepare(model)
    np.testing.assert_array_equal(verification_images(images, inference), images)
    with pytest.raises(ValueError, match=r"values from 255\.02 to 255\.02"):
        verification_images(images + 0.02, inference)


def test_operators_unsupported_by_litert(tmp_path):
    import tensorflow as tf

    function = tf.function(lambda x: {"y": tf.linalg.cholesky(x)})
    spec = tf.TensorSpec((2, 2), tf.float32, "x")
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function(spec)]
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.SELECT_TF_OPS]
    (tmp_path / "flex.tflite").write_bytes(converter.convert())
    with pytest.raises(ValueError, match=r"operators that LiteRT does not have: FlexCholesky"):
        check_operators(tmp_path / "flex.tflite")


def test_a_missing_litert_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformer\[litert\]"):
        _interpreter(tmp_path / "tiny.tflite")


def test_any_model_with_preprocessing_can_be_exported(tmp_path):
    model = functional()
    pixels = np.random.default_rng(0).uniform(0, 255, (3, 8, 8, 3)).astype("float32")
    report = export_onnx(
        model, tmp_path / "m.onnx", preprocessing=Preprocessing(100.0, 50.0), images=pixels
    )
    assert report.max_difference < 1e-5


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("export", [export_litert, export_onnx])
def test_a_conversion_without_address_space_ends_in_a_message(export, tmp_path):
    """The libraries would end the process with std::bad_alloc."""
    import resource

    model, before = build_vit(tiny_config()), resource.getrlimit(resource.RLIMIT_AS)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (900 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        with pytest.raises(MemoryError, match=r"takes about 1,07.* leaves [\d,]{11}\. Raise it"):
            export(model, tmp_path / "a.onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert not list(tmp_path.iterdir())
