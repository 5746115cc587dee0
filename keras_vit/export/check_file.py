"""A file that was exported before, beside a model."""

from __future__ import annotations

import os
import pathlib

import keras

from keras_vit.config import Preprocessing
from keras_vit.export.inference import prepare
from keras_vit.export.litert import load_litert
from keras_vit.export.onnx import load_onnx
from keras_vit.export.saved_model import load_saved_model
from keras_vit.export.verify import ExportReport, Images, check, compare, verification_images

_LOADERS = {"saved_model": load_saved_model, "litert": load_litert, "onnx": load_onnx}


def verify_export(
    path: str | os.PathLike,
    model: keras.Model,
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    tolerance: float | None = None,
) -> ExportReport:
    """Runs an exported file and the model on the same images, and reports how they differ.

    Args:
        path: A version of a SavedModel, a LiteRT file or an ONNX file.
        model: The model it should do the same as.
        images: Pixels of shape `(B, H, W, C)` in [0, 255], or a list of images of any size;
            `None` takes stored ones.
        preprocessing: How images become the model's pixels; `None` takes the model's own.
        tolerance: Largest difference allowed, relative to the largest logit; `None` only reports.

    Returns:
        An `ExportReport`, whose precision is `"unknown"`.

    Raises:
        FileNotFoundError: If there is nothing at `path`.
        ValueError: If it is none of the three.
        ExportMismatchError: If they differ by more than `tolerance`.

    Example:

    >>> print(keras_vit.verify_export("model.onnx", model))
    """
    format = find_format(path)
    inference = prepare(model, preprocessing=preprocessing)
    images = verification_images(images, inference)
    runner, expected = _LOADERS[format](path), inference.run(images)
    return check(
        compare(path, format, "unknown", runner, expected, images), None, tolerance=tolerance
    )


def find_format(path: str | os.PathLike) -> str:
    """`"saved_model"`, `"litert"` or `"onnx"`, found from what is at `path`.

    Raises:
        FileNotFoundError: If there is nothing at `path`.
        ValueError: If it is none of the three.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is nothing at {str(path)!r}.")
    if (path / "saved_model.pb").is_file():
        return "saved_model"
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(8)
        if head[4:] == b"TFL3":
            return "litert"
        if head[:1] == b"\x08":  # the field ir_version of an ONNX model
            return "onnx"
    raise ValueError(
        "A file to verify is a version of a SavedModel (a directory with saved_model.pb), a LiteRT "
        f"file or an ONNX file. Received: {str(path)!r}."
    )
