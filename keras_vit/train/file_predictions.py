"""Predictions for image files: class probabilities, scores of labels, or values of targets."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from keras_vit.errors import needing_tensorflow
from keras_vit.evaluate.class_predictions import predict_set
from keras_vit.evaluate.targets import AnyPredictions, predict_targets
from keras_vit.models.heads import class_probabilities
from keras_vit.progress import Progress

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet


_LARGE = 100_000  # images: more than an hour of S/16 on two cores
_BEAM_ADVICE = (
    "{:,} images in one process, which keeps all results in memory and begins again after a kill. "
    "From 100,000 images on, export/beam/archive.py of the repository predicts them on several "
    "processes or machines, and continues."
)


class Prediction(NamedTuple):
    """A model's prediction for one image file.

    Args:
        file: The image file; of an image in a tar or Parquet file `"0.tar:cat.jpg"`, in records
            `"image 0"`.
        classes: Probabilities by class name, or scores by label, the largest first; of a regression
            the values by target, in the order of the targets. A name of several classes is followed
            by the position of the class: `"crane (134)"`.
    """

    file: pathlib.Path
    classes: dict[str, float]


def classify_files(
    model: keras.Model,
    class_names: Sequence[str],
    files: Sequence[str | os.PathLike[str]],
    batch_size: int = 32,
    unreadable: str = "error",
    task: str = "single_label",
) -> list[Prediction]:
    """Predicts image files with a model, preprocessed as in evaluation.

    Args:
        model: A model that returns logits or probabilities, or the values of targets.
        class_names: Names of its classes or targets, in order.
        files: Image files and folders of image files; or tars, Parquet files or folders of them, or
            a folder of records, whose labels are not read.
        batch_size: Images per step.
        unreadable: `"error"` or `"skip"`, as for `read_folder`.
        task: What the outputs are.

    Returns:
        A `Prediction` for every file that can be read.
    """
    with needing_tensorflow("`classify_files`"):
        from keras_vit.data.batches import eval_batches
        from keras_vit.data.folder import read_files
        from keras_vit.data.sources import are_shards, open_shards

    if len(model.output_shape) != 2:
        raise ValueError(
            "Classes of images need outputs of shape (B, K). Received: a model with outputs of "
            f"shape {model.output_shape}. For classes of pixels, use `keras-vit segment predict` "
            "or `keras_vit.segmentation.predict_masks`."
        )
    places = [os.fspath(file) for file in files]
    if are_shards(places):
        images = open_shards(places, class_names, unreadable, labelled=False)
        images = dataclasses.replace(images, class_names=tuple(class_names))
        paths = list(map(pathlib.Path, images.file_names()))
    else:
        paths, images = read_files(places, class_names, unreadable)
    outputs: list[np.ndarray] = []
    plan = _BEAM_ADVICE.format(len(paths)) if len(paths) >= _LARGE else ""
    with Progress("predictions", len(paths), "images", plan=plan) as progress:
        for x, _ in eval_batches(images, model, batch_size):
            outputs.append(model.predict_on_batch(x))
            progress.update(progress.done + len(outputs[-1]))
    found = class_probabilities(model, np.concatenate(outputs), task)
    orders = np.argsort(-found, axis=1)
    if task == "regression":
        orders = np.tile(np.arange(found.shape[1]), (len(found), 1))
    names = _unique_names(class_names)
    return [
        Prediction(path, {names[i]: float(values[i]) for i in order})
        for path, values, order in zip(paths, found, orders, strict=True)
    ]


def _unique_names(class_names: Sequence[str]) -> list[str]:
    counts = collections.Counter(class_names)
    return [f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(class_names)]


def predict_labelled(
    model: keras.Model, images: ImageSet, batch_size: int, class_names: Sequence[str] | None = None
) -> AnyPredictions:
    """Predicts labelled images, by `predict_set` or `predict_targets`."""
    predict = predict_set if images.task == "single_label" else predict_targets
    return predict(model, images, batch_size, class_names=class_names)
