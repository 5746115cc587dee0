"""Logistic regression: the minimum of its loss, by its definition and by scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.evaluate.logistic import logistic_path
from tests.evaluate.test_probes import clusters, softmax

STRENGTHS = [1e-4, 1e-2, 1.0, 100.0]


def gradient(kernel, bias, x, labels, strength):
    """Of the mean cross-entropy with the penalty, on standardised features."""
    classes, stddev = len(bias), x.std(axis=0) + 1e-5
    shares = softmax(x @ kernel + bias) - np.eye(classes)[labels]
    penalty = (2 if classes == 2 else 1) / (strength * len(x))
    of_kernel = ((x - x.mean(axis=0)) / stddev).T @ shares / len(x)
    return of_kernel + penalty * kernel * stddev[:, None], shares.mean(axis=0)


@pytest.mark.parametrize(("count", "classes", "width"), [(60, 3, 8), (40, 2, 6), (24, 4, 40)])
def test_each_solution_of_a_path_is_the_minimum(count, classes, width):
    """The last case has fewer images than features."""
    x, labels = clusters(count, classes, width)
    x, labels = x.astype("float64")[: count - 3], labels[: count - 3]
    for strength, found in zip(
        STRENGTHS, logistic_path(x, labels, classes, STRENGTHS), strict=True
    ):
        assert found[0].shape == (width, classes)
        of_kernel, of_bias = gradient(*found, x, labels, strength)
        assert max(np.abs(of_kernel).max(), np.abs(of_bias).max()) < 2.1e-5, strength
        (alone,) = logistic_path(x, labels, classes, [strength])
        shares = [softmax(x @ kernel + bias) for kernel, bias in (found, alone)]
        np.testing.assert_allclose(*shares, rtol=0, atol=2e-3)
    other = gradient(*found, x, labels, STRENGTHS[0])[0]
    assert np.abs(other).max() > 1e-3  # of another penalty


@pytest.mark.parametrize("classes", [2, 5])
def test_probabilities_are_scikit_learns(classes):
    linear = pytest.importorskip("sklearn.linear_model")
    x, labels = clusters(80, classes, 12)
    x = x.astype("float64")
    scaled = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    for strength, (kernel, bias) in zip(
        STRENGTHS[:3], logistic_path(x, labels, classes, STRENGTHS[:3]), strict=True
    ):
        solver = linear.LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)
        expected = solver.fit(scaled, labels).predict_proba(scaled)
        np.testing.assert_allclose(softmax(x @ kernel + bias), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("count", "width"), [(60, 8), (24, 40)])
def test_several_labels_are_as_many_regressions(count, width):
    x, labels = clusters(count, 4, width)
    x = x.astype("float64")
    vectors = np.stack([labels > 0, labels == 2, labels % 2, labels == 9], axis=1).astype(float)
    for strength, (kernel, bias) in zip(
        STRENGTHS, logistic_path(x, vectors, 4, STRENGTHS), strict=True
    ):
        for index in range(3):
            column = vectors[:, index].astype(int)
            (expected,) = logistic_path(x, column, 2, [strength])
            both = softmax(x @ expected[0] + expected[1])[:, 1]
            one = 1 / (1 + np.exp(-(x @ kernel[:, index] + bias[index])))
            np.testing.assert_allclose(one, both, rtol=0, atol=3e-3)
        assert (x @ kernel[:, 3] + bias[3] < -5).all()  # no image has the last label


def test_features_that_are_constant_or_copies_have_a_solution():
    x, labels = clusters(60, 3, 8)
    x = np.concatenate([x, x, np.ones((60, 2))], axis=1).astype("float64")
    for strength, found in zip(STRENGTHS, logistic_path(x, labels, 3, STRENGTHS), strict=True):
        of_kernel, of_bias = gradient(*found, x, labels, strength)
        assert np.isfinite(found[0]).all()
        assert max(np.abs(of_kernel).max(), np.abs(of_bias).max()) < 2.1e-5, strength
