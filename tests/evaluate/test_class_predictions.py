"""Predictions on labelled images: counts, intervals, calibration, mistakes and the CSV file."""

from __future__ import annotations

import csv

import keras
import numpy as np
import pytest

from keras_vit.data.csv_file import read_csv
from keras_vit.data.folder import read_folder
from keras_vit.data.image_set import read_arrays
from keras_vit.evaluate.class_predictions import predict_set
from keras_vit.models.vit import build_vit
from tests.data.pictures import write_folder
from tests.fixtures import tiny_config


def classifier(classes=3):
    """Classifies images by their brightness."""
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.GlobalAveragePooling2D()(inputs)
    outputs = keras.layers.Dense(classes, name="head")(x / 255)
    model = keras.Model(inputs, outputs)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(rng.normal(0, 3, weight.shape))
    return model


def image_set(count=50, classes=3):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (count, 1, 1, 3)) * rng.uniform(0, 255, (count, 8, 8, 3))
    return read_arrays(x.astype("float32"), np.arange(count) % classes)


def test_predictions_are_those_of_the_model():
    model, images = classifier(), image_set()
    found = predict_set(model, images, batch_size=16, num_worst=4)
    pixels, labels = zip(*images.read((0, 50), None, 0).as_numpy_iterator(), strict=True)
    logits = np.asarray(model(np.stack(pixels)), "float64")
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_allclose(found.probabilities, -np.sort(-expected), atol=1e-6)
    np.testing.assert_array_equal(found.classes[:, 0], expected.argmax(axis=1))
    assert found.accuracy == (logits.argmax(axis=1) == labels).mean()
    chosen = expected[np.arange(50), labels]
    np.testing.assert_allclose(found.label_probabilities, chosen, atol=1e-6)
    wrong = [i for i in np.argsort(chosen) if expected[i].argmax() != labels[i]]
    assert list(found.worst) == wrong[:4]
    np.testing.assert_allclose(found.worst_images, np.stack(pixels)[wrong[:4]], atol=1e-4)
    assert found.names[7] == "image 7"
    found_classes = np.unique(np.asarray(labels)[expected.argmax(axis=1) == labels])
    lost = [(str(c), n) for c, n in enumerate(np.bincount(labels)) if c not in found_classes]
    assert found.lost_classes() == lost and 0 < len(lost) < 3
    outer = keras.Model(model.input, keras.layers.Softmax()(model.output))
    again = keras.Sequential([keras.Input((8, 8, 3)), outer, keras.layers.Activation("linear")])
    for probabilities in (outer, again):  # which are not softmaxed twice
        same = predict_set(probabilities, images, batch_size=16).label_probabilities
        np.testing.assert_allclose(same, chosen, atol=1e-6)


def test_features_are_no_classes():
    images, headless = image_set(classes=32), build_vit(tiny_config(image_size=8, classes=None))
    with pytest.raises(ValueError, match=r"with a head. Received: .* 32 features, not classes"):
        predict_set(headless, images)


def test_counts_and_calibration():
    found = predict_set(classifier(), image_set(), batch_size=64)
    confusion = np.zeros((3, 3), int)
    for true, predicted in zip(found.labels, found.classes[:, 0], strict=True):
        confusion[true, predicted] += 1
    np.testing.assert_array_equal(found.confusion(), confusion)
    rights = zip(confusion.diagonal(), confusion.sum(axis=1), strict=True)
    assert found.count_by_class() == list(rights)
    pairs = found.confused_pairs()
    assert sum(count for *_, count in pairs) == 50 - confusion.trace()
    assert all(confusion[t, p] == count and t != p for t, p, count in pairs)
    assert pairs == sorted(pairs, key=lambda pair: -pair[2])
    confidence, right = found.probabilities[:, 0], found.is_right
    expected = 0.0  # equation 3 of the paper, image by image
    for low in np.arange(10) / 10:
        chosen = (confidence > low) & (confidence <= low + 0.1)
        expected += abs(right[chosen].sum() - confidence[chosen].sum()) / 50
    assert found.calibration_error() == pytest.approx(expected, abs=1e-6)
    assert sum(each.images for each in found.calibration()) == 50


def test_the_file_has_a_row_for_every_image(tmp_path):
    images = read_folder(write_folder(tmp_path / "photos", ("a, b", 'c"d'), count=3))
    found = predict_set(classifier(2), images)
    found.write_csv(tmp_path / "predictions.csv")
    with open(tmp_path / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == list(found.names)
    assert rows[0]["file"] == str(tmp_path / "photos" / "a, b" / "0.jpeg")
    assert [row["true"] for row in rows] == ["a, b"] * 3 + ['c"d'] * 3
    for row in rows:
        shares = {name: float(row[f"probability of {name}"]) for name in images.class_names}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert row["predicted"] == max(shares, key=shares.get)
        assert float(row["probability"]) == max(shares.values())


def test_names_like_formulas_are_text_in_a_spreadsheet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = read_folder(write_folder(tmp_path, ("=1+1", "@x"), count=1)).class_names
    images = read_folder(".", images)
    predict_set(classifier(2), images).write_csv("predictions.csv")
    with open("predictions.csv", newline="") as file:
        rows = [row[:2] for row in csv.reader(file)][1:]
    assert rows == [["'=1+1/0.jpeg", "'=1+1"], ["'@x/0.jpeg", "'@x"]]
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file", "class"], *rows])
    again = read_csv("labels.csv")
    assert again.class_names == images.class_names
    assert again.file_names() == images.file_names()


def test_of_many_classes_five_are_kept(tmp_path):
    found = predict_set(classifier(101), image_set(classes=101, count=101))
    assert found.classes.shape == (101, 5)
    found.write_csv(tmp_path / "predictions.csv")
    head = (tmp_path / "predictions.csv").read_text().splitlines()[0].split(",")
    assert head[:6] == ["file", "true", "predicted", "probability", "class_2", "probability_2"]
    assert len(head) == 12
