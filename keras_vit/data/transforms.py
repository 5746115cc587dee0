"""The transform of evaluation: resizes an image of any size to the input of a model."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from keras_vit.config import Preprocessing

_FEW = 4  # pixels per pixel of the result


def eval_transform(image: Any, preprocessing: Preprocessing, image_size: tuple[int, int]) -> Any:
    """Resizes one image to the input size of a model, as in evaluation.

    With `preprocessing.crop_ratio=None` the whole image is squashed to the model's size, as in the
    official code. Otherwise the image is resized, keeping its proportions, until it covers the
    model's size divided by `crop_ratio` (rounded down), and the centre is cut out, as in
    big_vision and timm.

    Values stay in [0, 255]. `"bilinear"` is TensorFlow's, without antialiasing and without
    rounding, as in the official code; `"area"` cuts off fractions, as big_vision does; `"bicubic"`
    is antialiased and rounded, as Pillow's, which timm and DeiT use.

    Args:
        image: Tensor of shape `(h, w, C)`, any type, values in [0, 255].
        preprocessing: Interpolation and crop.
        image_size: Pixels along (height, width) of the model's input.

    Returns:
        float32 tensor of shape `(*image_size, C)`, values in [0, 255].
    """
    if preprocessing.crop_ratio is None:
        return resize(image, image_size, preprocessing.interpolation)
    covered = [math.floor(side / preprocessing.crop_ratio) for side in image_size]
    image = resize(image, _covering_size(image, covered), preprocessing.interpolation)
    return _crop_centre(image, image_size)


def resize(image: Any, size: Any, interpolation: str) -> Any:
    """Resizes an image of shape `(h, w, C)` to `size`; float32 values stay in [0, 255]."""

    def resized(x: Any) -> Any:
        x = tf.image.resize(x, size, interpolation, antialias=interpolation == "bicubic")
        return tf.cast(x, tf.float32)

    if image.dtype == tf.uint8 and interpolation == "bilinear":
        # TensorFlow resizes floats faster, to the same values, but the conversion takes time.
        few = tf.reduce_prod(tf.shape(image)[:2]) < _FEW * tf.reduce_prod(size)
        x = tf.cond(few, lambda: resized(tf.cast(image, tf.float32)), lambda: resized(image))
    else:
        x = resized(image)
    if interpolation == "bicubic":  # overshoots at edges
        return tf.round(tf.clip_by_value(x, 0.0, 255.0))
    return tf.floor(x) if interpolation == "area" else x


def normalize(pixels: Any, preprocessing: Preprocessing) -> Any:
    """Normalises pixels in [0, 255]: `(pixels - mean) / std`, channels last."""
    mean, std = preprocessing.per_channel(pixels.shape[-1])
    pixels = tf.cast(pixels, tf.float32)
    if len({*mean}) == len({*std}) == 1:
        return (pixels - mean[0]) / std[0]
    if pixels.shape.rank == 3 and pixels.shape.is_fully_defined():
        # TensorFlow is four times slower with vectors of three numbers than of a whole row.
        height, width, channels = pixels.shape
        rows = tf.reshape(pixels, (height, width * channels))
        return tf.reshape((rows - mean * width) / (std * width), pixels.shape)
    return (pixels - mean) / std


def _covering_size(image: Any, size: list[int]) -> Any:
    """The smallest size with the aspect ratio of `image` that covers `size`."""
    shape = tf.cast(tf.shape(image)[:2], tf.float64)
    scale = tf.reduce_max(tf.constant(size, tf.float64) / shape)
    covering = tf.cast(tf.round(shape * scale), tf.int32)
    return tf.maximum(covering, size)


def _crop_centre(image: Any, size: tuple[int, int]) -> Any:
    top_left = (tf.shape(image)[:2] - size) // 2
    image = tf.slice(image, tf.concat([top_left, [0]], 0), (*size, -1))
    image.set_shape((*size, image.shape[-1]))
    return image
