"""Linear heads of labels and numbers: against scikit-learn, and what is constant or short."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.evaluate.linear_fits import explained_variance, fit_labels, fit_numbers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 12)) * np.linspace(0.1, 3, 12) + 5
Y = X[:, :2] * (100, 0.01) + RNG.normal(size=(80, 2)) * (5, 0.0005) + (1000, 3)


def test_ridge_regression_is_scikit_learns():
    linear = pytest.importorskip("sklearn.linear_model")
    kernel, bias = fit_numbers(X, Y, verbose=False)
    scaled, stddev = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-5), Y.std(axis=0)
    found = (X @ kernel + bias - Y.mean(axis=0)) / stddev
    differences = []
    for penalty in (1.0, 10.0, 100.0, 1000.0, 1e4, 1e5):
        model = linear.Ridge(penalty).fit(scaled, (Y - Y.mean(axis=0)) / stddev)
        differences.append(np.abs(model.predict(scaled) - found).max())
    assert differences[0] < 1e-9 < differences[1]  # the smallest penalty is the best here


def test_the_explained_variance_is_that_of_images_held_out():
    assert 0.8 < explained_variance(X, Y) < 0.99
    noise = np.concatenate([Y, RNG.normal(size=(80, 2))], axis=1)
    assert explained_variance(X, noise) == pytest.approx(explained_variance(X, Y) / 2, abs=0.05)
    constant = np.concatenate([Y, np.full((80, 1), 0.1)], axis=1)
    assert explained_variance(X, constant) == pytest.approx(explained_variance(X, Y), abs=0.01)
    assert explained_variance(X, np.full((80, 1), 0.1, "float16")) == 0.0


def test_a_constant_number_stays_one():
    kernel, bias = fit_numbers(X, np.stack([Y[:, 0], np.full(80, 0.1)], axis=1), verbose=False)
    assert kernel[:, 0].any() and not kernel[:, 1].any() and bias[1] == pytest.approx(0.1)


def test_labels_are_found():
    labels = np.stack([X[:, 11] > 5, X[:, 10] > 8], axis=1)
    kernel, bias = fit_labels(X, labels, verbose=False)
    assert ((X @ kernel + bias > 0) == labels).mean() > 0.95
