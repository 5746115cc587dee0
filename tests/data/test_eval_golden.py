"""Tests `eval_transform` against pixels and logits of timm and transformers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.transforms import eval_transform
from scripts.golden.eval_cases import all_images, image_of
from scripts.golden.eval_transforms import equal_images, logit_difference, read_cases, transformed

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
