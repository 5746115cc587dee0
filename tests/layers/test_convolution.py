"""Tests standardised convolutions."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.convolution import StdConv2D, standardize
from tests import reference_resnet


@pytest.mark.parametrize("form", ["std", "variance"])
def test_kernels_are_standardised_in_their_own_form(form):
    kernel = np.random.default_rng(0).normal(1, 1e-3, (3, 3, 4, 5))  # small: epsilon shows
    ours = keras.ops.convert_to_numpy(standardize(keras.ops.array(kernel, "float64"), form))
    np.testing.assert_allclose(ours, reference_resnet.standardized(kernel, form), rtol=1e-6)
    other = reference_resnet.standardized(kernel, "std" if form == "variance" else "variance")
    assert np.abs(ours - other).max() > 1e-3
    np.testing.assert_allclose(ours.mean((0, 1, 2)), 0, atol=1e-9)


def test_a_kernel_of_zeros_has_a_finite_gradient():
    for form in ("std", "variance"):
        kernel = tf.Variable(tf.zeros((1, 1, 4, 2)))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(standardize(kernel, form) * tf.random.normal((1, 1, 4, 2)))
        assert np.isfinite(tape.gradient(loss, kernel)).all()


def test_kernels_are_standardised_in_float32_under_half_precision():
    """In bfloat16, weights of mean 1 and deviation 1e-3 would be left with two values."""
    layer = StdConv2D(4, 3, dtype="mixed_bfloat16")
    layer.build((None, 8, 8, 16))
    kernel = np.random.default_rng(0).normal(1, 1e-3, layer.kernel.shape)
    layer.kernel.assign(kernel)
    images = np.random.default_rng(1).normal(size=(2, 8, 8, 16))
    expected = reference_resnet.convolution(
        images, reference_resnet.standardized(kernel, "std"), 1, "same"
    )
    ours = keras.ops.convert_to_numpy(keras.ops.cast(layer(images), "float32"))
    assert np.abs(ours - expected).max() < 0.02 * np.abs(expected).max()


def test_the_two_paddings_differ_at_even_sizes_only():
    images = np.random.default_rng(0).normal(size=(1, 8, 8, 3)).astype("float32")
    same, fixed = StdConv2D(4, 3, 2, "same"), StdConv2D(4, 3, 2, "fixed")
    same(images), fixed(images)
    fixed.set_weights(same.get_weights())
    assert np.abs(same(images) - fixed(images)).max() > 0.1
    odd = images[:, :7, :7]
    np.testing.assert_allclose(same(odd), fixed(odd), rtol=0, atol=1e-6)
