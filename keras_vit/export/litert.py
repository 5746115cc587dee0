"""LiteRT (TensorFlow Lite): one file for phones and small processors."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.export.files import check_labels
from keras_vit.export.inference import Inference, check_outputs, prepare
from keras_vit.export.litert_int8 import LayerError, quantize
from keras_vit.export.serving import model_card
from keras_vit.export.verify import (
    ExportReport,
    Images,
    Runner,
    check,
    check_precision,
    compare,
    resize_images,
    verification_images,
)
from keras_vit.files import write_atomically

# Largest difference allowed, relative to the largest logit.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "dynamic": 0.5, "int8": 0.5}


def export_litert(
    model: keras.Model,
    path: str | os.PathLike,
    precision: str = "float32",
    labels: Sequence[str] | None = None,
    batch_size: int | None = 1,
    outputs: Sequence[str] | None = None,
    calibration: Images | None = None,
    float_layers: Sequence[str] = (),
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    tolerance: float | None = None,
) -> ExportReport:
    """Writes a model as a LiteRT file of built-in operators, and checks it against the model.

    The file reads `pixels`, float32 in [0, 255] of the model's size, and returns named outputs;
    normalisation is inside. `labels.txt` and `model_card.json` are packed into the file, as LiteRT
    packs such files: `unzip model.tflite labels.txt` takes one out.

    Args:
        model: A functional model, trained in any precision.
        path: File to write, usually ending in `.tflite`; it must not exist.
        precision: `"float32"`; `"float16"` (weights of half the size); `"dynamic"` (8-bit weights,
            what dense layers read is quantised as it comes); `"int8"` (dense layers and
            convolutions in 8 bits after a calibration, the residual stream, softmax and layer
            norms float).
        labels: Name of each class in order; `None` takes their numbers.
        batch_size: Images in one call; `None` leaves it open, which costs operators that compute
            shapes. `"int8"` takes 1.
        outputs: Any of `"logits"`, `"probabilities"`, `"features"`; `None` takes the logits, or
            the features of a model without a head.
        calibration: Images of the task for `"int8"`, each of shape `(h, w, C)` and any size, in
            [0, 255]; a hundred do. They go through the model's own preprocessing.
        float_layers: Parts of names of tensors that `"int8"` leaves float: see `litert_errors`.
        images: Pixels of shape `(B, H, W, C)` in [0, 255] to check on, or a list of images of any
            size, as `read_images` makes; `None` takes stored ones.
        preprocessing: How images become the model's pixels; `None` takes the model's own.
        tolerance: Largest difference allowed, relative to the largest logit.

    Returns:
        An `ExportReport`.

    Raises:
        FileExistsError: If there is something at `path`.
        OSError: If `path` cannot be written.
        ValueError: If the model cannot be exported, the labels are not one a class, or
            `"int8"` has no calibration or another batch size than 1.
        ExportMismatchError: If the file does not do what the model does; none is left then.

    Example:

    >>> print(keras_vit.export_litert(model, "model.tflite"))
    """
    check_precision(precision, TOLERANCES)
    inference = prepare(model, preprocessing=preprocessing)
    outputs = check_outputs(inference, outputs)
    labels = check_labels(labels, inference.classes)
    images = verification_images(images, inference)
    if precision == "int8":
        _check_int8(calibration, batch_size)
    with write_atomically(path) as unfinished:
        data, _ = _convert(inference, outputs, precision, batch_size, calibration, float_layers)
        unfinished.write_bytes(data)
        _pack(unfinished, inference, precision, labels)
        _check_operators(unfinished)
        expected, runner = inference.run(images), load_litert(unfinished)
        report = compare(unfinished, "litert", precision, runner, expected, images, batch_size or 4)
        check(report, TOLERANCES[precision], tolerance=tolerance)
    return dataclasses.replace(report, path=pathlib.Path(path))


def litert_errors(
    model: keras.Model,
    calibration: Images,
    float_layers: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
) -> list[LayerError]:
    """The error that 8 bits make in each quantised operator, the largest first.

    What stands at the top is what to keep float: pass a part of its tensor's name to
    `export_litert(..., float_layers=...)`.

    Args:
        model: A functional model.
        calibration: Images of the task, each of shape `(h, w, C)` and any size, in [0, 255].
        float_layers: Parts of names of tensors that stay float.
        preprocessing: How images become the model's pixels; `None` takes the model's own.

    Returns:
        A `LayerError` for each.
    """
    _check_int8(calibration, 1)
    inference = prepare(model, preprocessing=preprocessing)
    outputs = check_outputs(inference, None)
    return _convert(inference, outputs, "int8", 1, calibration, float_layers)[1]


def load_litert(path: str | os.PathLike) -> Runner:
    """A function from pixels to named outputs that runs a LiteRT file.

    A file of a fixed batch takes any number of images, one call for each batch; the last one is
    filled up with black images, whose outputs are dropped.

    Raises:
        ImportError: If `ai_edge_litert` is not installed.
    """
    runner = _interpreter(path).get_signature_runner("serving_default")
    fixed = int(runner.get_input_details()["pixels"]["shape_signature"][0])

    def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
        step = fixed if fixed > 0 else len(pixels)
        padding = [(0, -len(pixels) % step), *[(0, 0)] * 3]
        padded = np.pad(np.asarray(pixels, "float32"), padding)
        parts = [
            runner(pixels=padded[start : start + step]) for start in range(0, len(padded), step)
        ]
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return {name: values[: len(pixels)] for name, values in outputs.items()}

    return run


def count_litert_operators(path: str | os.PathLike) -> collections.Counter:
    """How many operators of each kind a LiteRT file has."""
    return collections.Counter(row["op_name"] for row in _interpreter(path)._get_ops_details())


def _interpreter(path: str | os.PathLike):
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise ImportError(
            "LiteRT files are run by ai-edge-litert. Install it with "
            '`pip install "keras_vit[litert]"`.'
        ) from error
    return Interpreter(model_path=os.fspath(path), num_threads=os.cpu_count())


def _convert(
    inference: Inference,
    outputs: Sequence[str],
    precision: str,
    batch_size: int | None,
    calibration: Images | None,
    float_layers: Sequence[str],
) -> tuple[bytes, list[LayerError]]:
    """The bytes of the file, from a SavedModel of one signature, which gives names to tensors."""
    module = tf.Module()
    module.variables_read = inference.variables
    spec = tf.TensorSpec((batch_size, *inference.input_shape), tf.float32, "pixels")

    def function(pixels):
        results = inference(pixels)
        return {name: results[name] for name in outputs}

    with tempfile.TemporaryDirectory() as directory:
        tf.saved_model.save(module, directory, tf.function(function).get_concrete_function(spec))

        def make_converter() -> tf.lite.TFLiteConverter:
            converter = tf.lite.TFLiteConverter.from_saved_model(directory)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            return converter

        if precision == "int8" and calibration is not None:
            return quantize(make_converter, resize_images(calibration, inference), float_layers)
        converter = make_converter()
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        return converter.convert(), []


def _check_int8(calibration, batch_size: int | None) -> None:
    if calibration is None or not len(calibration):
        raise ValueError(
            'precision="int8" needs `calibration`: a hundred images of the task, of shape '
            f"(h, w, C), in [0, 255]. Received: {calibration!r}."
        )
    if batch_size != 1:
        raise ValueError(f'precision="int8" needs batch_size=1. Received: {batch_size}.')


def _check_operators(path: pathlib.Path) -> None:
    """Raises ValueError where a file needs more than LiteRT's built-in operators."""
    foreign = [name for name in count_litert_operators(path) if name.startswith(("Flex", "CUSTOM"))]
    if foreign:
        raise ValueError(
            f"The model needs operators that LiteRT does not have: {', '.join(foreign)}. Replace "
            "the layers that use them."
        )


def _pack(path: pathlib.Path, inference: Inference, precision: str, labels: list[str]) -> None:
    """Appends labels and the model card as a zip archive, where LiteRT's tools look for them."""
    card = model_card(inference, precision, labels)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.txt", "".join(f"{label}\n" for label in labels))
        archive.writestr("model_card.json", json.dumps(card, indent=1))
