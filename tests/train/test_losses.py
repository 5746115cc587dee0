"""Tests the losses of regression."""

from __future__ import annotations

import keras
import numpy as np
import pytest

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
