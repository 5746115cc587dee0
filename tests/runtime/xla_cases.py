"""Programs whose meaning XLA would change, run in a new process for a setting of oneDNN."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.runtime import compilers
from keras_vit.segmentation.model import build_segmenter
from tests.fixtures import KERAS, tiny_config, tiny_vit

IMAGES = np.random.default_rng(0).uniform(0, 255, (8, 16, 16, 3)).astype("float32")
LABELS = np.arange(8) % 3
SPARSE = keras.losses.SparseCategoricalCrossentropy
messages: list[str] = []


class Notes(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())


def build(plain: bool = False, **changes) -> keras.Model:
    model = tiny_vit(stddev=0.1, image_size=16, patch_size=8, depth=1, classes=3, **changes)
    return keras.Model(model.inputs, model.outputs[0]) if plain else model


def outcome(plain: bool, loss=None, metrics=None, y=LABELS, batch_size=4, **changes) -> tuple:
    """What `fit` and `evaluate` answer, or the kind of the error; and whether weights are NaN."""
    model = build(plain, **changes)
    model.compile(keras.optimizers.SGD(1e-3), loss or SPARSE(from_logits=True), metrics=metrics)
    try:
        model.fit(IMAGES, y, batch_size, verbose=0, shuffle=False)
        answers = np.ravel(model.evaluate(IMAGES, y, batch_size, verbose=0)).round(4).tolist()
    except Exception as error:
        answers = [type(error).__name__, "label value of 3" in str(error)]
    return answers, any(np.isnan(weight).any() for weight in model.get_weights())


def asserting(y, logits):
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(logits), -9e9)]):
        return keras.ops.mean(logits, axis=-1)


def printing(y, logits):
    tf.print("loss", tf.shape(logits), output_stream=f"file://{os.devnull}")
    return keras.ops.mean(logits, axis=-1)


def in_numpy(y, logits):
    means = tf.numpy_function(lambda a: a.mean(-1), [logits], tf.float32)
    return tf.ensure_shape(means, logits.shape[:1])


def lookup(y, logits):
    table = keras.ops.reshape(keras.ops.arange(3, dtype="float32"), (3,))
    return keras.ops.take(table, keras.ops.cast(keras.ops.reshape(y, (-1,)), "int32")) * 1.0


def counting(y, logits):
    """Its inner shape differs from batch to batch: XLA would compile each."""
    ones = tf.fill([tf.reduce_sum(tf.cast(y, "int32"))], 0.1)
    return keras.ops.mean(logits, axis=-1) + keras.ops.sum(ones)


def to_a_power(y, logits):
    return keras.ops.mean(logits, axis=-1) + keras.ops.cast(
        2 ** (keras.ops.cast(y, "int32") - 1), "float32"
    )


def at_least(y, logits):
    """NaN, which XLA loses in a second input."""
    y = keras.ops.cast(keras.ops.reshape(y, (-1,)), "float32")
    return keras.ops.maximum(keras.ops.mean(logits, axis=-1), keras.ops.log(-1 - y))


def refused(y, logits):
    """Allowed by the list, but XLA has no sums of int8."""
    sums = keras.ops.cumsum(keras.ops.cast(y, "int8"))
    return keras.ops.mean(logits, axis=-1) + keras.ops.cast(sums, "float32")


LOSSES = {
    "labels": ({"y": LABELS + 1}, "none"),
    "negative labels": ({"y": LABELS - 1}, "none"),
    "assert": ({"loss": asserting}, "Assert"),
    "shape": ({"loss": counting}, "Fill"),
    "negative power": ({"loss": to_a_power}, "none"),
    "NaN": ({"metrics": [at_least]}, "Maximum"),
    "refused by XLA": ({"loss": refused}, "unsupported operations"),
    "print": ({"loss": printing}, "StringFormat"),
    "numpy metric": ({"metrics": [in_numpy]}, "PyFunc"),
    "lookup": ({"metrics": [lookup], "y": LABELS}, "none"),
    "ignored class": (
        {"loss": SPARSE(from_logits=True, ignore_class=255), "y": np.where(LABELS, LABELS, 255)},
        "none",
    ),
}


# A lost error, a wrong answer, a refusal before XLA. A refusal by XLA is in `check_predict`.
FEW = ("labels", "negative power", "NaN")


def check_training(uses_xla: bool, names: Iterable[str]) -> None:
    for name in names:
        arguments, operation = LOSSES[name]
        messages.clear()
        received, expected = outcome(False, **arguments), outcome(True, **arguments)
        assert str(received) == str(expected), (name, received, expected, messages)  # NaN
        fails = name in ("labels", "negative labels", "negative power", "assert")
        assert isinstance(received[0][0], str) is fails and not received[1], (name, received)
        if uses_xla and operation != "none":
            assert len(messages) == 1 and operation in messages[0], (name, messages)
            assert "jit_compile=True" in messages[0]
        else:
            assert not messages, (name, messages)


def check_numerics() -> None:
    tf.debugging.enable_check_numerics()
    try:
        assert outcome(False) == outcome(True)
    finally:
        tf.debugging.disable_check_numerics()


def check_shapes() -> None:
    model = build(any_size=True, position_resize="bilinear")
    model.compile("sgd", SPARSE(from_logits=True))
    assert model.jit_compile is False and "Chosen" not in type(make_predict(model)).__name__
    model = build()
    model.compile("sgd", SPARSE(from_logits=True))
    for size in (1, 2, 3, 4, 5, 6):
        model.train_on_batch(IMAGES[:size], LABELS[:size])
        model.predict_on_batch(IMAGES[:size])
    assert sum(model.predict_function._choices.values()) <= 3


def make_predict(model):
    model.make_predict_function()
    return model.predict_function


class Backwards(keras.layers.Layer):
    """A NumPy step inside of a model."""

    def call(self, x):
        return tf.ensure_shape(
            tf.numpy_function(lambda a: a[:, ::-1], [x], tf.float32), (None, 16, 16, 3)
        )

    def compute_output_shape(self, shape):
        return shape


class Refused(keras.layers.Layer):
    """Allowed by the list, but XLA has no sums of int8."""

    def call(self, x):
        return x + keras.ops.cast(keras.ops.cumsum(keras.ops.cast(x, "int8"), 0), x.dtype)


class Decode(keras.layers.Layer):
    """Images from raw bytes."""

    def call(self, x):
        pixels = tf.cast(tf.io.decode_raw(x, tf.uint8), "float32")
        return keras.ops.reshape(pixels, (-1, 16, 16, 3))

    def compute_output_spec(self, x):
        return keras.KerasTensor((None, 16, 16, 3), "float32")


def check_predict() -> None:
    compilers.prefers_xla = lambda *arguments: True  # not only where it is faster
    strings = tf.data.Dataset.from_tensor_slices(
        [image.astype("uint8").tobytes() for image in IMAGES]
    ).batch(4)
    ids = np.array([[0, 1], [2, 3]])
    embedded = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(4, 2)])
    vit = build()
    cases = [
        (keras.Input((16, 16, 3)), lambda x: vit(Backwards()(x)), IMAGES),
        (keras.Input((16, 16, 3)), lambda x: vit(Refused()(x)), IMAGES % 9),
        (keras.Input((), dtype="string"), lambda x: vit(Decode()(x)), strings),
        (keras.Input((2,), dtype="int32"), embedded, ids),
        (keras.Input((2,), dtype="int32"), embedded, ids + 3),
    ]
    for inputs, function, data in cases:
        answers = []
        messages.clear()
        for kind in (keras.Model, keras_vit.Model):
            model = kind(inputs, function(inputs))
            try:
                answers.append(model.predict(data, verbose=0).round(4).tolist())
            except Exception as error:
                answers.append(type(error).__name__)
        assert answers[0] == answers[1], answers
        if isinstance(data, np.ndarray) and data.dtype == "float32":
            assert len(messages) == 1 and "predict of" in messages[0], messages
    vit.compile("sgd", SPARSE(from_logits=True), steps_per_execution=2)
    np.testing.assert_allclose(vit.predict(IMAGES, 2, verbose=0), vit(IMAGES), atol=1e-5)


def check_known_steps(uses_xla: bool) -> None:
    """What XLA was chosen for is still compiled."""
    one_hot = keras.utils.to_categorical(LABELS, 3)
    cases = [
        (SPARSE(from_logits=True), ["accuracy"], LABELS),
        (keras.losses.CategoricalCrossentropy(from_logits=True), ["accuracy"], one_hot),
    ]
    for loss, metrics, y in cases:
        messages.clear()
        model = build()
        model.compile(keras_vit.train.AdamW(1e-3), loss, metrics=metrics)
        model.fit(IMAGES, y, 3, verbose=0, validation_data=(IMAGES, y))
        assert not messages, messages
        assert model.jit_compile is uses_xla
        if uses_xla:
            assert len(model.test_function._shapes) == 2  # of 3 images, and of the rest
    if KERAS < (3, 12):
        return  # its losses multiply labels by masks, which is not known to mean the same
    segmenter = build_segmenter(keras_vit.build_vit(tiny_config(depth=1, classes=None)), 4)
    iou = keras.metrics.MeanIoU(4, ignore_class=255, sparse_y_pred=False)
    segmenter.compile("sgd", SPARSE(from_logits=True, ignore_class=255), metrics=[iou])
    masks = np.full((4, *segmenter.output.shape[1:3]), 255, "uint8")
    masks[:, :9] = 3
    segmenter.fit(np.zeros((4, 32, 32, 3)), masks, 4, verbose=0)
    assert not messages and segmenter.jit_compile is uses_xla, messages


def check(setting: str, extent: str) -> None:
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == setting
    os.environ["KERAS_VIT_CACHE"] = tempfile.mkdtemp()
    logger = logging.getLogger("keras_vit")
    logger.setLevel("INFO")
    logger.addHandler(Notes())
    uses_xla = setting == "0"
    check_known_steps(uses_xla)
    check_training(uses_xla, FEW if extent == "few" else LOSSES)
    check_numerics()
    check_shapes()
    check_predict()
    print("all mean the same")
