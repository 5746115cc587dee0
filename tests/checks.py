"""Checks that every layer must pass."""

from __future__ import annotations

import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import fill_random


def quick(values, *chosen):
    """Parameters of a test of which the quick suite runs the chosen ones alone."""
    assert all(value in values for value in chosen)
    return [
        v
        if v in chosen
        else pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.slow)
        for v in values
    ]


POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
_COMPILED: set[type] = set()  # classes that this process has compiled with XLA


def check_layer(layer, shape, expected_shape=None, atol=1e-5):
    """Checks config round trip, saving, shapes, graph mode, XLA, dtype policies and gradients.

    XLA compiles the first layer of each class only; the tests of the models compile the options.

    Args:
        layer: A layer that is not built yet.
        shape: Input shape without the batch.
        expected_shape: Output shape without the batch; the input's own by default.
        atol: Largest difference between eager mode, graph mode and XLA.
    """
    expected_shape = tuple(shape if expected_shape is None else expected_shape)
    rebuilt = check_config(layer)
    inputs = keras.Input(shape)
    outputs = layer(inputs)
    assert tuple(outputs.shape) == (None, *expected_shape)
    model = keras.Model(inputs, outputs)
    fill_random(model)
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype("float32")
    expected = keras.ops.convert_to_numpy(layer(x))
    assert expected.shape == (3, *expected_shape)
    assert np.isfinite(expected).all()
    modes = (False,) if type(layer) in _COMPILED else (False, True)
    _COMPILED.add(type(layer))
    for jit_compile in modes:
        compiled = tf.function(layer, jit_compile=jit_compile)
        np.testing.assert_allclose(compiled(tf.constant(x)), expected, rtol=0, atol=atol)
    check_saved(model, x, expected)
    check_gradients(layer, x)
    for policy in POLICIES:
        check_policy(type(rebuilt), layer.get_config(), policy, layer, x, expected)


def check_config(layer):
    """Checks that `from_config(get_config())` keeps the configuration, also through JSON."""
    config = layer.get_config()
    rebuilt = type(layer).from_config(config)
    assert rebuilt.get_config() == config
    serialized = keras.saving.serialize_keras_object(layer)
    assert keras.saving.deserialize_keras_object(serialized).get_config() == config
    return rebuilt


def check_saved(model, x, expected):
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/layer.keras")
        reloaded = keras.saving.load_model(f"{folder}/layer.keras", safe_mode=True)
    assert [w.path for w in reloaded.weights] == [w.path for w in model.weights]
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(reloaded(x)), expected)


def check_gradients(layer, x):
    """Checks that every trainable weight gets a gradient with values other than zero."""
    with tf.GradientTape() as tape:
        y = layer(tf.constant(x), training=True)
        loss = tf.reduce_sum(tf.square(y) * tf.range(1.0, y.shape[-1] + 1.0))
    gradients = tape.gradient(loss, [w.value for w in layer.trainable_weights])
    for weight, gradient in zip(layer.trainable_weights, gradients, strict=True):
        assert gradient is not None, weight.path
        assert np.abs(gradient).max() > 0, weight.path


def check_policy(cls, config, policy, layer, x, expected):
    """Checks the output under a dtype policy: its dtype, and values near those of float32."""
    twin = cls.from_config({**config, "dtype": policy})
    assert twin.dtype_policy.name == policy
    twin.build((None, *x.shape[1:]))
    for ours, theirs in zip(twin.weights, layer.weights, strict=True):
        assert ours.dtype == theirs.dtype  # variables stay float32
        ours.assign(theirs)
    y = twin(x)
    # Layers of the residual stream keep it in the type of the variables.
    assert keras.backend.standardize_dtype(y.dtype) in (twin.compute_dtype, twin.variable_dtype)
    tolerance = {"float32": 1e-6, "mixed_bfloat16": 0.1, "mixed_float16": 0.02}[policy]
    scale = np.abs(expected).max()
    y = keras.ops.convert_to_numpy(keras.ops.cast(y, "float32"))
    np.testing.assert_allclose(y / scale, expected / scale, rtol=0, atol=tolerance)
