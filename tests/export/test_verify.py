"""`verify_export`, and the commands `export` and `verify`."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.cli.main import main
from keras_vit.errors import ExportMismatchError
from keras_vit.export.formats import FORMATS, find_format, newest_version
from keras_vit.export.onnx import export_onnx
from keras_vit.export.verify import ExportReport, check, compare, verify_export
from tests.checks import quick
from tests.fixtures import fill_random, images_for, tiny_config


@pytest.mark.parametrize("format", quick([*FORMATS], "litert", "onnx"))
def test_the_command_line_exports_and_verifies(format, model, pixels, tmp_path, capsys):
    model.save(tmp_path / "tiny.keras")
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"class {i}\n" for i in range(10)))
    path = tmp_path / ("exported.xml" if format == "openvino" else "exported")
    words = ["export", str(tmp_path / "tiny.keras"), "--to", format, "--output", str(path)]
    assert main([*words, "--labels", str(labels)]) == 0
    assert str(path) in capsys.readouterr().out
    assert find_format(path / "1" if format == "saved_model" else path) == format
    assert main(["verify", str(path), str(tmp_path / "tiny.keras")]) == 0
    printed = capsys.readouterr().out
    assert "top-1 100.00%" in printed and ("XNNPACK computes" in printed) == (format == "litert")
    report = verify_export(path, model, images=pixels)
    assert report.max_difference < 1e-5
    assert (report.format, report.images) == (format, 6)
    assert f"({format}): " in str(report) and "unknown" not in str(report)


@pytest.mark.slow
def test_the_command_line_calibrates_with_images(model, tmp_path, capsys):
    model = keras.models.clone_model(model)
    model.get_layer("head").bias.assign(10.0 * np.arange(model.output_shape[-1]))  # no close calls
    model.save(tmp_path / "tiny.keras")
    rng = np.random.default_rng(0)
    folder = tmp_path / "photographs"
    folder.mkdir()
    for index in range(6):
        image = rng.integers(0, 256, (20 + index, 40, 3), "uint8")
        (folder / f"{index}.png").write_bytes(tf.io.encode_png(image).numpy())
    words = ["export", str(tmp_path / "tiny.keras"), "--to", "litert", "--precision", "int8"]
    path = tmp_path / "tiny.tflite"
    assert main([*words, "--output", str(path)]) == 2
    assert '"int8" needs `calibration`' in capsys.readouterr().err
    assert main([*words, "--output", str(path), "--images", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "litert int8" in printed and "(6 images)" in printed
    arguments = ["verify", str(path), str(tmp_path / "tiny.keras"), "--images", str(folder)]
    assert main(arguments) == 0
    assert "(6 images)" in capsys.readouterr().out


def test_verify_takes_the_newest_version(tmp_path):
    for version in ("2", "10", "9"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "saved_model.pb").touch()
    (tmp_path / "11").mkdir()  # not complete
    assert newest_version(tmp_path) == tmp_path / "10"
    assert newest_version(tmp_path / "9") == tmp_path / "9"


def test_verify_export_detects_another_model(model, tmp_path, monkeypatch, capsys):

    path = export_onnx(model, tmp_path / "tiny.onnx").path
    other = keras.models.clone_model(model)
    other.set_weights([weight + 0.1 for weight in model.get_weights()])
    monkeypatch.delenv("KERAS_VIT_PROGRESS", raising=False)
    monkeypatch.setattr("keras_vit.progress._FIRST", 1e-3)
    assert verify_export(path, other).max_difference > 1e-2
    assert f"verification of {path}: " in capsys.readouterr().err
    with pytest.raises(ExportMismatchError, match="onnx export differs from the model"):
        verify_export(path, other, tolerance=1e-3, verbose=False)
    assert "verification" not in capsys.readouterr().err


FINE, ADVICE = None, "find_export"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("precision", "difference", "agreement", "of_task", "message"),
    [
        ("float32", 3e-6, 1.0, True, FINE),
        ("float32", 5e-4, 1.0, False, "synthetic images. This may be rounding. Pass images"),
        ("float32", 5e-4, 1.0, True, "that were passed. This may be rounding. `tolerance` allows"),
        ("float32", 0.2, 1.0, False, "more than rounding.*Do not raise `tolerance`"),
        ("float16", 0.1, 1.0, False, "rounding of 16 bits. Take "),
        ("float16", 0.3, 1.0, False, "more than rounding.*Do not raise `tolerance`"),
        ("int8", 0.3, 0.5, False, FINE),  # synthetic images say nothing about classes
        ("int8", 0.3, 0.66, True, rf"agreement 66\.0% \(at least: 70\.0%\).*{ADVICE}[^P]*$"),
        ("int8", 0.3, 0.77, True, UserWarning),
        ("int8", 0.3, 0.97, True, FINE),
        ("int8", 0.6, 0.97, False, f"{ADVICE}.*Pass images of the task"),
    ],
)
def test_one_rule_for_all_formats(format, precision, difference, agreement, of_task, message):
    if precision not in FORMATS[format].tolerances:
        precision = "bfloat16"  # of a SavedModel, in place of int8
        if difference > 0.1:
            return
    report = ExportReport("m", format, precision, 1, 20, difference, agreement, 1.0, 1.0)
    assert ("INFERENCE_PRECISION_HINT" in str(report)) == (format == "openvino")
    if message is FINE:
        assert check(report, of_task) is report
    elif message is UserWarning:
        with pytest.warns(UserWarning, match=rf"another class.*77\.0%.*{ADVICE}"):
            check(report, of_task)
    else:
        with pytest.raises(ExportMismatchError, match=message):
            check(report, of_task)
    assert check(report, of_task, tolerance=float("inf")) is report


def test_small_targets_are_compared_in_their_own_unit(tmp_path):
    """A file that gives one value for all images is not taken for a regression within 0.3."""
    small = keras_vit.build_vit(tiny_config(classes=1, depth=1))
    fill_random(small, 0.1)
    head = small.get_layer("head")
    head.set_weights([0.002 * weight for weight in head.get_weights()])
    options = {"images": images_for(small), "activation": "linear"}
    path = export_onnx(small, tmp_path / "small.onnx", **options).path
    assert verify_export(path, small, **options).max_difference < 1e-4
    head.set_weights([0 * weight for weight in head.get_weights()])  # the other then is relative
    constant = export_onnx(small, tmp_path / "constant.onnx", **options).path
    head.set_weights([weight + 0.001 for weight in head.get_weights()])
    assert verify_export(constant, small, **options).max_difference == pytest.approx(1, abs=1e-6)


def test_files_that_are_no_exports(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing' does not exist"):
        find_format(tmp_path / "missing")
    (tmp_path / "text").write_text("no model")
    with pytest.raises(ValueError, match="An exported file must be"):
        find_format(tmp_path / "text")


def test_a_file_without_an_output_of_the_model(pixels, tmp_path):
    message = "Expected one of: logits, features. Received: .* with scores."
    with pytest.raises(ValueError, match=message):
        compare(
            tmp_path,
            "onnx",
            "float32",
            lambda pixels: {"scores": pixels},
            {"logits": pixels, "features": pixels},
            pixels,
        )


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 16, 16, 3)), "must be pixels of shape"),
        (np.full((1, 32, 32, 3), -1.0), "0, 255"),
        (np.full((1, 32, 32, 3), 0.5), r"look like a range of \[0, 1\]. Multiply by 255"),
    ],
)
def test_images_that_are_not_pixels(images, message, model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_onnx(model, tmp_path / "tiny.onnx", images=images)
