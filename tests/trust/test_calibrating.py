"""Calibration: the best temperature, Platt's scaling, and the same probabilities in every file."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.calibration import Calibration
from keras_vit.cli.main import main
from keras_vit.data.image_set import read_arrays
from keras_vit.evaluate.class_predictions import predict_set
from keras_vit.evaluate.targets import predict_targets
from keras_vit.export.exported_model import ExportedModel
from keras_vit.models.heads import activate, class_probabilities
from keras_vit.trust.calibrating import (
    TooFewImagesError,
    calibrate,
    fit_calibration,
    fit_thresholds,
    log_losses,
)
from tests.fixtures import images_for, tiny_vit
from tests.trust.pictures import brightness_folder


def drawn(scale=0.5, count=2000, classes=4, seed=0):
    """Logits that are too large by `1 / scale`, and classes drawn from the right probabilities."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (count, classes))
    shares = activate(scale * logits, "single_label").cumsum(axis=1)
    return logits.astype("float32"), (shares > random.random((count, 1))).argmax(axis=1)


def test_temperature_has_the_smallest_loss():
    logits, labels = drawn(0.5)
    found = fit_calibration(logits, labels)
    assert found.temperature == pytest.approx(2, rel=0.1)
    losses = [
        log_losses(logits * s, labels, "single_label").mean() for s in np.linspace(0.3, 1, 141)
    ]
    best = np.linspace(0.3, 1, 141)[int(np.argmin(losses))]
    assert found.scale[0] == pytest.approx(best, abs=0.005)
    before, after = found.log_loss
    assert before == pytest.approx(losses[-1]) and after == pytest.approx(min(losses), abs=1e-4)
    large = fit_calibration(logits * 1000, labels)
    assert large.temperature == pytest.approx(1000 * found.temperature, rel=1e-4)
    assert "logits are divided by" in str(found) and "2,000" in str(found)


def test_labels_have_their_own_scale_and_offset():
    random = np.random.default_rng(0)
    logits = random.normal(0, 3, (3000, 4)).astype("float32")
    shares = activate(
        np.array([0.3, 1.0, 2.0, 1.0]) * logits + [1.0, 0.0, -1.0, 0.0], "multi_label"
    )
    labels = (shares > random.random(shares.shape)).astype("int64")
    labels[:, 3] = 0
    labels[:5, 3] = 1  # too few
    found = fit_calibration(logits, labels, "multi_label")
    assert (found.scale[3], found.offset[3]) == (1, 0)
    np.testing.assert_allclose(found.scale[:3], [0.3, 1, 2], rtol=0.15)
    np.testing.assert_allclose(found.offset[:3], [1, 0, -1], atol=0.2)
    for k in range(3):  # no other scale or offset is better, apart from Platt's targets
        column = slice(k, k + 1)
        best = log_losses(found.apply(logits)[:, column], labels[:, column], "multi_label").mean()
        for scale, offset in ((1.2, 0), (0.8, 0), (1, 0.2), (1, -0.2)):
            other = found.apply(logits)[:, column] * scale + offset
            assert log_losses(other, labels[:, column], "multi_label").mean() > best
    wrong = fit_calibration(-logits, labels, "multi_label")
    assert wrong.scale == (1.0,) * 4 and wrong.temperature is None  # it ranks no label


def test_too_few_images_are_refused_by_number():
    logits, labels = drawn(count=2000)
    with pytest.raises(TooFewImagesError, match=r"needs 50 held-out images.*49 images"):
        fit_calibration(logits[:49], labels[:49])
    with pytest.raises(TooFewImagesError, match="0 wrong"):
        fit_calibration(logits, logits.argmax(axis=1))
    with pytest.raises(TooFewImagesError, match=r"10 held-out images with a label.*20 images"):
        fit_calibration(logits[:20, :2], np.eye(2, dtype=int)[[0] * 5 + [1] * 15], "multi_label")


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_files_give_calibrated_probabilities(activation, tmp_path):
    model = tiny_vit(classifier_activation=activation)
    images = images_for(model, 60)
    random = np.random.default_rng(0)
    labels = random.integers(10, size=60)
    returned = calibrate(model, read_arrays(images, labels), verbose=False)
    assert returned is model and model.calibration.num_images == 60
    assert model.calibration.temperature > 2  # labels are by chance
    outputs = model.predict(images[:8], verbose=0)
    expected = class_probabilities(model, outputs)
    plain = class_probabilities(model, outputs, calibrated=False)
    logits = np.log(plain) / model.calibration.temperature
    np.testing.assert_allclose(expected, activate(logits, "single_label"), atol=1e-6)
    assert np.abs(expected - plain).max() > 0.05
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.calibration == model.calibration
    again.predict(images[:1], verbose=0)
    for name, exporter in (
        ("m.tflite", keras_vit.export_litert),
        ("m.onnx", keras_vit.export_onnx),
        ("saved", keras_vit.export_saved_model),
    ):
        report = exporter(again, tmp_path / name, verbose=False)
        exported = ExportedModel(report.path)
        found = exported._run(images[:8])["probabilities"]
        np.testing.assert_allclose(found, expected, atol=2e-5)
        scored = class_probabilities(exported, exported.predict_on_batch(images[:8]))
        np.testing.assert_allclose(scored, expected, atol=2e-5)
        keras_vit.verify_export(report.path, model, tolerance=1e-4, verbose=False)
    card = json.loads(exported._run.card)
    assert Calibration(**card["calibration"]) == model.calibration
    with pytest.raises(ValueError, match="calibrated for 'softmax'"):
        keras_vit.export_onnx(again, tmp_path / "x.onnx", activation="sigmoid")


def test_predictions_before_and_after():
    model = tiny_vit()
    images = read_arrays(images_for(model, 60), np.random.default_rng(0).integers(10, size=60))
    before = predict_set(model, images, verbose=False)
    assert before.before is None
    after = predict_set(calibrate(model, images, verbose=False), images, verbose=False)
    plain = after.before
    assert after.log_loss() < before.log_loss() == pytest.approx(plain.log_loss(), rel=1e-5)
    assert after.calibration_error() < before.calibration_error()
    assert plain.calibration_error() == pytest.approx(before.calibration_error())
    low, high = after.calibration_interval()
    assert 0 <= low < high < before.calibration_error()
    assert model.calibration.log_loss[0] == pytest.approx(before.log_loss(), rel=1e-4)


def test_training_another_head_and_other_packages_drop_it(tmp_path):
    model = tiny_vit()
    model.calibration = Calibration("softmax", (0.5,))
    for change, reason in (
        (lambda: keras_vit.adapt_model(model, 3), "Another head"),
        (lambda: keras_vit.models.resize_model(model, 48), "Another configuration"),
    ):
        with pytest.warns(UserWarning, match=f"{reason}.*so its calibration and its abstention"):
            assert change().calibration is None
    with pytest.warns(UserWarning, match="Folders for other packages have weights"):
        model.save_pretrained(tmp_path)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.warns(UserWarning, match="Training changes .* its abstention are left out"):
        model.fit(images_for(model, 2), np.array([0, 1]), verbose=0)
    assert model.calibration is None


def test_what_cannot_be_calibrated_is_refused():
    model = tiny_vit(classes=2)
    numbers = read_arrays(images_for(model, 4), np.ones((4, 2), "float32"), task="regression")
    with pytest.raises(ValueError, match="regression has none"):
        calibrate(model, numbers)
    with pytest.raises(TypeError, match=r"keras_vit\.Model\(model\.input"):
        calibrate(
            keras.Sequential([keras.Input((4,))]),
            read_arrays(np.ones((4, 4, 4, 3), "uint8"), [0, 1, 0, 1]),
        )
    model.class_names = ("cat", "dog")
    other = read_arrays(images_for(model, 4), [0, 1, 0, 1], ["dog", "fox"])
    with pytest.raises(ValueError, match=r"other classes.*without cat; with fox"):
        calibrate(model, other)
    for fields in (((0.0,),), ((1.0, 1.0),), ((np.nan,),)):
        with pytest.raises(ValueError, match=r"one scale with softmax"):
            Calibration("softmax", *fields)


def test_thresholds_of_labels_reach_files_and_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, random = tiny_vit(classes=3), np.random.default_rng(0)
    pixels = images_for(model, 80)
    noisy = model.predict(pixels, verbose=0) + random.normal(0, 0.2, (80, 3))
    labels = (noisy > np.quantile(noisy, 0.7, axis=0)).astype("float32")
    images = read_arrays(pixels, labels, ["a", "b", "c"], task="multi_label")
    calibrate(model, images, verbose=False)
    fit_thresholds(model, images)
    found = predict_targets(model, images, verbose=False)
    assert found.thresholds == model.calibration.thresholds
    assert found.metrics()["macro F1"] >= found.metrics(0.5)["macro F1"]
    for k, (score, limit) in enumerate(zip(found.score(), found.thresholds, strict=True)):
        p, true = found.outputs[:, k], labels[:, k] > 0
        best = max(f1_at(p, true, value) for value in p)
        assert score.f1 == pytest.approx(f1_at(p, true, limit)) == pytest.approx(best)
    fit_thresholds(model, images, precision=0.9)
    assert min(each.precision for each in predict_targets(model, images).score()) >= 0.9
    model.save("m.keras")
    report = keras_vit.export_onnx(keras.saving.load_model("m.keras"), "m.onnx", verbose=False)
    answer = ExportedModel(report.path)._run(pixels[:8])
    limits = np.float32(model.calibration.thresholds)
    np.testing.assert_array_equal(answer["prediction_set"], answer["probabilities"] >= limits)
    one_class = read_arrays(pixels, np.arange(80) % 3)
    with pytest.raises(ValueError, match="Thresholds are of several labels"):
        fit_thresholds(model, one_class)


def f1_at(p, true, limit):
    right = (true & (p >= limit)).sum()
    return 2 * right / (true.sum() + (p >= limit).sum())


def test_the_command_calibrates_a_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    brightness_folder(tmp_path / "photos", 60, range(0, 60, 9), -1)
    model = tiny_vit(classes=2)
    model.class_names = ("bright", "dark")
    model.save("m.keras")
    assert main(["calibrate", "m.keras", "photos", "--output", "c.keras"]) == 0
    printed = capsys.readouterr().out
    assert "logits are divided by" in printed and "sets hold the true class of 90%" in printed
    fitted = keras.saving.load_model("c.keras")
    assert fitted.calibration.num_images == 60 and fitted.abstention.coverage == 0.9
    assert keras.saving.load_model("m.keras").calibration is None
    assert main(["calibrate", "m.keras", "photos", "--precision", "0.9"]) == 2
    assert "--precision is of several labels" in capsys.readouterr().err
    assert main(["calibrate", "vit_ti16", "photos"]) == 2
    assert "Pass --output FILE.keras" in capsys.readouterr().err


@pytest.mark.parametrize("count", [100, 200])
def test_training_calibrates_by_its_validation_images(count, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    brightness_folder(tmp_path / "photos", count, range(0, count, 7), -1)
    tiny_vit(classes=2).save("m.keras")
    words = ["--validation", "0.3", "--steps", "8", "--batch-size", "8", "--output", "r"]
    assert main(["train", "m.keras", "photos", *words]) == 0
    printed, page = capsys.readouterr(), (tmp_path / "r/report.html").read_text()
    calibration = keras.saving.load_model("r/best.keras").calibration
    results = json.loads((tmp_path / "r/results.json").read_text())
    if count == 100:  # 30 for validation
        assert "Not calibrated. A temperature needs 50 held-out images or more" in printed.out
        assert calibration is None and "accuracy, of this model" in page
        return
    assert calibration.num_images == 60 and "Calibrated: logits are divided by" in printed.out
    before, after = calibration.log_loss
    assert after < before and before == pytest.approx(results["val_loss"], rel=1e-3)
    for name, loss in (("before calibration", before), ("calibrated", after)):
        assert f"accuracy, {name}" in page and f"{loss:.3f}" in page
    assert main(["report", "r"]) == 0  # from the file
    assert page.count("before calibration") == (tmp_path / "r/report.html").read_text().count(
        "before calibration"
    )
