"""The transform of evaluation: resizes an image of any size to the input of a model."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.decode import decode
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.pillow import resample

_FEW = 4  # pixels per pixel of the result


@tf.autograph.experimental.do_not_convert
def eval_transform(image: Any, preprocessing: Preprocessing, image_size: tuple[int, int]) -> Any:
    """Resizes one image to the input size of a model, as in evaluation.

    With `preprocessing.crop_ratio=None` the whole image is squashed to the model's size, as in the
    official code. Otherwise the image is resized to the model's size divided by `crop_ratio`
    (rounded down), by default so that it covers that size with its own proportions, and the centre
    is cut out.

    Values stay in [0, 255]. With the library `"tensorflow"`, `"bilinear"` is TensorFlow's, without
    antialiasing and without rounding, as in the official code; `"area"` cuts off fractions, as
    big_vision does; `"bicubic"` is antialiased and rounded. With `"timm"` and `"transformers"` the
    pixels are those of their transforms on Pillow images.

    Args:
        image: Tensor of shape `(h, w, C)`, any type, values in [0, 255].
        preprocessing: Interpolation, crop and library.
        image_size: Pixels along (height, width) of the model's input.

    Returns:
        float32 tensor of shape `(*image_size, C)`, values in [0, 255].
    """
    if preprocessing.library != "tensorflow":
        return _pillow_transform(image, preprocessing, image_size)
    if preprocessing.crop_ratio is None:
        return resize(image, image_size, preprocessing.interpolation)
    covered = [math.floor(side / preprocessing.crop_ratio) for side in image_size]
    size = covered if preprocessing.crop_mode == "squash" else _covering_size(image, covered)
    return _crop_centre(resize(image, size, preprocessing.interpolation), image_size)


def _pillow_transform(image: Any, preprocessing: Preprocessing, image_size: tuple[int, int]) -> Any:
    """`eval_transform` as timm's `create_transform` or an image processor of transformers."""
    source = tf.shape(image)[:2]
    resized = _pillow_size(source, preprocessing, image_size)
    excess = resized - image_size
    begin = excess // 2
    if preprocessing.library == "timm":  # Python's round: halves to even numbers
        begin = tf.cast(tf.round(tf.cast(excess, tf.float64) / 2), tf.int32)
    if preprocessing.crop_mode != "border":
        return resample(image, resized, begin, image_size, preprocessing.interpolation)
    begin = tf.where(excess < 0, -(-excess // 2), begin)
    inside = tf.minimum(resized, image_size)
    pixels = resample(image, resized, tf.maximum(begin, 0), inside, preprocessing.interpolation)
    before = tf.maximum(-begin, 0)
    after = image_size - inside - before
    colour = [float(round(value)) for value in preprocessing.per_channel(image.shape[-1])[0]]
    pixels = tf.pad(pixels - colour, [[before[0], after[0]], [before[1], after[1]], [0, 0]])
    return tf.ensure_shape(pixels + colour, (*image_size, image.shape[-1]))


def _pillow_size(source: Any, preprocessing: Preprocessing, image_size: tuple[int, int]) -> Any:
    """The size to which timm and transformers resize an image before the crop."""
    if preprocessing.crop_ratio is None:
        return tf.constant(image_size)
    larger = [math.floor(side / preprocessing.crop_ratio) for side in image_size]
    if preprocessing.crop_mode == "squash":
        return tf.constant(larger)
    if preprocessing.crop_mode == "center" and larger[0] == larger[1]:
        # torchvision's Resize: the longer side is rounded down.
        exact = tf.cast(source, tf.int64)
        return tf.cast(exact * larger[0] // tf.reduce_min(exact), tf.int32)
    # timm's ResizeKeepRatio: sides are rounded, halves to even numbers.
    sides = tf.cast(source, tf.float64)
    ratios = sides / tf.constant(larger, tf.float64)
    fits = tf.reduce_max if preprocessing.crop_mode == "border" else tf.reduce_min
    return tf.maximum(tf.cast(tf.round(sides / fits(ratios)), tf.int32), 1)


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


@tf.autograph.experimental.do_not_convert
def decode_for(
    transform: InputTransform, image: Any, max_pixels: int, always_turn: bool = False
) -> Any:
    """Decodes an image to the channels of a model.

    Args:
        transform: The transform of the model.
        image: As for `decode`, like the next one.
        max_pixels: See there.
        always_turn: Whether to turn it as its EXIF says, also where the preprocessing does not.
    """
    turn = always_turn or transform.preprocessing.exif_orientation
    return decode(image, transform.channels, max_pixels, exif_orientation=turn)


@tf.autograph.experimental.do_not_convert
def model_input(transform: InputTransform, image: Any, max_pixels: int) -> Any:
    """Makes the input of a model of an image, as for evaluation. Arguments as of `decode_for`."""
    pixels = decode_for(transform, image, max_pixels)
    pixels = eval_transform(pixels, transform.preprocessing, transform.image_size)
    return in_range(transform, tf.ensure_shape(pixels, (*transform.image_size, transform.channels)))


@tf.autograph.experimental.do_not_convert
def in_range(transform: InputTransform, pixels: Any) -> Any:
    """Normalises pixels, unless the model does."""
    return normalize(pixels, transform.preprocessing) if transform.normalize else pixels
