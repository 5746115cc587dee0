"""LiteRT (TensorFlow Lite): one file for phones and small processors."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.export.files import all_or_nothing
from keras_vit.export.inference import Inference, prepare
from keras_vit.export.verify import (
    ExportReport,
    Runner,
    check,
    check_precision,
    compare,
    verification_images,
)

TOLERANCES = {"float32": 1e-4}


def export_litert(
    model: keras.Model,
    path: str | os.PathLike,
    precision: str = "float32",
    batch_size: int | None = 1,
    images: np.ndarray | None = None,
    preprocessing: Preprocessing | None = None,
    tolerance: float | None = None,
) -> ExportReport:
    """Writes a model as a LiteRT file of built-in operators, and checks it against the model.

    The file reads `pixels`, float32 in [0, 255] of the model's size, and returns `logits` (or
    `features` without a head); normalisation is inside.

    Args:
        model: A functional model, trained in any precision.
        path: File to write, usually ending in `.tflite`; it must not exist.
        precision: `"float32"`.
        batch_size: Images in one call; `None` leaves it open, which costs operators that compute
            shapes.
        images: Pixels of shape `(B, H, W, C)` in [0, 255] to check on; `None` takes stored ones.
        preprocessing: How images become the model's pixels; `None` takes the model's own.
        tolerance: Largest difference allowed, relative to the largest logit.

    Returns:
        An `ExportReport`.

    Raises:
        FileExistsError: If there is something at `path`.
        OSError: If `path` cannot be written.
        ValueError: If the model cannot be exported.
        ExportMismatchError: If the file does not do what the model does; none is left then.

    Example:

    >>> print(keras_vit.export_litert(model, "model.tflite"))
    """
    check_precision(precision, TOLERANCES)
    inference = prepare(model, preprocessing=preprocessing)
    images = verification_images(images, inference)
    with all_or_nothing(path) as unfinished:
        unfinished.write_bytes(_convert(inference, batch_size))
        report = compare(
            unfinished,
            "litert",
            precision,
            load_litert(unfinished),
            inference.run(images),
            images,
            batch_size or 4,
        )
        check(report, TOLERANCES[precision], tolerance=tolerance)
    return dataclasses.replace(report, path=pathlib.Path(path))


def load_litert(path: str | os.PathLike) -> Runner:
    """A function from pixels to named outputs that runs a LiteRT file.

    Raises:
        ImportError: If `ai_edge_litert` is not installed.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise ImportError(
            "LiteRT files are run by ai-edge-litert. Install it with "
            '`pip install "keras_vit[litert]"`.'
        ) from error
    interpreter = Interpreter(model_path=os.fspath(path), num_threads=os.cpu_count())
    runner = interpreter.get_signature_runner("serving_default")

    def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
        return runner(pixels=np.asarray(pixels, "float32"))

    return run


def _convert(inference: Inference, batch_size: int | None) -> bytes:
    """The bytes of the file, from a SavedModel of one signature, which gives names to tensors."""
    module = tf.Module()
    module.variables_read = inference.variables
    name = "features" if inference.classes is None else "logits"
    spec = tf.TensorSpec((batch_size, *inference.input_shape), tf.float32, "pixels")
    function = tf.function(lambda pixels: {name: inference(pixels)[name]})
    with tempfile.TemporaryDirectory() as directory:
        tf.saved_model.save(module, directory, function.get_concrete_function(spec))
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        return converter.convert()
