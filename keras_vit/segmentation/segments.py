"""Segments of images of any size, from the queries of a model of universal segmentation."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice
from keras_vit.data.image_files import read_pixels
from keras_vit.data.input_transform import transform_of
from keras_vit.data.pillow import resample
from keras_vit.layers.queries import CLASSES, MASKS
from keras_vit.runtime.model import find_preprocessing

TASKS = ("panoptic", "instance", "semantic")


def predict_segments(
    model: keras.Model,
    images: Iterable[Any],
    task: str = "panoptic",
    threshold: float = 0.8,
    mask_threshold: float = 0.5,
    overlap_threshold: float = 0.8,
    stuff_classes: Sequence[int] = (),
    batch_size: int = 8,
) -> list[Any]:
    """Predicts segments at the size of every image, as the `EomtImageProcessor` of transformers.

    Images are resized as Pillow does. They are filled up with black to the square of the model, or
    split into overlapping squares whose logits are averaged, as the checkpoint's
    `preprocessor_config.json` says (`do_split_image`).

    Args:
        model: A model of `build_eomt`, or of a checkpoint.
        images: Pixels of shape `(h, w, C)` in [0, 255], or paths of image files.
        task: `"panoptic"`: segments that do not overlap; `"instance"`: the last of overlapping
            masks counts; `"semantic"`: the class of every pixel.
        threshold: Least score of a segment.
        mask_threshold: Least probability of a pixel of a panoptic segment.
        overlap_threshold: Share of a mask above `mask_threshold` that must belong to no other
            query, for a panoptic segment.
        stuff_classes: Classes of which an image has one panoptic segment at most.
        batch_size: Squares that the model computes at a time.

    Returns:
        For each image a dict of `segmentation`, an int32 array of shape `(h, w)` with the number of
        the segment of every pixel and -1 outside, and `segments_info`, a list of dicts with `id`
        (this number), `label_id` (the class) and `score`. For `"semantic"` an int64 array of shape
        `(h, w)` of classes.

    Raises:
        ValueError: If the task is unknown, the model has other outputs, takes no square images or
            no pixels, or its preprocessing splits images and the task needs whole ones.
    """
    check_choice("task", task, TASKS)
    if isinstance(images, (str, bytes, os.PathLike)) or getattr(images, "ndim", 4) == 3:
        raise ValueError("`images` must be a list of images. Received: one image. Pass [image].")
    processor = (getattr(model, "published", None) or {}).get("processor", {})
    splits = bool(processor.get("do_split_image"))
    transform = transform_of(model)
    side = transform.image_size[0]
    outputs = model.output if isinstance(model.output, dict) else {}
    for is_met, need in (
        ({MASKS, CLASSES} <= outputs.keys(), "masks of queries: load a checkpoint of EoMT"),
        (transform.image_size == (side, side), "square images: pass input_shape=(side, side, 3)"),
        (find_preprocessing(model)[1], "pixels in [0, 255]: pass include_preprocessing=True"),
        (processor.get("resample", 2) == 2, "images that are resized linearly (resample=2)"),
        (task == "semantic" or not splits, 'whole images, or task="semantic" (do_split_image)'),
    ):
        if not is_met:
            raise ValueError(
                f"Segments need a model of {need}. Received: {model.name!r} for images of "
                f"{transform.image_size} pixels, task={task!r}."
            )
    found: list[Any] = []
    for index, image in enumerate(images):
        pixels, _ = read_pixels(image, index, transform.channels)
        own = pixels.shape[0], pixels.shape[1]
        size = _resized_size(own, side, splits)
        starts, axis = _windows(size, side) if splits else [0], int(size[0] <= size[1])
        resized = resample(tf.constant(pixels), size, (0, 0), size, "bilinear").numpy()
        parts = [np.take(resized, range(x, min(x + side, size[axis])), axis) for x in starts]
        squares = np.zeros((len(parts), side, side, resized.shape[-1]), "float32")
        for square, part in zip(squares, parts, strict=True):
            square[: part.shape[0], : part.shape[1]] = part
        predicted = model.predict(squares, batch_size, verbose=0)
        masks, classes = predicted[MASKS], tf.nn.softmax(predicted[CLASSES]).numpy()
        if task == "semantic":
            found.append(_semantic(masks, classes, (side, size, own), starts, axis))
            continue
        none = classes.shape[-1] - 1
        chosen = classes[0, :, :none] if task == "instance" else classes[0]
        scores, labels = chosen.max(-1), chosen.argmax(-1)
        kept = scores >= threshold if task == "instance" else scores > threshold
        kept &= labels < none
        masks, scores, labels = masks[0, kept], scores[kept], labels[kept]
        logits = _resize(_resize(masks, (side, side))[:, : size[0], : size[1]], own)
        if task == "instance":
            found.append(_instances(logits, scores, labels, threshold))
        else:
            limits = mask_threshold, overlap_threshold
            found.append(_panoptic(logits, scores, labels, limits, stuff_classes))
    return found


def _resized_size(size: tuple[int, int], side: int, covers: bool) -> tuple[int, int]:
    """The size of an image that covers a square, or fits into it, as transformers rounds it."""
    short, long = min(size), max(size)
    exact: float = side
    if not covers and long / short * side > side:
        exact = side * short / long
    shorter = round(exact)
    longer = long if short == shorter else int(exact * long / short)
    return (longer, shorter) if size[0] > size[1] else (shorter, longer)


def _windows(size: tuple[int, int], side: int) -> list[int]:
    """First pixels of squares along the longer side, at even distances rounded down."""
    count = math.ceil(max(size) / side)
    overlap = (count * side - max(size)) / (count - 1) if count > 1 else 0
    return [int(index * (side - overlap)) for index in range(count)]


def _resize(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes maps `(n, rows, columns)`, without antialiasing."""
    if not len(maps):
        return np.zeros((0, *size), "float32")
    return tf.image.resize(maps.transpose(1, 2, 0), size).numpy().transpose(2, 0, 1)


def _semantic(
    masks: np.ndarray,
    probabilities: np.ndarray,
    sizes: tuple[int, tuple[int, int], tuple[int, int]],
    starts: list[int],
    axis: int,
) -> np.ndarray:
    """Class of every pixel: the largest sum of products of both probabilities over all queries."""
    side, size, own = sizes
    total = np.zeros((probabilities.shape[-1] - 1, *size), "float32")
    count = np.zeros(size, "float32")
    for start, logits, classes in zip(starts, masks, probabilities, strict=True):
        inside = tf.sigmoid(_resize(logits, (side, side))[:, : size[0], : size[1]]).numpy()
        where: list[Any] = [slice(None), slice(None)]
        where[axis] = slice(start, start + side)
        total[:, where[0], where[1]] += np.tensordot(classes[:, :-1], inside, (0, 0))
        count[tuple(where)] += 1
    return _resize(total / np.maximum(count, 1), own).argmax(0)


def _instances(
    logits: np.ndarray, scores: np.ndarray, labels: np.ndarray, threshold: float
) -> dict[str, Any]:
    segmentation = np.full(logits.shape[1:], -1, "int32")
    segments: list[dict[str, Any]] = []
    for mask, score, label in zip(logits, scores, labels, strict=True):
        inside = mask > 0
        area = np.float32(inside.sum())
        score = score * (tf.sigmoid(mask).numpy()[inside].sum() / (area + np.float32(1e-6)))
        if area and score >= threshold:
            segmentation[inside] = len(segments)
            segments.append(_segment(len(segments), label, score))
    return {"segmentation": segmentation, "segments_info": segments}


def _panoptic(
    logits: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    limits: tuple[float, float],
    stuff_classes: Sequence[int],
) -> dict[str, Any]:
    mask_threshold, overlap_threshold = limits
    segmentation = np.full(logits.shape[1:], -1, "int32")
    segments: list[dict[str, Any]] = []
    known: dict[int, int] = {}  # segments of stuff
    probabilities = tf.sigmoid(logits).numpy()
    weighted = scores[:, None, None] * probabilities
    owner = weighted.argmax(0) if len(scores) else segmentation
    for index, (score, label) in enumerate(zip(scores, labels, strict=True)):
        own, inside = owner == index, probabilities[index] >= mask_threshold
        if not (own & inside).any() or own.sum() / inside.sum() <= overlap_threshold:
            continue
        number = known.get(int(label), len(segments))
        segmentation[own & inside] = number
        if number == len(segments):
            segments.append(_segment(number, label, score))
        if label in stuff_classes:
            known[int(label)] = number
    return {"segmentation": segmentation, "segments_info": segments}


def _segment(number: int, label: int, score: float) -> dict[str, Any]:
    return {"id": number, "label_id": int(label), "score": round(float(score), 6)}
