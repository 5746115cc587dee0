"""Makes batches of images and masks: geometry for both, colours for the image alone.

    1 this worker's part of an epoch, shuffled     4 horizontal flip, of both
    2 decode image and mask                        5 brightness, contrast, saturation, hue
    3 scale, pad and crop both                     6 batch, weights of pixels, normalise

Images are resized linearly, masks to the nearest pixel; both take the centres of pixels. Evaluation
resizes both to the size of the model, as `predict_masks` and exports do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_vit.data.input_transform import InputTransform, transform_of
from keras_vit.data.labelled_set import SHUFFLE_BUFFER, make_batches
from keras_vit.data.transforms import decode_for, in_range, resize
from keras_vit.segmentation.masks import IGNORED, MaskSet

if TYPE_CHECKING:
    import keras

_GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601


@dataclasses.dataclass(frozen=True)
class MaskAugmentation:
    """Random transforms of training images and their masks.

    Args:
        scale: Least and greatest size, relative to the smallest that covers the input of the model;
            drawn evenly on a logarithmic scale. Smaller images are padded with the mean colour and
            the ignored label.
        flip: Whether half of the images are mirrored left to right.
        brightness: Largest shift of all values, as a share of 255; images only.
        contrast: Largest change of the distance from the mean grey, in [0, 1]; images only.
        saturation: Largest change of the distance from the grey image, in [0, 1]; images only.
        hue: Largest turn of the colours on their circle, in [0, 0.5] of it; colour images only.
            mmsegmentation takes 0.1.

    Raises:
        ValueError: If a value is out of its range.
    """

    scale: tuple[float, float] = (0.5, 2.0)
    flip: bool = True
    brightness: float = 0.125  # these three as in mmsegmentation's PhotoMetricDistortion
    contrast: float = 0.5
    saturation: float = 0.5
    hue: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"`scale` must be positive, the least first. Received: {self.scale}.")
        for field, most in {"brightness": 1, "contrast": 1, "saturation": 1, "hue": 0.5}.items():
            value = getattr(self, field)
            if not 0 <= value <= most:
                raise ValueError(f"`{field}` must be in [0, {most}]. Received: {value}.")


def mask_batches(
    masks: MaskSet,
    model: keras.Model | InputTransform,
    batch_size: int,
    training: bool = False,
    augmentation: MaskAugmentation | None = None,
    seed: int = 0,
    *,
    class_weights: Sequence[float] | None = None,
    worker: tuple[int, int] | None = None,
    shuffle_buffer: int = SHUFFLE_BUFFER,
) -> Any:
    """Makes batches of images and labels for `fit` and `evaluate`.

    Every training epoch has its own order and crops, which depend on the seed and the number of the
    epoch alone. Inside `strategy.scope()` every worker reads its own part.

    Args:
        masks: Images with masks, as from `read_masks`.
        model: The model, see `transform_of`.
        batch_size: Images per step, of all workers together.
        training: Whether to shuffle, to augment, and to drop an incomplete last batch.
        augmentation: Random transforms of training; `None` takes the defaults.
        seed: Random seed.
        class_weights: A weight for every class. Batches then have the weight of every pixel as a
            third element, float32 of shape `(B, H, W)`, 0 for ignored pixels.
        worker: Index and number of workers, if `tf.distribute` is not used.
        shuffle_buffer: Images and masks, as they are stored, that training holds in memory to
            shuffle records; files and arrays are shuffled as a whole.

    Returns:
        A `tf.data.Dataset` of float32 images `(B, H, W, C)` and uint8 labels `(B, H, W)`, where 255
        is ignored; or under a strategy of several replicas a distributed dataset.

    Raises:
        ValueError: If the classes do not fit the model, or there are fewer images than a batch.
        tf.errors.InvalidArgumentError: When a batch is read, if a mask holds a value that is no
            class, or has another size than its image.
    """
    masks.check_classes(_known_classes(model))
    transform = transform_of(model)
    weights = _check_weights(class_weights, masks)
    chosen = augmentation or MaskAugmentation()

    def prepare(row: tuple[Any, ...], own: Any) -> tuple[Any, Any]:
        image, labels = masks.load(*row)
        pixels = decode_for(transform, image, masks.max_pixels, masks.exif_orientation)
        labels = _checked(labels, tf.shape(pixels)[:2], masks)
        if training:
            pixels, labels = _augment(pixels, labels, chosen, transform, own)
        else:
            pixels = resize(pixels, transform.image_size, "bilinear")
            labels = _nearest(labels, transform.image_size)
        pixels = tf.ensure_shape(pixels, (*transform.image_size, transform.channels))
        labels = tf.cast(tf.ensure_shape(labels, transform.image_size), tf.uint8)
        return in_range(transform, pixels), labels

    def finish(pixels: Any, labels: Any) -> tuple[Any, ...]:
        if weights is None:
            return pixels, labels
        return pixels, labels, tf.gather(weights, tf.cast(labels, tf.int32))

    return make_batches(
        *(masks, prepare, finish, batch_size, seed),
        training=training,
        drop_remainder=training,
        shuffle_buffer=shuffle_buffer,
        worker=worker,
    )


@tf.autograph.experimental.do_not_convert
def _augment(
    pixels: Any, labels: Any, chosen: MaskAugmentation, transform: InputTransform, own: Any
) -> tuple[Any, Any]:
    scale, crop, flip, colours = tf.unstack(tf.random.split(own, 4))
    size = tf.constant(transform.image_size)
    shape = tf.shape(labels)
    covering = tf.reduce_max(size / shape)
    least, greatest = np.log(np.array(chosen.scale, "float64"))
    exponent = tf.random.stateless_uniform((), scale, dtype=tf.float64) * (greatest - least)
    exact = tf.cast(shape, tf.float64) * covering * tf.exp(least + exponent)
    new = tf.maximum(tf.cast(tf.round(exact), tf.int32), 1)
    pixels, labels = resize(pixels, new, "bilinear"), _nearest(labels, new)
    missing = tf.maximum(size - new, 0)
    padding = [[0, missing[0]], [0, missing[1]]]
    mean, _ = transform.preprocessing.per_channel(transform.channels)
    pixels = tf.pad(pixels - mean, [*padding, [0, 0]]) + mean
    labels = tf.pad(labels - IGNORED, padding) + IGNORED
    excess = tf.shape(labels) - size
    start = tf.random.stateless_uniform((2,), crop, dtype=tf.float64)
    start = tf.minimum(tf.cast(start * tf.cast(excess + 1, tf.float64), tf.int32), excess)
    pixels = tf.slice(pixels, tf.concat([start, [0]], 0), (*transform.image_size, -1))
    labels = tf.slice(labels, start, transform.image_size)
    mirrored = chosen.flip & (tf.random.stateless_uniform((), flip) < 0.5)
    pixels = tf.where(mirrored, tf.reverse(pixels, [1]), pixels)
    labels = tf.where(mirrored, tf.reverse(labels, [1]), labels)
    return _change_colours(pixels, chosen, colours), labels


def _change_colours(pixels: Any, chosen: MaskAugmentation, seed: Any) -> Any:
    """Shifts brightness, and scales contrast and saturation, of values in [0, 255]."""
    draws = tf.random.stateless_uniform((3,), seed, -1.0, 1.0)
    pixels += draws[0] * (chosen.brightness * 255)
    grey = tf.reduce_mean(pixels)
    pixels = grey + (pixels - grey) * (1 + draws[1] * chosen.contrast)
    if pixels.shape[-1] == 3:
        grey = tf.reduce_sum(pixels * _GREY, -1, keepdims=True)
        pixels = grey + (pixels - grey) * (1 + draws[2] * chosen.saturation)
    pixels = tf.clip_by_value(pixels, 0.0, 255.0)
    if chosen.hue and pixels.shape[-1] == 3:
        seed = tf.random.experimental.stateless_fold_in(seed, 1)
        turn = tf.random.stateless_uniform((), seed, -chosen.hue, chosen.hue)
        pixels = tf.image.adjust_hue(pixels / 255, turn) * 255
    return pixels


def _nearest(labels: Any, size: Any) -> Any:
    """Resizes labels of shape `(h, w)`: each takes that of the pixel at its centre."""
    return tf.image.resize(labels[..., None], size, "nearest")[..., 0]


@tf.autograph.experimental.do_not_convert
def _checked(labels: Any, size: Any, masks: MaskSet) -> Any:
    is_same = tf.reduce_all(tf.shape(labels) == size)
    sizes = f"A mask of {masks.name} has another size than its image, as it is displayed:"
    known = (labels >= 0) & ((labels < masks.num_classes) | (labels == IGNORED))
    find = "" if masks.records else ' Find the files with read_masks(..., check="pixels").'
    values = (
        f"A mask of {masks.name} holds values that are none of its {masks.num_classes} classes."
        f"{find}"
    )
    checks = [
        tf.debugging.Assert(is_same, [sizes, tf.shape(labels), size]),
        tf.debugging.Assert(tf.reduce_all(known), [values]),
    ]
    with tf.control_dependencies(checks):
        return tf.ensure_shape(tf.identity(labels), (None, None))


def _known_classes(model: Any) -> int | None:
    """Classes of a model that gives logits of pixels."""
    shape = getattr(model, "output_shape", None)
    return shape[-1] if isinstance(shape, tuple) and len(shape) == 4 else None


def _check_weights(class_weights: Sequence[float] | None, masks: MaskSet) -> Any:
    if class_weights is None:
        return None
    weights = np.zeros(256, "float32")
    weights[: masks.num_classes] = masks.check_class_weights(class_weights)
    return tf.constant(weights)
