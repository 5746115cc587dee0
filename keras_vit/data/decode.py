"""From the bytes of an image file to pixels, whole or a window of them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def decode(image: Any, channels: int = 3) -> Any:
    """All pixels of an image.

    JPEG, PNG, GIF and BMP are told apart by their bytes. Of an animation the first image is taken;
    grey and CMYK become RGB, 16 bits a channel become 8, transparency is dropped.

    Args:
        image: String tensor with the bytes of a file, or pixels, which stay as they are.
        channels: 1 or 3.

    Returns:
        Tensor of shape `(h, w, channels)`, uint8 where it was decoded.
    """
    if image.dtype != tf.string:
        return tf.ensure_shape(image, (None, None, channels))
    pixels = tf.io.decode_image(image, channels, expand_animations=False)
    return tf.ensure_shape(pixels, (None, None, channels))


def decode_window(image: Any, choose: Any, channels: int = 3) -> Any:
    """The pixels of a window of an image; of a JPEG nothing else is decoded.

    Args:
        image: As for `decode`.
        choose: From the shape of the image, an int32 tensor, to the window, an int32 tensor of top,
            left, height and width.
        channels: 1 or 3.

    Returns:
        Tensor of shape `(height, width, channels)`, uint8 where it was decoded.
    """

    def decode_jpeg_window() -> Any:
        window = choose(tf.image.extract_jpeg_shape(image))
        return tf.image.decode_and_crop_jpeg(image, window, channels)

    def cut() -> Any:
        pixels = decode(image, channels)
        top, left, height, width = tf.unstack(choose(tf.shape(pixels)))
        return tf.slice(pixels, (top, left, 0), tf.stack((height, width, -1)))

    if image.dtype != tf.string:
        return cut()
    return tf.cond(tf.io.is_jpeg(image), decode_jpeg_window, cut)
