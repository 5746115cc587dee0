"""SavedModel for TensorFlow Serving: from the bytes of an image to labels."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.export.files import check_labels
from keras_vit.export.inference import POLICIES, prepare
from keras_vit.export.serving import write_version_files
from keras_vit.export.signatures import ServingModule
from keras_vit.export.verify import (
    ExportReport,
    Images,
    Runner,
    check,
    check_precision,
    compare,
    verification_images,
)
from keras_vit.files import write_atomically

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1, "float16": 2e-2}


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    labels: Sequence[str] | None = None,
    version: int | None = None,
    precision: str = "float32",
    top_k: int = 5,
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
    tolerance: float | None = None,
    warmup_batch_sizes: Sequence[int] = (1,),
    jit_compile: bool = False,
) -> ExportReport:
    """Writes a model as a numbered version for TensorFlow Serving, and checks it.

    Signatures, all with float32 outputs `logits`, `probabilities`, `features`, and the `top_k`
    largest probabilities as `scores` with their labels as `classes`:

    - `serving_default`: `image_bytes`, encoded images of any size;
    - `tolerant`: the same; an image that cannot be read gives zeros and `valid` false, where
      `serving_default` refuses the batch;
    - `images`: uint8 pixels of any size; `float_images`: float32 in [0, 255];
    - `pixels`: float32 in [0, 255], already of the model's size;
    - `features`: `image_bytes`, and `features` alone.

    In `assets.extra` are warm-up requests, which a server runs before it serves, `labels.txt`, and
    `model_card.json` with one image and the model's outputs for it.

    Args:
        model: A functional model, trained in any precision.
        path: Directory of the versions, which TensorFlow Serving calls the model's base path.
        labels: Name of each class in order; `None` takes their numbers.
        version: Number of the version; `None` takes the next.
        precision: What the file computes in: `"float32"`, `"bfloat16"` or `"float16"`.
        top_k: How many classes are named, at most.
        images: Pixels of shape `(B, H, W, C)` in [0, 255] to check on, or a list of images of any
            size, as `read_images` makes; `None` takes stored ones.
        preprocessing: How images become the model's pixels; `None` takes the model's own.
        activation: What makes probabilities of logits, `"softmax"` or `"sigmoid"`; `None` takes
            the activation of the head, softmax where it has none.
        tolerance: Largest difference allowed, relative to the largest value of an output.
        warmup_batch_sizes: Batch sizes of the warm-up requests.
        jit_compile: Whether XLA compiles the model, once for every batch size that comes: faster
            in float32 on processors for which TensorFlow does not switch oneDNN on by itself.

    Returns:
        An `ExportReport`, whose path is that of the version.

    Raises:
        FileExistsError: If the version exists.
        OSError: If `path` cannot be written.
        ValueError: If the model cannot be exported, or the labels are not one a class.
        ExportMismatchError: If the file does not do what the model does; none is left then.

    Example:

    >>> report = keras_vit.export_saved_model(model, "serving/pets", labels=names)
    >>> report.path
    PosixPath('serving/pets/1')
    """
    check_precision(precision, POLICIES)
    inference = prepare(model, precision, preprocessing, activation)
    labels = check_labels(labels, inference.classes)
    module = ServingModule(inference, labels, top_k, jit_compile)
    images = verification_images(images, inference)
    expected = prepare(model, "float32", preprocessing, activation).run(images)
    destination = pathlib.Path(path) / str(_next_version(path) if version is None else version)
    with write_atomically(destination) as unfinished:
        tf.saved_model.save(module, os.fspath(unfinished), module.signatures())
        write_version_files(unfinished, inference, labels, precision, warmup_batch_sizes)
        runner = load_saved_model(unfinished)
        report = compare(unfinished, "saved_model", precision, runner, expected, images)
        check(report, TOLERANCES[precision], tolerance=tolerance)
    return dataclasses.replace(report, path=destination)


def load_saved_model(path: str | os.PathLike) -> Runner:
    """A function from pixels of the model's size to named outputs that runs a SavedModel."""
    loaded = tf.saved_model.load(os.fspath(path))
    signature = loaded.signatures["pixels"]

    def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
        outputs = signature(tf.constant(pixels, tf.float32))
        return {name: value.numpy() for name, value in outputs.items()}

    run.loaded = loaded  # type: ignore[attr-defined]  # the variables live as long as it does
    return run


def _next_version(path: str | os.PathLike) -> int:
    """One more than the largest numbered version in a directory."""
    path = pathlib.Path(path)
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=0) + 1
