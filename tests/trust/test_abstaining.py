"""Prediction sets have their coverage, foreign pictures are refused, and files say the same."""

from __future__ import annotations

import importlib.util
import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.abstention import Abstention
from keras_vit.data.image_set import read_arrays
from keras_vit.export.exported_model import ExportedModel
from keras_vit.export.formats import FORMATS
from keras_vit.models.heads import class_probabilities
from keras_vit.trust.abstaining import fit_abstention, fit_sets, fit_typicality
from keras_vit.trust.calibrating import TooFewImagesError
from tests.export.test_lossy_layers import NEEDS
from tests.fixtures import images_for, tiny_vit
from tests.trust.test_calibrating import drawn

NAMES = [str(k) for k in range(10)]


def abstention(**changes):
    fields = {
        "coverage": 0.9, "least_probable": 0.3, "least_typical": -2.0,
        "gaussian": np.eye(5, 4, dtype="float16"), "num_images": 3, "set_size": 1.0,
        "false_alarms": 0.05,
    }  # fmt: skip
    return Abstention(**{**fields, **changes})


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_coverage_over_random_splits(coverage):
    logits, labels = drawn(0.4, 1500, 6)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    shares = []
    for seed in range(100):
        order = np.random.default_rng(seed).permutation(len(labels))
        held_out, new = order[:300], order[300:]
        least, _ = fit_sets(probabilities[held_out], labels[held_out], coverage)
        fitted = abstention(least_probable=least)
        sets = np.asarray(fitted.prediction_set(probabilities[new]))
        shares.append(sets[np.arange(len(new)), labels[new]].mean())
    # A mean of 100: with at least 75 % of 300 images, the standard error of one is below 2.8 %.
    assert coverage - 0.006 < np.mean(shares) < coverage + 0.02


def test_sets_are_the_probable_classes_and_never_empty():
    p = np.random.default_rng(0).dirichlet(np.ones(7) / 2, 200).astype("float32")
    for least in (0.3, 0.9):
        found = np.asarray(abstention(least_probable=least).prediction_set(p))
        expected = p >= least
        expected[np.arange(200), p.argmax(axis=1)] = True
        np.testing.assert_array_equal(found, expected)


def test_typicality_is_a_gaussian_of_features_of_length_1():
    random = np.random.default_rng(0)
    mix = random.normal(size=(16, 16))
    features, new = ((random.normal(size=(n, 16)) + 2) @ mix for n in (400, 300))
    least, gaussian = fit_typicality(features, 0.1)
    fitted = abstention(least_typical=least, gaussian=gaussian)
    again = Abstention.from_dict(fitted.to_dict())
    np.testing.assert_array_equal(again.gaussian, gaussian)
    known, unit = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (features, new))
    covariance = np.cov(known.T, bias=True)
    covariance = 0.9 * covariance + 0.1 * np.trace(covariance) / 16 * np.eye(16)
    rest = unit - known.mean(axis=0)
    expected = -np.einsum("nd,de,ne->n", rest, np.linalg.inv(covariance), rest) / 16
    outputs = fitted.outputs(np.full((300, 2), 0.5), new)
    np.testing.assert_allclose(outputs["typicality"], expected, rtol=0.02, atol=0.02)
    assert 0.05 < 1 - np.mean(outputs["accepted"]) < 0.16
    foreign = (random.normal(size=(300, 16)) - 1) @ mix
    assert np.mean(fitted.outputs(np.full((300, 2), 0.5), foreign)["accepted"]) < 0.02


def test_every_file_decides_as_the_model(tmp_path):
    model = tiny_vit()
    images, labels = images_for(model, 60), np.random.default_rng(0).integers(10, size=60)
    held_out = read_arrays(images, labels)
    keras_vit.trust.calibrate(model, held_out, verbose=False)
    assert fit_abstention(model, held_out, 0.8, verbose=False) is model
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.abstention.to_dict() == model.abstention.to_dict()
    noise = np.full_like(images[:4], 255) * (np.arange(32) % 2)[None, :, None, None]
    pixels = np.concatenate([images[:12], noise])
    p = class_probabilities(model, model.predict(pixels, verbose=0))
    features = keras_vit.features_of(model, "encoder_norm").predict(pixels, verbose=0)
    expected = model.abstention.outputs(p, features["encoder_norm"][:, 0])
    expected = {name: np.asarray(value) for name, value in expected.items()}
    assert expected["accepted"][:12].mean() > 0.8 and not expected["accepted"][12:].any()
    assert 0 < expected["prediction_set"].mean() < 1
    for name, exporter in (
        ("m.tflite", keras_vit.export_litert),
        ("m.onnx", keras_vit.export_onnx),
        ("m.xml", keras_vit.export.export_openvino),
        ("saved", keras_vit.export_saved_model),
    ):
        report = exporter(again, tmp_path / name, images=pixels, verbose=False)
        exported = ExportedModel(report.path)
        found = exported._run(pixels)
        np.testing.assert_allclose(found["typicality"], expected["typicality"], rtol=1e-4)
        for decision in ("accepted", "prediction_set"):
            assert found[decision].dtype == bool
            np.testing.assert_array_equal(found[decision], expected[decision])
    assert json.loads(exported._run.card)["abstention"] == model.abstention.thresholds()
    keras_vit.trust.calibrate(again, held_out, verbose=False)
    assert again.abstention is None  # of other probabilities


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* export in int8 often answers another class")
@pytest.mark.parametrize(
    ("format", "precision"),
    [
        (name, each)
        for name, format in FORMATS.items()
        for each in sorted(format.tolerances)
        if each != "int4"  # of random weights, such files are refused
    ],
)
def test_smaller_files_decide_almost_as_the_model(format, precision, tmp_path):
    package = NEEDS.get((format, precision))
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    model = tiny_vit()
    images = images_for(model, 60)
    held_out = read_arrays(images, np.random.default_rng(0).integers(10, size=60))
    fit_abstention(keras_vit.trust.calibrate(model, held_out, verbose=False), held_out, 0.8)
    options = {"calibration": images} if precision in FORMATS[format].calibrated else {}
    path = tmp_path / FORMATS[format].file
    report = FORMATS[format].export(
        model, path, images=images, precision=precision, verbose=False, **options
    )
    found = ExportedModel(report.path)._run(images)
    features = keras_vit.features_of(model, "encoder_norm").predict(images, verbose=0)
    p = class_probabilities(model, model.predict(images, verbose=0))
    expected = model.abstention.outputs(p, features["encoder_norm"][:, 0])
    same = 0.97 if "float" in precision else 0.9
    for decision in ("accepted", "prediction_set"):
        assert found[decision].dtype == bool
        assert np.mean(found[decision] == np.asarray(expected[decision])) >= same
    assert found["accepted"].mean() >= 0.9


def test_too_few_images_are_refused_with_the_number():
    model = tiny_vit()
    images = read_arrays(images_for(model, 18), np.arange(18) % 10)
    for options, needed in (((0.95, 0.2), 19), ((0.9, 0.05), 19), ((0.5, 0.5), 2)):
        if needed < 18:
            assert fit_abstention(model, images, *options, verbose=False).abstention
            images = images.subset(np.arange(1))
        with pytest.raises(TooFewImagesError, match=f"takes {needed} held-out images"):
            fit_abstention(model, images, *options, verbose=False)
    with pytest.raises(ValueError, match=r"`coverage` must be in \(0, 1\)"):
        fit_abstention(model, images, 1.0)
    with pytest.raises(TooFewImagesError, match=r"no images of 5, 6, 7, 8, 9"):
        fit_abstention(model, read_arrays(images_for(model, 20), np.arange(20) % 5, NAMES))
    several = read_arrays(images_for(model, 4), np.eye(4, 10, dtype="float32"), task="multi_label")
    with pytest.raises(ValueError, match="one class for each image"):
        fit_abstention(model, several)
