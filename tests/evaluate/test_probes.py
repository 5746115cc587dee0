"""Classifiers on features, against scikit-learn and NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.evaluate.few_shot import few_shot_scores
from keras_vit.evaluate.probes import PROBES, cross_validate, fit_head


def clusters(count=60, classes=3, width=8, seed=0, noise=1.0):
    """Features in overlapping clusters, of different scales and far from the origin."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = np.random.default_rng(99).normal(size=(classes, width))
    x = centres[labels] + rng.normal(0, noise, (count, width))
    return (x * np.linspace(0.1, 10, width) + 5).astype("float32"), labels


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("strength", [1e-3, 0.1])
def test_the_logistic_head_is_scikit_learns(classes, strength):
    linear = pytest.importorskip("sklearn.linear_model")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    (x, labels), (test, _) = clusters(classes=classes), clusters(20, classes, seed=1)
    scaler = preprocessing.StandardScaler().fit(x.astype("float64"))
    solver = linear.LogisticRegression(C=strength, tol=1e-8, max_iter=5000)
    solver.fit(scaler.transform(x.astype("float64")), labels)
    expected = solver.predict_proba(scaler.transform(test.astype("float64")))
    head = fit_head("logistic", x, labels, classes, strength)
    found = softmax(keras.ops.convert_to_numpy(head(test)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    weaker = softmax(
        keras.ops.convert_to_numpy(fit_head("logistic", x, labels, classes, 2 * strength)(test))
    )
    assert np.abs(weaker - expected).max() > 2e-3


def test_the_ridge_head_gives_the_scores_of_the_closed_form():
    (x, labels), (test, _) = clusters(), clusters(20, seed=1)
    expected = few_shot_scores(x, labels, test, 3, [8.0])[0]
    found = keras.ops.convert_to_numpy(fit_head("ridge", x, labels, 3, 8.0)(test))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_neighbors_vote_as_scikit_learns():
    sklearn = pytest.importorskip("sklearn.neighbors")
    (x, labels), (test, _) = clusters(), clusters(20, seed=1)
    for count in (1, 7):
        solver = sklearn.KNeighborsClassifier(
            count, metric="cosine", weights=lambda distance: np.exp(-distance / 0.07)
        )
        expected = solver.fit(x, labels).predict_proba(test)
        head = fit_head("knn", x, labels, 3, count)
        found = softmax(keras.ops.convert_to_numpy(head(test)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
        scores = PROBES["knn"].scores(x.astype("float64"), labels, test, 3, [1, count])[1]
        share = scores / scores.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(share, expected, rtol=0, atol=2e-5)


def test_cross_validation_is_that_of_held_out_images():
    x, labels = clusters(30)
    found = cross_validate("ridge", x, labels, 3, [1024.0, 1.0], folds=30)
    assert list(found) == [1.0, 1024.0]
    for strength, accuracy in found.items():  # leave one out
        indices = np.arange(30)
        scores = [
            few_shot_scores(x[indices != i], labels[indices != i], x[i : i + 1], 3, [strength])[
                0, 0
            ]
            for i in indices
        ]
        assert accuracy == np.mean(np.argmax(scores, axis=1) == labels)
    for method in ("logistic", "ridge", "knn"):  # tokens are below
        accuracies = cross_validate(method, x, labels, 3)
        assert max(accuracies.values()) > 0.6, method
        noise = np.random.default_rng(5).normal(size=x.shape)
        assert min(cross_validate(method, noise, labels, 3).values()) < 0.5, method


def test_what_cannot_be_fitted_is_refused():
    x, labels = clusters(12)
    with pytest.raises(ValueError, match="`method` must be one of"):
        fit_head("svm", x, labels, 3, 1.0)
    with pytest.raises(ValueError, match=r"two images of each of 4 classes.*with fewer: 3"):
        cross_validate("ridge", x, labels, 4)
    with pytest.raises(ValueError, match=r"1 of 12 images have NaN.*image 5"):
        fit_head("ridge", np.where(np.arange(12)[:, None] == 5, np.nan, x), labels, 3, 1.0)
    with pytest.raises(ValueError, match="`folds` must be 2 to 12"):
        cross_validate("ridge", x, labels, 3, folds=1)
    with pytest.raises(ValueError, match="values of neighbours and must be whole numbers up to 9"):
        cross_validate("knn", x, labels, 3, settings=[20])
    with pytest.raises(ValueError, match=r"shape \(n, D\)"):
        fit_head("ridge", x[0], labels, 3, 1.0)
