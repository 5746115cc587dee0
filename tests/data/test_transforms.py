"""Tests `eval_transform` against the definitions."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.transforms import eval_transform, normalize


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 256, (50, 80, 3), "uint8")


def test_squash_is_the_official_codes(image):
    pixels = eval_transform(image, Preprocessing(), (32, 32))
    expected = tf.image.resize(image, (32, 32))  # bilinear, neither antialiased nor rounded
    np.testing.assert_array_equal(pixels, expected)


def test_crop_is_big_visions(image):
    # resize_small(36, area, cut to uint8), then central_crop(32), its offset rounded down.
    pixels = eval_transform(image, Preprocessing(interpolation="area", crop_ratio=0.875), (32, 32))
    small = np.asarray(tf.image.resize(image, (36, 58), "area")).astype("uint8")
    np.testing.assert_array_equal(pixels, small[2:34, 13:45])


def test_bicubic_is_pillows(image):
    pixels = eval_transform(image, Preprocessing(interpolation="bicubic"), (32, 32))
    pillow = PIL.Image.fromarray(image).resize((32, 32), PIL.Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(pixels) - np.asarray(pillow, "float32")).max() <= 1


def test_an_image_of_the_models_size_stays(image):
    pixels = eval_transform(image, Preprocessing(), (50, 80))
    np.testing.assert_array_equal(pixels, image)


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3)])
def test_extreme_proportions(size):
    image = np.zeros((*size, 3), "uint8")
    assert eval_transform(image, Preprocessing(crop_ratio=0.9), (16, 24)).shape == (16, 24, 3)


def test_normalize_is_the_models(image):
    pixels = normalize(image, Preprocessing(mean=(1, 2, 3), std=(4, 5, 6)))
    expected = (image - np.array([1.0, 2, 3])) / [4, 5, 6]
    np.testing.assert_allclose(pixels, expected, rtol=1e-6)


def test_resizing_floats_first_changes_nothing():
    """Small images are resized as floats, which is faster; large ones as they are."""
    rng = np.random.default_rng(0)
    for size in ((20, 30), (50, 80), (300, 200)):  # below and above 4 pixels per result
        image = rng.integers(0, 256, (*size, 3), "uint8")
        pixels = tf.function(lambda x: eval_transform(x, Preprocessing(), (32, 32)))(image)
        np.testing.assert_array_equal(pixels, tf.image.resize(image, (32, 32)))


def test_normalize_takes_rows_of_one_image_and_batches():
    images = np.random.default_rng(0).uniform(0, 255, (2, 6, 5, 3)).astype("float32")
    preprocessing = Preprocessing(mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    batch = normalize(tf.constant(images), preprocessing)
    for image, expected in zip(images, batch, strict=True):
        np.testing.assert_array_equal(normalize(tf.constant(image), preprocessing), expected)
