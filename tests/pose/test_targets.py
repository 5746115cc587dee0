"""Heatmaps for fine-tuning: their formula, their weights, and a model that learns one picture."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pose import decode_heatmaps, heatmap_targets
from tests.networks.cases import images_of, network_folder


def test_targets_are_gaussians_of_visible_joints():
    points = [[[3.25, 5.5], [0, 0], [-6.5, 4]]]
    targets, weights = heatmap_targets(points, [[2, 0, 1]], (16, 12))
    assert targets.shape == (1, 3, 16, 12) and targets.dtype == "float32"
    rows, columns = np.mgrid[:16, :12]
    expected = np.exp(-((columns - 3.25) ** 2 + (rows - 5.5) ** 2) / 8)
    np.testing.assert_allclose(targets[0, 0], expected, atol=1e-6)
    np.testing.assert_array_equal(weights, [[[1], [0], [0]]])  # the third is too far
    np.testing.assert_array_equal(targets[0, 1:], 0)


def test_joints_that_are_not_visible_may_be_nan():
    targets, weights = heatmap_targets([[[np.nan, np.nan]]], [[0]], (16, 12))
    assert not targets.any() and not weights.any()


def test_shapes_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match=r"`visible` \(n, joints\). Received: \(1, 3, 2\) and"):
        heatmap_targets(np.zeros((1, 3, 2)), np.ones(3), (16, 12))


def test_a_network_learns_the_joints_of_one_picture(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras_vit.from_pretrained(
        network_folder("classic vitpose", tmp_path), include_preprocessing=False
    )
    image = images_of((64, 48), 1)
    points = np.array([[[2, 3], [9, 3], [5, 8], [3.5, 12], [8.25, 12.5], [0, 0]]])
    visible = np.array([[2, 2, 1, 2, 2, 0]])
    targets, weights = heatmap_targets(points, visible, (16, 12))
    before = model.predict(image, verbose=0)["heatmaps"]
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.MeanSquaredError())
    y, sample_weight = {"heatmaps": targets}, {"heatmaps": weights}
    first = model.evaluate(image, y, sample_weight=sample_weight, verbose=0)
    np.testing.assert_allclose(first, np.mean(weights[..., None] * (before - targets) ** 2), 1e-5)
    model.fit(image, y, sample_weight=sample_weight, epochs=40, verbose=0)
    assert model.evaluate(image, y, sample_weight=sample_weight, verbose=0) < first / 50
    found, _ = decode_heatmaps(model.predict(image, verbose=0)["heatmaps"])
    assert np.abs(found - points)[0, :5].max() < 0.25
