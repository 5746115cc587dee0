"""Tests the random crops against the definitions of the official code, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batches import train_transform
from keras_vit.data.crops import inception_crop, inception_window, resized_crop
from keras_vit.data.decode import MAX_PIXELS, decode, decode_window
from keras_vit.data.input_transform import InputTransform
from tests.data.pictures import encoded, pixels

SEEDS = [(7, n) for n in range(25)]
INCEPTION = Augmentation()
AREAS = INCEPTION.area_range


def bilinear(x, size):
    """Bilinear resizing with half-pixel centres and no antialiasing, in float64."""
    for axis, (old, new) in enumerate(zip(x.shape[:2], size, strict=True)):
        place = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(place).astype(int)
        high, share = np.minimum(low + 1, old - 1), place - low
        shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        share = share.reshape(shape)
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


@pytest.mark.parametrize("kind", ["pixels", "png", "jpeg"])
def test_inception_crop_is_a_window_resized(kind):
    x = pixels(50, 80)
    image = x if kind == "pixels" else tf.constant(encoded(x, kind))
    whole = decode(tf.constant(image)).numpy()
    for seed in SEEDS[:5]:
        top, left, height, width = inception_window(tf.shape(whole), seed, AREAS).numpy()
        window = whole[top : top + height, left : left + width]
        transform = InputTransform((24, 32))
        crop = inception_crop(tf.constant(image), INCEPTION, transform, seed, MAX_PIXELS).numpy()
        if kind == "jpeg":  # libjpeg smooths colours across the border of what it decodes
            decoded = decode_window(image, lambda shape, s=seed: inception_window(shape, s, AREAS))
            inner = np.abs(decoded.numpy().astype(int) - window)[2:-2, 2:-2]
            assert inner.max(initial=0) == 0
            window = decoded.numpy()
        np.testing.assert_allclose(crop, bilinear(window.astype("float64"), (24, 32)), atol=1e-3)


def test_windows_have_the_official_areas_and_proportions():
    shape = np.array([300, 400, 3])
    windows = np.array([inception_window(shape, (3, n), AREAS) for n in range(400)])
    top, left, height, width = windows.T
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height <= 300).all() and (left + width <= 400).all()
    share, aspect = height * width / 120_000, width / height
    assert 0.045 < share.min() < 0.1 and 0.85 < share.max() <= 1
    assert 0.74 < aspect.min() < 0.8 and 1.25 < aspect.max() < 1.35
    # TensorFlow draws proportions, then a height, both uniformly; not the area.
    ratio = np.linspace(0.75, 1.33, 1001)
    low, high = np.sqrt(6_000 / ratio), np.minimum(np.sqrt(120_000 / ratio), 300)
    squares = (high**2 + high * low + low**2) / 3  # mean of the squared height
    assert abs(share.mean() - np.mean(squares * ratio) / 120_000) < 0.03


def test_random_operations_are_those_of_the_official_code():
    """The same operation with the same random numbers: only where these come from differs."""
    x = tf.constant(pixels(50, 80))
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(x),
        tf.zeros((0, 0, 4)),
        (1, 2),
        area_range=(0.05, 1.0),
        min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )
    official = tf.image.resize(tf.slice(x, begin, size), (24, 24))
    crop = inception_crop(x, INCEPTION, InputTransform((24, 24)), (1, 2), MAX_PIXELS)
    np.testing.assert_array_equal(crop, official)


def test_flips_half():
    x, transform = tf.constant(pixels(4, 6)), InputTransform((4, 6))
    chosen = Augmentation(crop="none")
    flips = [train_transform(x, chosen, transform, (1, n), MAX_PIXELS) for n in range(200)]
    flipped = [not np.array_equal(flip, x) for flip in flips]
    assert 70 < sum(flipped) < 130
    for flip, is_flipped in zip(flips, flipped, strict=True):
        np.testing.assert_array_equal(flip, x[:, ::-1] if is_flipped else x)


@pytest.mark.parametrize("keep", [False, True])
def test_resized_crop_is_a_place_in_the_resized_image(keep):
    x = pixels(50, 80)
    resized = bilinear(x.astype("float64"), (28, 45) if keep else (28, 28))
    corners = set()
    chosen = Augmentation(crop="resize_small" if keep else "resize", resize_size=(28, 28))
    for seed in SEEDS:
        transform = InputTransform((24, 24))
        crop = resized_crop(tf.constant(x), chosen, transform, seed, MAX_PIXELS).numpy()
        fits = [
            (i, j)
            for i in range(resized.shape[0] - 23)
            for j in range(resized.shape[1] - 23)
            if np.abs(resized[i : i + 24, j : j + 24] - crop).max() < 1e-3
        ]
        assert len(fits) == 1
        corners.add(fits[0])
    assert len(corners) > 10


def test_a_resized_image_covers_models_of_other_proportions():
    x = tf.constant(pixels(50, 50))
    chosen = Augmentation(crop="resize_small", resize_size=(28, 56))
    crop = resized_crop(x, chosen, InputTransform((24, 48)), SEEDS[0], MAX_PIXELS)
    assert crop.shape == (24, 48, 3)


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_a_window_of_a_large_image_needs_no_more_than_the_window(kind):
    x = pixels(30, 20)

    def decode_part(channels):
        part = tf.constant([8, 0, 16, 20])
        return decode_window(tf.constant(encoded(x, kind)), lambda shape: part, channels)

    window, with_opacity = decode_part(3), decode_part(4).numpy()
    assert window.shape == (16, 20, 3)
    np.testing.assert_array_equal(with_opacity[..., :3], window)
    assert (with_opacity[..., 3] == 255).all()
    whole = decode(tf.constant(encoded(x, kind))).numpy()
    assert np.abs(window.numpy()[2:-2].astype(int) - whole[10:22]).max() <= (kind == "jpeg")
