"""Tests the layer that cuts images into patches."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.layers.patches import PatchEncoder
from tests import reference
from tests.checks import check_layer
from tests.layers.test_tokens import numpy


@pytest.mark.parametrize(
    ("patch_size", "shape", "num_patches"),
    [(8, (16, 24, 3), 6), ((4, 8), (8, 8, 1), 2), (1, (2, 3, 5), 6)],
)
def test_patch_encoder_passes_check_layer(patch_size, shape, num_patches):
    check_layer(PatchEncoder(patch_size, 12), shape, (num_patches, 12))


def test_patch_encoder_projects_row_major_patches():
    layer = PatchEncoder(4, 5)
    images = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype("float32")
    layer.build(images.shape)
    kernel = np.random.default_rng(1).normal(size=(4, 4, 3, 5)).astype("float32")
    layer.projection.kernel.assign(kernel)
    expected = reference.patches(images, 4) @ kernel.reshape(-1, 5)
    np.testing.assert_allclose(numpy(layer(images)), expected, rtol=0, atol=1e-5)


def test_patch_encoder_starts_as_the_official_one():
    layer = PatchEncoder(16, 768)
    layer.build((None, 32, 32, 3))
    kernel = numpy(layer.projection.kernel)
    assert kernel.std() == pytest.approx((16 * 16 * 3) ** -0.5, rel=0.01)  # LeCun normal
    # Truncated at two standard deviations of the normal that it is cut from.
    assert np.abs(kernel).max() <= 2.001 * (16 * 16 * 3) ** -0.5 / 0.87962566
    assert not numpy(layer.projection.bias).any()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((None, 30, 32, 3), r"height must be a whole number of patches.*6 pixels left.*Crop to 24"),
        ((None, 32, 4, 3), r"width must be a whole number of patches.*Resize to 8 pixels"),
        ((None, None, None, 3), r"all but the batch known"),
        ((None, 32, 32), r"\(batch, height, width, channels\)"),
    ],
)
def test_patch_encoder_names_what_is_wrong_with_an_image(shape, message):
    with pytest.raises(ValueError, match=message):
        PatchEncoder(8, 12).build(shape)


@pytest.mark.parametrize("arguments", [(0, 8), (8, 0), (8, 1.5), ((8, 8, 8), 8), ("8", 8)])
def test_patch_encoder_refuses_sizes_that_are_none(arguments):
    with pytest.raises(ValueError, match="must be a positive integer"):
        PatchEncoder(*arguments)


@pytest.mark.parametrize("any_size", [False, True])
@pytest.mark.parametrize("size", [(256, 16), (16, 256)])
def test_one_column_of_patches_in_bfloat16(size, any_size):
    """TensorFlow 2.21's bfloat16 convolution was off by the largest output here, on AMX."""
    exact = PatchEncoder(16, 32, any_size=any_size)
    images = np.random.default_rng(0).uniform(-1, 1, (8, *size, 3)).astype("float32")
    expected = np.asarray(exact(images))
    half = PatchEncoder(16, 32, any_size=any_size, dtype="mixed_bfloat16")
    half.build((None, None, None, 3) if any_size else images.shape)
    half.set_weights(exact.get_weights())
    found = np.asarray(keras.ops.cast(half(images), "float32"))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
