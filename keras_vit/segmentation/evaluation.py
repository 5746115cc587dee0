"""Evaluation of segmentation: class maps of whole images, mean IoU at their own size."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.checks import check_choice, pair, short_repr
from keras_vit.data.decode import MAX_PIXELS, name_damage
from keras_vit.data.input_transform import InputTransform, transform_of
from keras_vit.data.transforms import decode_for, eval_transform, in_range
from keras_vit.errors import printable
from keras_vit.models.graph import check_head
from keras_vit.progress import Progress
from keras_vit.segmentation.masks import IGNORED, MaskSet
from keras_vit.segmentation.networks import as_segmenter, is_network

MODES = ("whole", "slide")


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentationResult:
    """Counts of pixels by true and predicted class, and the measures that follow from them.

    Args:
        class_names: Names of the classes.
        confusion: int64 array of shape `(K, K)`: pixels of the true class (row) for which the class
            of the column was predicted. Ignored pixels are left out.
        num_images: Number of images.
    """

    class_names: tuple[str, ...]
    confusion: np.ndarray
    num_images: int

    __repr__ = short_repr

    @property
    def iou(self) -> np.ndarray:
        """Intersection over union of every class, `nan` for one in neither masks nor predictions.

        float64 array of shape `(K,)`.
        """
        hits = np.diag(self.confusion).astype("float64")
        union = self.confusion.sum(0) + self.confusion.sum(1) - hits
        return np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0)

    @property
    def mean_iou(self) -> float:
        """Mean of `iou` over the classes that occur, as Keras's `MeanIoU`."""
        return float(np.nanmean(self.iou)) if self.confusion.any() else float("nan")

    @property
    def pixel_accuracy(self) -> float:
        """Share of the labelled pixels whose class is predicted."""
        total = self.confusion.sum()
        return float(np.trace(self.confusion) / total) if total else float("nan")

    def __str__(self) -> str:
        pairs = zip(self.class_names, self.iou, strict=True)
        lines = [f"{printable(name):>20}  {iou:7.2%}" for name, iou in pairs]
        end = f"mean IoU {self.mean_iou:.2%}, pixel accuracy {self.pixel_accuracy:.2%}"
        return "\n".join([*lines, f"{end} ({self.num_images} images)"])


def evaluate_masks(
    model: keras.Model,
    masks: MaskSet,
    mode: str = "whole",
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    stride: int | tuple[int, int] | None = None,
    batch_size: int = 8,
    verbose: bool | int = True,
) -> SegmentationResult:
    """Compares the class maps of a model with masks, at the size of every image.

    Args:
        model: A model of `build_segmenter`, or another to logits of shape `(B, H, W, K)`.
        masks: Images with masks.
        mode: As for `predict_masks`, like the other arguments.
        scales: See there.
        flip: See there.
        stride: See there.
        batch_size: See there.
        verbose: Whether to print, now and then, how far it is and how long the rest will take.

    Returns:
        A `SegmentationResult`.

    Raises:
        ValueError: If the classes differ, a mask has another size than its image, holds values that
            are no class, or an image or mask is damaged.
    """
    count = masks.num_classes
    confusion = np.zeros((count, count), "int64")
    masks.check_classes(as_segmenter(model).output_shape[-1])
    transform = transform_of(model)
    task = f"evaluation on {masks.name}"
    with Progress(task, masks.num_images, "images", verbose) as progress:
        for index, (image, labels) in enumerate(masks.pairs()):
            with name_damage(masks.name_of(index)):
                image = tf.convert_to_tensor(image)
                image = decode_for(transform, image, masks.max_pixels, masks.exif_orientation)
            predicted = predict_masks(model, image, mode, scales, flip, stride, batch_size)
            if predicted.shape != labels.shape:
                raise ValueError(
                    f"The mask of {masks.name_of(index)} has {labels.shape} pixels, and the "
                    f"image {predicted.shape}. Save the mask in the size of the image."
                )
            masks.check_labels(index, labels)
            known = labels != IGNORED
            pairs = labels[known].astype("int64") * count + predicted[known]
            confusion += np.bincount(pairs, minlength=count**2).reshape(count, count)
            progress.update(index + 1)
    return SegmentationResult(masks.class_names, confusion, masks.num_images)


def predict_masks(
    model: keras.Model,
    image: Any,
    mode: str = "whole",
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    stride: int | tuple[int, int] | None = None,
    batch_size: int = 8,
    max_pixels: int = MAX_PIXELS,
    logits: bool = False,
) -> np.ndarray:
    """Predicts the class of every pixel of one image, at its own size.

    Args:
        model: As for `evaluate_masks`.
        image: Bytes of a file, or pixels of shape `(h, w, C)` in [0, 255].
        mode: `"whole"` resizes the image to the input of the model; `"slide"` resizes it, with its
            proportions, to the smallest size that covers the input, and averages the logits of
            windows of that size.
        scales: Sizes relative to that of the mode; for each the logits are resized to the size of
            the image, and their mean counts. Other than 1 needs `"slide"`. Images smaller than a
            window are filled up with the mean colour, as in training.
        flip: Whether the mirrored image counts too.
        stride: Pixels between windows; `None` takes two thirds of the window.
        batch_size: Windows that the model computes at a time.
        max_pixels: Height times width above which an encoded image is refused.
        logits: Whether to return the mean logits, before the choice of a class.

    Returns:
        int64 array of shape `(h, w)`; of logits a float32 array of shape `(h, w, K)`.

    Raises:
        ValueError: If an argument is out of its range, or the model has no head.
    """
    check_choice("mode", mode, MODES)
    if not is_network(model):
        check_head(model, "A prediction of pixels")
    transform = transform_of(model)
    window = transform.image_size
    steps = _steps(stride, window)
    if not scales or min(scales) <= 0 or (mode == "whole" and tuple(scales) != (1.0,)):
        raise ValueError(
            '`scales` must be positive numbers, and (1.0,) with mode="whole", where every image '
            f'has the size of the model. Received: scales={scales}, mode={mode!r}. Choose "slide".'
        )
    pixels = decode_for(transform, tf.convert_to_tensor(image), max_pixels)
    own = np.array(pixels.shape[:2])
    whole = is_network(model) and mode == "whole"
    segmenter = as_segmenter(model)
    total = np.zeros((*own, segmenter.output_shape[-1]), "float32")
    for scale, mirrored in itertools.product(scales, (False, True) if flip else (False,)):
        size = np.array(window)
        if mode == "slide":
            size = np.maximum(np.round(own * (np.max(window / own) * scale)).astype(int), 1)
        how = transform.preprocessing if whole else None  # as transformers prepares images
        x = resized_image(pixels, window if whole else size, how)
        x = _pad(x[:, ::-1] if mirrored else x, transform)
        x = in_range(transform, x).numpy()
        if whole and "logits" in model.output:  # which transformers resizes once
            found = np.moveaxis(model.predict_on_batch(x[None])["logits"][0], 0, -1)
        else:
            found = _windows(segmenter, x, steps, batch_size)
            found = found[: size[0], : size[1]]  # without the padding
        total += tf.image.resize(found[:, ::-1] if mirrored else found, own).numpy()
    total /= len(scales) * (2 if flip else 1)
    return total if logits else np.argmax(total, axis=-1)


def resized_image(image: Any, size: Any, preprocessing: Any) -> Any:
    """An image of shape `(h, w, C)` in another size: as in training, or as a preprocessing says."""
    if preprocessing is None:
        return tf.image.resize(tf.cast(image, tf.float32), size)
    return eval_transform(image, preprocessing, size)


def draw_classes(
    image: np.ndarray,
    class_map: np.ndarray,
    colors: Sequence[Sequence[int]] | None = None,
    opacity: float = 0.5,
) -> np.ndarray:
    """Draws the class of every pixel over an image.

    Args:
        image: Pixels of shape `(h, w, C)` in [0, 255], `C` 1 or 3.
        class_map: Integers of shape `(h, w)`; 255 leaves the pixel of the image as it is.
        colors: The colour of every class, three integers each; `None` takes those of Pascal VOC,
            from its second colour on.
        opacity: Share of the colour in a pixel, in [0, 1].

    Returns:
        uint8 array of shape `(h, w, 3)`.

    Raises:
        ValueError: If the class map has another size than the image, or a class has no colour.
    """
    labels = np.asarray(class_map, "int64")
    if labels.shape != image.shape[:2]:
        raise ValueError(
            f"The class map must have the size of the image, {image.shape[:2]}. Received: "
            f"{labels.shape}. Predict it from this image."
        )
    table = np.array(
        [_voc_color(label + 1) for label in range(IGNORED)] if colors is None else colors
    )
    known = labels != IGNORED
    if known.any() and not 0 <= labels[known].min() <= labels[known].max() < len(table):
        raise ValueError(
            f"There are colours for the classes 0 to {len(table) - 1}. Received: classes "
            f"{labels[known].min()} to {labels[known].max()}. Pass a colour for every class."
        )
    pixels = np.broadcast_to(image, (*labels.shape, 3)).astype("float32")
    drawn = table[np.where(known, labels, 0)] * opacity + pixels * (1 - opacity)
    return np.rint(np.where(known[..., None], drawn, pixels)).astype("uint8")


def _voc_color(index: int) -> list[int]:
    """A colour of the palette of Pascal VOC: the bits of the index, three by three."""
    bits = [index >> (3 * place) for place in range(3)]
    return [sum((part >> channel & 1) << (7 - place) for place, part in enumerate(bits))
            for channel in range(3)]  # fmt: skip


def _steps(stride: int | tuple[int, int] | None, window: tuple[int, int]) -> tuple[int, int]:
    if stride is None:
        return (-(-window[0] * 2 // 3), -(-window[1] * 2 // 3))
    steps = pair("stride", stride)
    if np.greater(steps, window).any():
        raise ValueError(
            f"A `stride` above the window of {window} pixels leaves pixels out. Received: {stride}."
        )
    return steps


def _pad(pixels: Any, transform: InputTransform) -> Any:
    """Adds the mean colour below and to the right, up to the size of a window, as in training."""
    sides = zip(transform.image_size, pixels.shape[:2], strict=True)
    missing = [[0, max(0, wanted - side)] for wanted, side in sides]
    if not np.any(missing):
        return pixels
    mean, _ = transform.preprocessing.per_channel(transform.channels)
    return tf.pad(pixels - mean, [*missing, [0, 0]]) + mean


def _windows(
    model: keras.Model, pixels: np.ndarray, steps: tuple[int, int], batch_size: int
) -> np.ndarray:
    """Mean logits of the windows of an image; the last of each row and column end at its edge."""
    window = model.inputs[0].shape[1:3]
    starts = [
        [*range(0, side - width, step), side - width]
        for side, width, step in zip(pixels.shape[:2], window, steps, strict=True)
    ]
    corners = list(itertools.product(*starts))
    total = np.zeros((*pixels.shape[:2], model.output_shape[-1]), "float32")
    counts = np.zeros((*pixels.shape[:2], 1), "float32")
    for first in range(0, len(corners), batch_size):
        chosen = corners[first : first + batch_size]
        crops = [pixels[y : y + window[0], x : x + window[1]] for y, x in chosen]
        outputs = keras.ops.convert_to_numpy(model.predict_on_batch(np.stack(crops)))
        for (y, x), output in zip(chosen, outputs, strict=True):
            total[y : y + window[0], x : x + window[1]] += output
            counts[y : y + window[0], x : x + window[1]] += 1
    return total / counts
