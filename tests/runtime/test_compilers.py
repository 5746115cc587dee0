"""The choice between graph and XLA, by a table."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.models.vit import build_vit
from keras_vit.runtime.compilers import RULES, SWITCH, compute_dtype, prefers_xla
from tests.fixtures import tiny_config, tiny_vit

IMAGES = np.random.default_rng(0).uniform(0, 255, (4, 16, 16, 3)).astype("float32")


@pytest.fixture(scope="module")
def model():
    return tiny_vit(stddev=0.1, image_size=16, patch_size=8, depth=2)


@pytest.fixture
def xla(monkeypatch):
    """XLA as for users."""
    monkeypatch.delenv(SWITCH)


@pytest.mark.parametrize(("dtype", "onednn"), RULES, ids=str)
def test_the_table_decides(dtype, onednn, xla, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", str(int(onednn)))
    policy, uses = {"bfloat16": "mixed_bfloat16"}.get(dtype, dtype), RULES[dtype, onednn]
    keras.config.set_dtype_policy(policy)
    try:
        model = build_vit(tiny_config(depth=1))
    finally:
        keras.config.set_dtype_policy("float32")
    assert [use for use in ("predict", "fit") if prefers_xla(model, use)] == [*uses]
    model.compile("sgd", "mse")
    assert model.jit_compile is ("fit" in uses)
    monkeypatch.setenv(SWITCH, "0")
    assert not prefers_xla(model, "predict") and not prefers_xla(model, "fit")


@pytest.mark.parametrize("value", ["untimed", "", "True"])
def test_an_unknown_string_is_refused(model, value):
    with pytest.raises(ValueError, match=f"`jit_compile` must be one of 'auto', .*{value!r}"):
        model.compile("sgd", "mse", jit_compile=value)


def test_keras_chooses_where_xla_was_not_measured(model, xla):
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        assert not prefers_xla(model, "predict")
    half = build_vit(tiny_config(image_size=16, patch_size=8, depth=1))
    half.get_layer("block_0").supports_jit = False
    assert not prefers_xla(half, "predict")
    keras.config.set_dtype_policy("mixed_float16")
    try:
        half = build_vit(tiny_config(depth=1))
    finally:
        keras.config.set_dtype_policy("float32")
    assert not prefers_xla(half, "predict")


@pytest.mark.parametrize(
    ("layer", "is_slow"),
    [
        (keras.layers.DepthwiseConv2D(3), True),
        (keras.layers.Conv2D(256, 3), True),
        (keras.layers.Conv2D(257, 3), False),
        (keras.layers.Conv2D(4, 1), False),
        (keras.layers.Conv2DTranspose(4, 3), False),
    ],
)
def test_convolutions_that_are_slow_in_xla_stay_in_onednn(layer, is_slow, xla, monkeypatch):
    inner = keras.Sequential([keras.Input((8, 8, 3)), layer])
    model = keras_vit.Model(inputs := keras.Input((8, 8, 3)), inner(inputs))
    for onednn in (False, True):
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", str(int(onednn)))
        assert prefers_xla(model, "predict") is not (is_slow and onednn)


def test_predict_follows_the_rule(model, xla):
    model.compile(jit_compile=False)
    expected = model.predict(IMAGES, 3, verbose=0)
    model.compile()
    for received in (
        model.predict(IMAGES, 3, verbose=0),
        model.predict(tf.data.Dataset.from_tensor_slices((IMAGES, ["a"] * 4)).batch(3), verbose=0),
    ):
        np.testing.assert_allclose(received, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(IMAGES[:3]), expected[:3], atol=1e-5)
    chosen = model.predict_function
    assert chosen._compiled.experimental_get_tracing_count() == 1  # batches of 3
    assert chosen._graph.experimental_get_tracing_count() == 2  # and the last one
    assert chosen._choices == {3: True}


def test_the_rest_of_the_data_is_not_compiled(model, xla):
    model.compile()
    images = np.concatenate([IMAGES] * 3)
    expected = model(images)
    for count in (12, 11, 10, 9, 8, 11):  # rests of 4, 3, 2, 1, 0 and 3 images
        received = model.predict(images[:count], 8, verbose=0)
        np.testing.assert_allclose(received, expected[:count], rtol=0, atol=1e-5)
    data = tf.data.Dataset.from_tensor_slices(images).batch(8)
    np.testing.assert_allclose(model.predict(data, verbose=0), expected, rtol=0, atol=1e-5)
    assert model.predict_function._choices == {8: True}
    assert model.predict_function._compiled.experimental_get_tracing_count() == 1
    assert model.predict_function._graph.experimental_get_tracing_count() == 2  # any number
    model.predict(images[:8], verbose=0)
    model.predict(images[:3], verbose=0)  # the first batch of its data
    model.predict_on_batch(images[:2])
    assert model.predict_function._choices == {8: True, 3: True, 2: True}
    model.predict_on_batch(images[:5])  # a fourth size
    assert model.predict_function._choices[5] is False


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float32"])
def test_the_dtype_is_that_of_the_blocks(policy):
    """Not that of a head, which has more weights here than all blocks together."""
    keras.config.set_dtype_policy(policy)
    try:
        model = build_vit(tiny_config(classes=21_843))
    finally:
        keras.config.set_dtype_policy("float32")
    outer = keras_vit.Model(inputs := keras.Input((32, 32, 3)), model(inputs))
    head = model.get_layer("head")
    assert head.compute_dtype == "float32" and 2 * head.count_params() > model.count_params()
    assert compute_dtype(model) == compute_dtype(outer) == policy.removeprefix("mixed_")


def test_the_dtype_of_a_model_without_blocks_is_that_of_most_weights():
    inputs = keras.Input((4,))
    small = keras.layers.Dense(2, dtype="float64")(inputs)
    assert compute_dtype(keras.Model(inputs, keras.layers.Dense(9)(small))) == "float32"
