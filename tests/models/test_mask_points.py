"""Masks at points: as a loop over pixels computes them, and each prediction at its own points."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.models.mask_points import at_points, mask_losses


def value_at(image, across, down, nearest):
    """The value of an image at a point, 0 beyond its edges."""
    x, y = across * image.shape[1] - 0.5, down * image.shape[0] - 0.5
    padded = np.pad(image, 1)
    if nearest:
        return padded[int(np.rint(y)) + 1, int(np.rint(x)) + 1]
    left, top = int(np.floor(x)), int(np.floor(y))
    right, below = x - left, y - top
    corners = padded[top + 1 : top + 3, left + 1 : left + 3]
    return np.array([1 - below, below]) @ corners @ np.array([1 - right, right])


@pytest.mark.parametrize("nearest", [False, True])
def test_points_are_between_centres_of_pixels(nearest):
    random = np.random.default_rng(0)
    maps, points = random.normal(size=(2, 3, 5, 7)), random.uniform(size=(2, 40, 2))
    found = at_points(tf.constant(maps), tf.constant(points), nearest)
    expected = [
        [[value_at(image, *point, nearest) for point in some] for image in each]
        for each, some in zip(maps, points, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("nearest", [False, True])
def test_predictions_of_a_mask_are_compared_with_it_alone(nearest, monkeypatch):
    def uniform(shape):
        return tf.constant(np.random.default_rng(shape[1]).uniform(size=shape), tf.float32)

    monkeypatch.setattr(tf.random, "uniform", uniform)
    random = np.random.default_rng(1)
    logits = random.normal(size=(2, 3, 4, 5, 6)).astype("float32")
    masks = (random.uniform(size=(2, 3, 10, 12)) < 0.5).astype("float32")
    found = mask_losses(logits, masks, 8, 3, 0.75, nearest)
    each = logits.reshape(2, 12, 1, 5, 6), np.repeat(masks, 4, axis=1)
    for ours, expected in zip(found, mask_losses(*each, 8, 3, 0.75, nearest), strict=True):
        np.testing.assert_allclose(ours, np.reshape(expected, (2, 3, 4)), rtol=1e-6)
