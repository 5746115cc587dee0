"""Export of segmentation to SavedModel: from image files to class maps of their own size."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.checks import check_positive
from keras_vit.config import Preprocessing
from keras_vit.data.decode import MAX_PIXELS, decode
from keras_vit.export.freeze import stack_equal, with_weights
from keras_vit.export.inference import Inference, check_labels, prepare
from keras_vit.export.runners import load_saved_model
from keras_vit.export.verify import (
    ExportReport,
    Images,
    check,
    compare,
    expected_outputs,
    synthetic_images,
    verification_images,
)
from keras_vit.files import list_names, next_version, publish_version, write_atomically
from keras_vit.models.graph import final_activation
from keras_vit.progress import Progress
from keras_vit.segmentation.evaluation import resized_image
from keras_vit.segmentation.networks import as_segmenter, is_network

_MAX_CLASSES = 256  # of 8-bit class maps
_AGREEMENT = 0.999  # of the pixels of a class map: two logits can be equal to rounding


def export_segmenter(
    model: keras.Model,
    path: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    version: int | None = None,
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    tolerance: float | None = None,
    max_pixels: int = MAX_PIXELS,
    verbose: bool | int = True,
) -> ExportReport:
    """Exports a segmentation model as a SavedModel for TensorFlow Serving, and checks it.

    The whole image is resized to the input of the model, and the outputs to the size of the image,
    as by `keras_vit.segmentation.predict_masks`. Signatures, each for one image of any size:

    - `serving_default`: `image_bytes`, a string; returns `class_map`, uint8 of shape `(h, w)`, and
      `png`, the same as the bytes of a grey PNG;
    - `image`: `image`, uint8 of shape `(h, w, C)`; returns `class_map`;
    - `pixels`: `pixels`, float32 `(B, H, W, C)` of the model's size; returns `logits`, or
      `probabilities` of a model that ends in softmax or sigmoid, and both also under the name of
      the layer that gives them.

    Args:
        model: A model of `build_segmenter`, or another to logits or probabilities of shape
            `(B, H, W, K)`. The file keeps its outputs as they are.
        path: Directory of the versions.
        labels: Class names in order, written to `assets.extra/labels.txt`; `None` takes those of
            the model, or indices.
        version: Version number; `None` takes the next.
        images: Images for the check, as for `export_saved_model`.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        tolerance: Largest difference allowed, relative to the largest output; `None` takes 1e-4,
            and 99.9 % of the pixels of class maps must agree.
        max_pixels: Height times width above which an encoded image is refused.
        verbose: Whether to print, now and then, which step runs and how long it has taken.

    Returns:
        An `ExportReport` with the path of the version; `top1_agreement` is of pixels.

    Raises:
        FileExistsError: If the version exists.
        ValueError: If the model gives no logits of pixels, or one class, or more than 256.
        ExportMismatchError: If the outputs differ from the model's. No file is left then.
    """
    check_positive("max_pixels", max_pixels)
    by_processor, model = is_network(model), as_segmenter(model)
    shape = getattr(model, "output_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 4 or not 1 < shape[-1] <= _MAX_CLASSES:
        raise ValueError(
            "The model must give logits of shape (B, H, W, K), of 2 to "
            f"{_MAX_CLASSES} classes. Received: output shape {shape}. Export classifiers, and maps "
            "of one channel, with `export_saved_model`."
        )
    inference = prepare(model, "float32", preprocessing, activation="linear")
    how = inference.preprocessing if by_processor else None
    names = check_labels(labels, shape[-1], model)
    pixels = verification_images(images, inference)
    expected = expected_outputs(inference, pixels)
    base = pathlib.Path(path).expanduser()
    number = next_version(list_names(base)) if version is None else version
    destination = base / str(number)
    progress = Progress("export as SavedModel", 2, "steps", verbose)
    with write_atomically(destination) as unfinished, progress:
        progress.step("writing")
        is_activated = final_activation(model) in ("softmax", "sigmoid")
        name = "probabilities" if is_activated else "logits"
        module = _ServingModule(inference, max_pixels, name, how)
        tf.saved_model.save(module, os.fspath(unfinished), module.signatures())
        (unfinished / "assets.extra").mkdir()
        text = "".join(f"{name}\n" for name in names)
        (unfinished / "assets.extra" / "labels.txt").write_text(text, encoding="utf-8")
        runner = load_saved_model(unfinished)
        progress.step("checking against the model")
        expected[name] = _only(expected)
        report = compare(unfinished, "saved_model", "float32", runner, expected, pixels)
        agreement = min(report.top1_agreement or 0.0, _agreement(runner, inference, how))
        report = dataclasses.replace(report, top1_agreement=agreement)
        inference.check_unchanged()
        check(report, images is not None, tolerance, _AGREEMENT)
        if version is None:
            destination = publish_version(unfinished, base)
    return dataclasses.replace(report, path=destination)


def _only(outputs: dict[str, Any]) -> Any:
    """The one output, which a model of others gives under a name of its own."""
    (output,) = outputs.values()
    return output


def _agreement(runner: Any, inference: Inference, how: Preprocessing | None) -> float:
    """Lowest share of equal pixels in the class maps of two images of other sizes."""
    height, width, channels = inference.input_shape
    shares = []
    for size in ((height * 3 // 2 + 1, width * 4 // 3), (height // 2 + 1, width * 2)):
        (image,) = synthetic_images((*size, channels), count=1).astype("uint8")
        found = runner.loaded.signatures["image"](image=tf.constant(image))["class_map"].numpy()
        x = np.asarray(resized_image(tf.constant(image), (height, width), how))[None]
        logits = _only(inference.run(x))  # by the model itself, not by the file
        shares.append(float(np.mean(tf.image.resize(logits, size)[0].numpy().argmax(-1) == found)))
    return min(shares)


class _ServingModule(tf.Module):
    """A segmentation model with decoding and resizing, as a server needs it."""

    def __init__(self, inference: Inference, max_pixels: int, name: str, how: Any):
        super().__init__()
        spec = tf.TensorSpec((None, *inference.input_shape), tf.float32, "pixels")
        self.weights, read = stack_equal(inference.variables)  # so they are saved

        def compute(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
            return with_weights(inference, read())(pixels)

        run = tf.function(compute).get_concrete_function(spec)
        self._inference, self._max_pixels = inference, max_pixels
        self._output, self._how = name, how
        self._run = lambda pixels: run(pixels)  # the file holds the graph of the model once

    def signatures(self) -> dict[str, Any]:
        """Returns the concrete functions by signature name."""
        shape = self._inference.input_shape
        inputs: dict[str, tuple[Any, tf.TensorSpec]] = {
            "serving_default": (self._from_bytes, tf.TensorSpec((), tf.string, "image_bytes")),
            "image": (self._from_image, tf.TensorSpec((None, None, shape[-1]), tf.uint8, "image")),
            "pixels": (self._from_pixels, tf.TensorSpec((None, *shape), tf.float32, "pixels")),
        }
        return {
            name: tf.function(function).get_concrete_function(spec)
            for name, (function, spec) in inputs.items()
        }

    def _from_bytes(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        turn = self._inference.preprocessing.exif_orientation
        channels = self._inference.input_shape[-1]
        image = decode(image_bytes, channels, self._max_pixels, exif_orientation=turn)
        class_map = self._from_image(image)["class_map"]
        return {"class_map": class_map, "png": tf.io.encode_png(class_map[..., None])}

    def _from_image(self, image: tf.Tensor) -> dict[str, tf.Tensor]:
        pixels = resized_image(image, self._inference.input_shape[:2], self._how)[None]
        logits = tf.image.resize(_only(self._run(pixels)), tf.shape(image)[:2])[0]
        return {"class_map": tf.cast(tf.argmax(logits, -1), tf.uint8)}

    def _from_pixels(self, pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = self._run(pixels)
        return {**outputs, self._output: _only(outputs)}
