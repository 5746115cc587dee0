"""The random crops of training.

Each image has its own seed, which decides all random choices. The pixels therefore do not depend on
the order of processing, and are the same after a restart.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_vit.data.augmentation import Augmentation
from keras_vit.data.decode import decode_window
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.transforms import decode_for, resize

_ASPECT_RANGE = (0.75, 1.33)  # width over height, as in the official code


def inception_crop(
    image: Any, chosen: Augmentation, transform: InputTransform, seed: Any, max_pixels: int
) -> Any:
    """Inception crop: a random crop of 5 to 100 % of the area, aspect ratio 3:4 to 4:3, resized.

    As in the official code. Only the crop of a JPEG is decoded.

    Args:
        image: Bytes of a file, or pixels of shape `(h, w, C)`.
        chosen: Has the minimum and maximum share of the image's area, and the method of resizing.
        transform: Has the size and channels of the result.
        seed: Integer tensor of shape `(2,)`.
        max_pixels: As for `decode`.

    Returns:
        float32 tensor of shape `(*image_size, channels)`, values in [0, 255].
    """
    pixels = decode_window(
        image,
        lambda shape: inception_window(shape, seed, chosen.area_range),
        transform.channels,
        max_pixels,
        transform.preprocessing.exif_orientation,
    )
    shape = (*transform.image_size, transform.channels)
    return tf.ensure_shape(resize(pixels, transform.image_size, chosen.interpolation), shape)


def inception_window(shape: Any, seed: Any, area_range: tuple[float, float]) -> Any:
    """Draws the window of `inception_crop`: int32 tensor of top, left, height and width."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros((1, 0, 4), tf.float32),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=_ASPECT_RANGE,
        area_range=area_range,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat((begin[:2], size[:2]), 0)


def resized_crop(
    image: Any, chosen: Augmentation, transform: InputTransform, seed: Any, max_pixels: int
) -> Any:
    """Resizes the image, then takes a random crop of the input size.

    With `crop="resize_small"` the image covers `resize_size`: of a square, the shorter side is
    resized to it, as in big_vision's `resize_small` and `random_crop`. Otherwise the aspect ratio
    is not kept, as in BiT's HyperRule.

    Args:
        image: As for `inception_crop`, like the others.
        chosen: Has the size after resizing, and the method.
        transform: See there.
        seed: See there.
        max_pixels: See there.

    Returns:
        float32 tensor of shape `(*image_size, channels)`, values in [0, 255].
    """
    pixels = decode_for(transform, image, max_pixels)
    size: Any = chosen.resize_size or default_resize_size(transform.image_size)
    if chosen.crop == "resize_small":
        sides, covered = tf.cast(tf.shape(pixels)[:2], tf.float64), tf.cast(size, tf.float64)
        axis = tf.argmax(covered / sides)  # the one that needs the larger scale
        size = tf.cast(tf.round(sides * covered[axis] / sides[axis]), tf.int32)
    pixels = resize(pixels, size, chosen.interpolation)
    shape = (*transform.image_size, transform.channels)
    return tf.image.stateless_random_crop(pixels, shape, seed)


def default_resize_size(image_size: tuple[int, int]) -> tuple[int, int]:
    """The size of `resized_crop` before the crop: 7/6 of the result, as 448 to 384."""
    return round(image_size[0] * 7 / 6), round(image_size[1] * 7 / 6)
