"""Decodes image files to pixels, whole or a window of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Channels that an image file can be decoded to.
DECODED_CHANNELS = (1, 3, 4)
# First bytes of formats that TensorFlow decodes to three channels only.
_COLOURS_ONLY = {1: (b"GIF8", b"BM"), 3: (), 4: (b"GIF8", b"\xff\xd8\xff")}


def decode(image: Any, channels: int = 3) -> Any:
    """Decodes all pixels of an image.

    JPEG, PNG, GIF, BMP and WebP are told apart by their bytes. Of a GIF the first image is taken;
    grey and CMYK become RGB, 16 bits a channel become 8, transparency that is not asked for is
    dropped. TensorFlow 2.21 decodes WebP files that do not move, older versions none. The channels
    are always given: with `channels=0` TensorFlow 2.21 writes beyond its memory where a WebP file
    moves.

    Args:
        image: String tensor with the bytes of a file, or pixels, which stay as they are.
        channels: 1 (grey), 3 or 4 (with opacity) for the result, whatever the file has.

    Returns:
        Tensor of shape `(h, w, channels)`, uint8 where it was decoded.

    Raises:
        tf.errors.InvalidArgumentError: If the bytes are no image, when the tensor is computed.
    """
    if image.dtype != tf.string:
        return tf.ensure_shape(image, (None, None, channels))
    return tf.cond(
        _begins(image, b"RIFF"),
        lambda: _decode_webp(image, channels),
        lambda: _decode_other(image, channels),
    )


def decode_window(image: Any, choose: Callable[[Any], Any], channels: int = 3) -> Any:
    """Decodes a window of an image; of a JPEG nothing else is decoded.

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


def _decode_webp(data: Any, channels: int) -> Any:
    return tf.cond(
        _webp_has_opacity(data),
        lambda: _with_channels(_decode(data, 4), channels),
        lambda: _with_channels(_decode(data, 3), channels),
    )


def _decode_other(data: Any, channels: int) -> Any:
    if not _COLOURS_ONLY[channels]:
        return _decode(data, channels)
    return tf.cond(
        tf.reduce_any([_begins(data, start) for start in _COLOURS_ONLY[channels]]),
        lambda: _with_channels(_decode(data, 3), channels),
        lambda: _decode(data, channels),
    )


def _webp_has_opacity(data: Any) -> Any:
    """Whether a WebP file has four channels, which TensorFlow must be told.

    The name of its first chunk ends in X (extended: flags come first), L (lossless: a signature
    of a byte, twice 14 bits of size, then a bit for opacity) or a space (lossy: no opacity). See
    https://developers.google.com/speed/webp/docs/riff_container.
    """
    header = tf.cast(tf.io.decode_raw(tf.strings.substr(data, 0, 25), tf.uint8), tf.int32)
    kind, flags, lossless = header[15], header[20], header[24]
    extended = (kind == ord("X")) & (tf.bitwise.bitwise_and(flags, 16) > 0)
    return extended | (kind == ord("L")) & (tf.bitwise.bitwise_and(lossless, 16) > 0)


def _begins(data: Any, start: bytes) -> Any:
    return tf.strings.substr(data, 0, len(start)) == start


def _decode(data: Any, channels: int) -> Any:
    image = tf.io.decode_image(data, channels, expand_animations=False)
    return tf.ensure_shape(image, (None, None, channels))


def _with_channels(image: Any, channels: int) -> Any:
    """Converts pixels of three or four channels to another number of channels."""
    if channels == 1:
        return tf.image.rgb_to_grayscale(image[..., :3])
    if channels == image.shape[-1]:
        return image
    opaque = tf.ones_like(image[..., :1]) * 255
    return image[..., :3] if channels == 3 else tf.concat([image, opaque], -1)
