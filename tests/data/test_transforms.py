"""Tests `eval_transform` against the definitions."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.transforms import eval_transform, normalize
from scripts.golden.eval_cases import all_images, image_of
from scripts.golden.eval_transforms import equal_images, logit_difference, read_cases, transformed


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


CASES = read_cases()


# Wide, tall, a strip, smaller than the result; both orders of Pillow's passes.
FEW = (0, 5, 9, 11, 16, 17)


QUICK = (
    "timm ViT", "timm BiT", "timm squash", "timm oblong border", "transformers DeiT",
    "transformers odd",
)  # fmt: skip


@pytest.mark.parametrize("title", QUICK)
def test_pixels_are_those_of_the_library(title):
    case = CASES["pixels"][title]
    case = {**case, "crc32": [case["crc32"][index] for index in FEW]}
    pixels = transformed(case, title.startswith("timm"), [image_of(index) for index in FEW])
    assert equal_images(case, pixels) == len(FEW)


@pytest.mark.slow
@pytest.mark.parametrize("title", CASES["pixels"])
def test_pixels_of_all_images_are_those_of_the_library(title):
    case, images = CASES["pixels"][title], all_images()
    pixels = transformed(case, title.startswith("timm"), images)
    assert equal_images(case, pixels) == len(images)


@pytest.mark.parametrize("title", CASES["logits"])
def test_logits_are_those_of_the_library(title, tmp_path):
    images = [image_of(index) for index in range(10)]
    assert logit_difference(title, CASES["logits"][title], images, tmp_path) < 2e-5


def test_float_images_are_rounded_first():
    """timm and transformers take 8-bit images."""
    image = np.random.default_rng(0).uniform(-10, 265, (40, 30, 3)).astype("float32")
    rounded = np.round(np.clip(image, 0, 255)).astype("uint8")
    preprocessing = Preprocessing(interpolation="bicubic", crop_ratio=0.9, library="timm")
    expected = eval_transform(tf.constant(rounded), preprocessing, (24, 24))
    np.testing.assert_array_equal(eval_transform(image, preprocessing, (24, 24)), expected)
