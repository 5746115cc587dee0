"""What Image GPT draws, its palettes by k-means, and sheets of images."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit import image_gpt
from tests.image_gpt.test_model import (
    COLORS,
    CONFIG,
    MASKED,
    PALETTE,
    RANDOM,
    expected_logits,
    filled,
    images_of,
)


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_drawing_with_kept_keys_and_values_is_drawing_without(temperature):
    model = filled(stddev=0.4)
    images = images_of(model)
    drawn = image_gpt.sample_pixels(model, images, rows=2, temperature=temperature, seed=5)
    chances = np.random.default_rng(5).random((3, 24), np.float32)
    colors = np.where(np.arange(24) < 12, COLORS, 0)
    for index in range(12, 24):  # the whole sequence for every pixel
        logits = expected_logits(model, colors)[:, index]
        if temperature:
            shares = np.cumsum(np.exp(logits / temperature), -1)
            colors[:, index] = (shares <= chances[:, index, None] * shares[:, -1:]).sum(-1)
        else:
            colors[:, index] = logits.argmax(-1)
    np.testing.assert_array_equal(drawn, images_of(model, colors))
    assert (colors[:, 12:] != COLORS[:, 12:]).any()
    other = image_gpt.sample_pixels(model, images, rows=2, temperature=temperature, seed=6)
    assert (drawn[:, :2] == images[:, :2]).all() and (other == drawn).all() == (temperature == 0)


def test_palettes_by_k_means():
    centers = np.array([[20, 30, 40], [200, 90, 10], [120, 220, 240]])
    pixels = centers[RANDOM.integers(0, 3, (5, 8, 8))] + RANDOM.integers(-9, 10, (5, 8, 8, 3))
    found = image_gpt.fit_palette(pixels.astype("uint8"), 3, seed=1)
    expected = centers / 127.5 - 1
    distances = np.abs(found[:, None] - expected).max(-1)
    assert sorted(distances.argmin(1)) == [0, 1, 2] and distances.min(1).max() < 0.02
    with pytest.raises(ValueError, match="have 2 colours among 8 pixels"):
        image_gpt.fit_palette(np.array([0, 255] * 4).reshape(1, 2, 4, 1), 3)


def test_errors_say_what_came():
    with pytest.raises(ValueError, match=r"without `mask_rate`\."):
        image_gpt.sample_pixels(image_gpt.build_image_gpt(MASKED, PALETTE))
    with pytest.raises(ValueError, match=r"`rows` 0 to 4\. Received: temperature=1.0, rows=5"):
        image_gpt.sample_pixels(image_gpt.build_image_gpt(CONFIG, PALETTE), rows=5)


def test_sheets_lay_images_out_row_by_row():
    images = np.arange(5, dtype="uint8")[:, None, None, None] * np.ones((5, 2, 3, 1), "uint8")
    sheet = image_gpt.image_sheet(images, columns=2, scale=2)
    assert sheet.shape == (3 * 6, 2 * 8, 1)
    assert [sheet[r, c, 0] for r, c in ((0, 0), (0, 8), (6, 0), (12, 0), (12, 8))] == [
        0, 1, 2, 4, 255]  # fmt: skip
