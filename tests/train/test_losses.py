"""Tests the losses of regression and of several labels."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.train.losses import ContrastiveLoss, RegressionLoss
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


def _pairs(images, texts, scale=1.0, bias=0.0):
    last = np.full((len(images), 2), (scale, bias))
    return np.concatenate([images, texts, last], axis=1).astype("float32")


def test_contrastive_losses_of_equal_features_are_those_computed_by_hand():
    same = _pairs(np.eye(3), np.eye(3))
    zeros = np.zeros(3)
    assert float(ContrastiveLoss()(zeros, same)) == pytest.approx(0.55144, abs=1e-5)  # ln((e+2)/e)
    sigmoid = ContrastiveLoss("sigmoid")(zeros, same)
    assert float(sigmoid) == pytest.approx(1.69956, abs=1e-5)  # ln(1 + 1/e) + 2 ln 2


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("positives", ["pairs", "labels"])
def test_contrastive_losses_are_those_of_their_papers(kind, positives):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 4))
    x, y = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, y))
    labels = np.array([3, 1, 3, 0, 1])
    logits = 7.0 * x @ y.T - 2.0
    match = labels[:, None] == labels if positives == "labels" else np.eye(5, dtype=bool)
    if kind == "sigmoid":
        expected = np.log1p(np.exp(np.where(match, -1, 1) * logits)).sum() / 5
    else:

        def cross_entropy(z):
            log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
            return -(match / match.sum(1, keepdims=True) * log_p).sum(1).mean()

        expected = (cross_entropy(logits) + cross_entropy(logits.T)) / 2
    loss = ContrastiveLoss(kind, positives)
    assert ContrastiveLoss.from_config(loss.get_config()).get_config() == loss.get_config()
    assert float(loss(labels, _pairs(x, y, 7.0, -2.0))) == pytest.approx(expected, rel=1e-5)


def test_a_contrastive_loss_tells_what_it_takes():
    with pytest.raises(ValueError, match=r"output of keras_vit\.layers\.PairFeatures.*\(3, 7\)"):
        ContrastiveLoss()(np.zeros(3), np.zeros((3, 7)))
    with pytest.raises(ValueError, match="`kind`"):
        ContrastiveLoss("hinge")
