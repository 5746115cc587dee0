"""Predictions of several labels and of regression targets, against their definitions."""

from __future__ import annotations

import csv

import keras
import numpy as np
import pytest
import scipy.stats

import keras_vit
from keras_vit.data.image_set import read_arrays
from keras_vit.evaluate.class_predictions import predict_set
from keras_vit.evaluate.targets import LabelPredictions, ValuePredictions, predict_targets


def average_precision(true, scores):
    """By its definition: precision at every threshold, times the rise of recall."""
    total, before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = scores >= threshold
        recall = true[chosen].sum() / true.sum()
        total += (recall - before) * true[chosen].sum() / chosen.sum()
        before = recall
    return total


@pytest.fixture
def labels():
    """Scores with many equal ones, and a label that no image has."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, (60, 4)).astype("float64")
    targets[:, 3] = 0
    scores = np.clip(np.round(0.3 * targets + rng.uniform(0, 0.7, (60, 4)), 1), 0, 1)
    names = tuple(f"image {i}" for i in range(60))
    return LabelPredictions("test", names, ("a", "b", "c", "none"), targets, scores)


def test_average_precision_is_its_definition(labels):
    found = labels.average_precision()
    for k in range(3):
        expected = average_precision(labels.targets[:, k], labels.outputs[:, k])
        assert found[k] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(found[3])
    metrics = labels.metrics()
    assert metrics["macro average precision"] == pytest.approx(np.mean(found[:3]))
    flat = average_precision(labels.targets.ravel(), labels.outputs.ravel())
    assert metrics["micro average precision"] == pytest.approx(flat)
    exact = ((labels.outputs >= 0.5) == (labels.targets > 0)).all(axis=1).mean()
    assert metrics["exact matches"] == exact
    low, high = labels.interval()
    assert low < metrics["macro average precision"] < high and high - low < 0.3
    sklearn = pytest.importorskip("sklearn.metrics")
    expected = sklearn.average_precision_score(labels.targets[:, :3], labels.outputs[:, :3])
    assert metrics["macro average precision"] == pytest.approx(expected)


def test_scores_at_thresholds(labels, tmp_path):
    score = labels.score(0.5)[0]
    chosen, true = labels.outputs[:, 0] >= 0.5, labels.targets[:, 0] > 0
    right = (chosen & true).sum()
    assert (score.name, score.images) == ("a", true.sum())
    assert score.precision == right / chosen.sum() and score.recall == right / true.sum()
    assert score.f1 == pytest.approx(2 / (1 / score.precision + 1 / score.recall))
    best = labels.best_thresholds()
    for k in range(3):
        tried = [labels.score(float(t))[k].f1 for t in set(labels.outputs[:, k])]
        assert labels.score(best)[k].f1 == pytest.approx(max(tried))
    assert best[3] == 0.5 and np.isnan(labels.score()[3].recall)
    labels.write_csv(tmp_path / "predictions.csv")
    with open(tmp_path / "predictions.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    for row, true, scores in zip(rows, labels.targets, labels.outputs, strict=True):
        names = np.array(labels.class_names)
        assert row["true"] == "|".join(names[true > 0])
        assert row["predicted"] == "|".join(names[scores >= 0.5])
        assert float(row["score of b"]) == pytest.approx(scores[1])


def test_errors_of_targets(tmp_path):
    rng = np.random.default_rng(0)
    true = np.stack([rng.normal(40, 10, 400), rng.normal(0, 0.1, 400)], axis=1)
    found = true + rng.normal(0, 1, (400, 2)) * (2, 0.1)
    predictions = ValuePredictions("test", tuple(map(str, range(400))), ("age", "x"), true, found)
    age, x = predictions.score()
    error = found[:, 0] - true[:, 0]
    assert age.mae == np.abs(error).mean() and age.rmse == np.sqrt((error**2).mean())
    assert age.r2 == pytest.approx(
        1 - (error**2).sum() / ((true[:, 0] - true[:, 0].mean()) ** 2).sum()
    )
    assert age.mae_interval[0] < 2 * np.sqrt(2 / np.pi) < age.mae_interval[1]
    assert age.errors == pytest.approx((-2 * 1.96, 2 * 1.96), abs=0.6)
    assert -0.5 < x.r2 < 0.3 and predictions.metrics()["MAE of age"] == age.mae
    predictions.write_csv(tmp_path / "predictions.csv")
    with open(tmp_path / "predictions.csv") as file:
        row = next(csv.DictReader(file))
    assert float(row["true age"]) + float(row["error age"]) == pytest.approx(
        float(row["predicted age"]), abs=1e-3
    )


@pytest.mark.parametrize("count", [2, 5, 6, 40])
def test_the_interval_of_an_error_is_students(count):
    errors = np.random.default_rng(0).normal(3, 1, (count, 1))
    found = ValuePredictions("test", ("",) * count, ("x",), np.zeros_like(errors), errors)
    size = np.abs(errors[:, 0])
    low, high = scipy.stats.t.interval(0.95, count - 1, size.mean(), scipy.stats.sem(size))
    assert found.score()[0].mae_interval == pytest.approx((max(0, low), high), rel=1e-6)


def test_without_scipy_the_interval_of_an_error_is_unknown(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = ValuePredictions("test", ("",) * 2, ("x",), np.zeros((2, 1)), np.ones((2, 1)))
    assert np.isnan(found.score()[0].mae_interval).all() and found.score()[0].mae == 1


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_predictions_of_a_model(task):
    """A model whose outputs are the means of the colours."""
    x = np.random.default_rng(0).integers(0, 255, (10, 8, 8, 3)).astype("uint8")
    images = keras.Input((8, 8, 3))
    outputs = keras.layers.GlobalAveragePooling2D()(images / 1000 - 0.1)
    model = keras.Model(images, keras.layers.Activation("linear")(outputs))
    logits = x.mean(axis=(1, 2)) / 1000 - 0.1
    y = (logits > np.median(logits)).astype("int64")
    y[7] = 1 - y[7]
    found = predict_targets(model, read_arrays(x, y, list("rgb"), task=task), 4, num_worst=3)
    expected = logits if task == "regression" else 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found.outputs, expected, rtol=1e-5)
    np.testing.assert_array_equal(found.targets, y)
    assert len(found.worst) == 3 and found.worst_images.shape == (3, 8, 8, 3)
    np.testing.assert_array_equal(found.worst_images[0], x[found.worst[0]])
    if task == "regression":
        error = np.abs(logits - y).max(axis=1)
        assert found.worst[0] == np.argmax(error / y.std(axis=0).max())
    with pytest.raises(ValueError, match=f"task='{task}': use `predict_targets`"):
        predict_set(model, read_arrays(x, y, task=task))
    with pytest.raises(ValueError, match="has one class for each image: use `predict_set`"):
        predict_targets(model, keras_vit.read_arrays(x, y[:, 0]))
