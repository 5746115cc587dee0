"""Tests the losses of regression and of several labels."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.train.losses import RegressionLoss
from keras_vit.train.metrics import TargetError


@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_the_regression_loss_is_kerass_on_standardised_targets(loss):
    rng = np.random.default_rng(0)
    mean, stddev = np.array([5.0, -100.0]), np.array([0.1, 30.0])
    true, z = mean + stddev * rng.normal(size=(8, 2)), 2 * rng.normal(size=(8, 2))
    of_keras = {"mse": keras.losses.MeanSquaredError(), "huber": keras.losses.Huber()}[loss]
    expected = float(of_keras((true - mean) / stddev, z))
    own = RegressionLoss(("a", "b"), mean, stddev, loss)
    assert float(own(true, z)) == pytest.approx(expected, rel=1e-4)
    units = RegressionLoss.from_config({**own.get_config(), "predicts_units": True})
    assert float(units(true, mean + stddev * z)) == pytest.approx(expected, rel=1e-4)
    error = TargetError(1, -100.0, 30.0)
    error.update_state(true, z)
    assert float(error.result()) == pytest.approx(
        np.abs(true - mean - stddev * z)[:, 1].mean(), rel=1e-5
    )


def test_the_sigmoid_loss_is_summed_over_classes():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 5, (4, 50)).astype("float32")
    labels = np.eye(50)[[1, 2, 3, 4]]
    for smoothing, on, off in ((0.0, 1.0, 0.0), (2e-4, 1 - 1e-4, 1e-4)):
        y = np.where(labels, on, off)
        x = logits.astype("float64")
        terms = y * np.log1p(np.exp(-x)) + (1 - y) * np.log1p(np.exp(x))
        found = keras_vit.train.SigmoidCrossentropy(smoothing)(labels, logits)
        np.testing.assert_allclose(found, terms.sum(-1).mean(), rtol=1e-5)
        keras_loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing)
        np.testing.assert_allclose(found, 50 * keras_loss(labels, logits), rtol=1e-5)
    extreme = keras_vit.train.SigmoidCrossentropy()([[1.0, 0.0]], [[200.0, -200.0]])
    assert float(extreme) == 0
    saved = keras.losses.deserialize(
        keras.losses.serialize(keras_vit.train.SigmoidCrossentropy(2e-4))
    )
    assert saved.label_smoothing == 2e-4
