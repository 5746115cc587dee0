"""Decodes image files to pixels, whole or a window of them, up to a limit of pixels.

A file of a few bytes can claim to hold gigabytes of pixels, so its size is read before it is
decoded.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_vit.data.header_ops import (
    BMP,
    GIF,
    JPEG,
    MOVING,
    PNG,
    UNKNOWN,
    WEBP,
    WEBP_WITH_OPACITY,
    read_header,
)
from keras_vit.data.headers import MAX_PIXELS as MAX_PIXELS
from keras_vit.data.orientation import (
    displayed_shape,
    orient,
    read_orientation,
    read_png_orientation,
    read_webp_orientation,
    stored_window,
)

# Channels that an image file can be decoded to.
DECODED_CHANNELS = (1, 3, 4)
# Channels that TensorFlow decodes a format to, by those asked for if there are others. It is always
# told a number: with `channels=0` TensorFlow 2.21 writes beyond its memory where a WebP file moves.
_STORED: dict[int, dict[int, int]] = {
    PNG: {},
    GIF: {1: 3, 4: 3},
    BMP: {1: 3},
    WEBP: {1: 3, 4: 3},
    WEBP_WITH_OPACITY: {1: 4, 3: 4},
}
# As libjpeg and Pillow decode: without it, TensorFlow is up to 9 levels off, in the same time.
DCT_METHOD = "INTEGER_ACCURATE"
_ALONE = -1  # position of an image that is not one of several


@tf.autograph.experimental.do_not_convert
def decode(
    image: Any,
    channels: int = 3,
    max_pixels: int = MAX_PIXELS,
    index: Any | None = None,
    exif_orientation: bool = True,
) -> Any:
    """Decodes all pixels of an image.

    JPEG, PNG, GIF, BMP and WebP are told apart by their bytes. Of a GIF only the first image is
    decoded; grey and CMYK become RGB, 16 bits a channel become 8, transparency that is not asked
    for is dropped. TensorFlow 2.21 decodes WebP files that do not move, older versions none.

    Args:
        image: String tensor with the bytes of a file, or pixels, which stay as they are.
        channels: 1 (grey), 3 or 4 (with opacity) for the result, whatever the file has.
        max_pixels: Height times width above which the image is refused before it is decoded.
        index: Position of the image among others, for the error message; a tensor or `None`.
        exif_orientation: Whether JPEG, PNG and WebP files are turned as their EXIF says.

    Returns:
        Tensor of shape `(h, w, channels)`, uint8 where it was decoded.

    Raises:
        tf.errors.InvalidArgumentError: If the bytes are no image, or one of more pixels, when the
            tensor is computed.
    """
    if image.dtype != tf.string:
        return tf.ensure_shape(image, (None, None, channels))
    position = tf.constant(_ALONE) if index is None else tf.cast(index, tf.int32)
    arguments = (image, position, channels, max_pixels, exif_orientation)
    pixels = tf.cond(
        tf.io.is_jpeg(image), lambda: _decode_jpeg(*arguments), lambda: _decode_other(*arguments)
    )
    return tf.ensure_shape(pixels, (None, None, channels))


@tf.autograph.experimental.do_not_convert
def decode_window(
    image: Any,
    choose: Callable[[Any], Any],
    channels: int = 3,
    max_pixels: int = MAX_PIXELS,
    exif_orientation: bool = True,
) -> Any:
    """Decodes a window of an image; of a JPEG nothing else is decoded.

    Args:
        image: As for `decode`.
        choose: From the shape of the image, an int32 tensor, to the window, an int32 tensor of top,
            left, height and width.
        channels: As for `decode`.
        max_pixels: Height times width of the whole image, as for `decode`.
        exif_orientation: As for `decode`; the window is of the turned image.

    Returns:
        Tensor of shape `(height, width, channels)`, uint8 where it was decoded.
    """

    def cut() -> Any:
        pixels = decode(image, channels, max_pixels, exif_orientation=exif_orientation)
        top, left, height, width = tf.unstack(choose(tf.shape(pixels)))
        return tf.slice(pixels, (top, left, 0), tf.stack((height, width, -1)))

    if image.dtype != tf.string:
        return cut()
    arguments = (image, tf.constant(_ALONE), channels, max_pixels, exif_orientation, choose)
    return tf.cond(tf.io.is_jpeg(image), lambda: _decode_jpeg(*arguments), cut)


def decoding_problem(error: tf.errors.OpError) -> str:
    """The reason why an image could not be decoded, from the error of `decode`."""
    text = error.message.partition("[Op:")[0].partition("\n\t [[")[0]
    reason = text.rstrip().rpartition("\n")[2].rpartition("}}")[2].strip()
    stated = re.search(r"Summarized data: b'(.*)'$", reason)  # of an assertion outside of a graph
    reason = stated.group(1) if stated else reason
    return reason.removeprefix("assertion failed: [").removesuffix("]").rstrip(".")


@contextlib.contextmanager
def name_damage(file: str) -> Iterator[None]:
    """Raises a ValueError that names the file for an image that is found to be damaged."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
        raise ValueError(
            f"{file} cannot be decoded ({decoding_problem(error)}). Replace or remove it."
        ) from error


# Where an operator of a branch is not run, TensorFlow still visits it. A function that is not
# inlined is one operator, so what JPEGs do not need costs them nothing.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _decode_other(
    data: Any, position: Any, channels: int, max_pixels: int, exif_orientation: bool
) -> Any:
    """Decodes every format but JPEG."""
    encoded = read_header(data)
    stored = [_STORED.get(kind, {}).get(channels, channels) for kind in range(UNKNOWN + 1)]
    counts = sorted(set(stored))
    choice = tf.gather([counts.index(count) for count in stored], encoded.format)
    decoders = [functools.partial(_decode_stored, encoded.data, channels, n) for n in counts]
    most = max_pixels // tf.maximum(encoded.width, 1)  # the product can be too large for int64
    pixels = tf.cond(
        (encoded.height <= most) & (encoded.format < MOVING),
        lambda: tf.switch_case(choice, decoders),
        lambda: _refuse(*encoded[1:], position, channels, max_pixels),
    )
    if not exif_orientation:
        return pixels
    is_webp = (encoded.format == WEBP) | (encoded.format == WEBP_WITH_OPACITY)
    orientation = tf.case(
        [
            (encoded.format == PNG, lambda: read_png_orientation(data)),
            (is_webp, lambda: read_webp_orientation(data)),
        ],
        lambda: tf.constant(1),
    )
    return orient(pixels, orientation)


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _refuse(
    kind: Any, height: Any, width: Any, position: Any, channels: int, max_pixels: int
) -> Any:
    """Raises InvalidArgumentError that says why an image is not decoded."""
    too_large = tf.strings.format(
        f"has {{}} x {{}} pixels, more than max_pixels={max_pixels}: make it smaller",
        (height, width),
    )
    reason = tf.where(kind == MOVING, "is a WebP file that moves: convert it", too_large)
    reason = tf.where(kind == UNKNOWN, "is no JPEG, PNG, GIF, BMP or WebP file", reason)
    numbered = tf.strings.format("Image {} ", (position,))
    message = tf.strings.join([tf.where(position == _ALONE, "The image ", numbered), reason, "."])
    with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[message])]):
        return tf.zeros((0, 0, channels), tf.uint8)


def _decode_jpeg(
    data: Any,
    position: Any,
    channels: int,
    max_pixels: int,
    exif_orientation: bool,
    choose: Callable[[Any], Any] | None = None,
) -> Any:
    """Decodes a JPEG, or the window of it that `choose` chooses, see `decode_window`."""
    shape = tf.io.extract_jpeg_shape(data, tf.int64)
    height, width, stored = tf.unstack(shape)
    orientation = read_orientation(data) if exif_orientation else tf.constant(1)

    def decode_chosen() -> Any:
        decoder: Callable[..., Any] = functools.partial(tf.io.decode_jpeg, data)
        if choose is not None:
            displayed = displayed_shape(tf.cast(shape, tf.int32), orientation)
            window = stored_window(choose(displayed), displayed, orientation)
            decoder = functools.partial(tf.image.decode_and_crop_jpeg, data, window)
        return _convert_jpeg(lambda n: decoder(n, dct_method=DCT_METHOD), stored, channels)

    pixels = tf.cond(
        height * width <= max_pixels,
        decode_chosen,
        lambda: _refuse(JPEG, height, width, position, channels, max_pixels),
    )
    return orient(pixels, orientation) if exif_orientation else pixels


def _convert_jpeg(decoder: Callable[[int], Any], stored: Any, channels: int) -> Any:
    """Decodes a JPEG by a function of a number of channels; libjpeg makes no grey of CMYK."""
    if channels == 1:
        is_cmyk = stored == 4
        return tf.cond(is_cmyk, lambda: tf.image.rgb_to_grayscale(decoder(3)), lambda: decoder(1))
    return _add_opacity(decoder(3)) if channels == 4 else decoder(channels)


def _decode_stored(data: Any, channels: int, stored: int) -> Any:
    image = tf.io.decode_image(data, stored, expand_animations=False)
    image = tf.ensure_shape(image, (None, None, stored))
    if channels == stored:
        return image
    if channels == 1:
        return tf.image.rgb_to_grayscale(image[..., :3])
    return image[..., :3] if channels == 3 else _add_opacity(image)


def _add_opacity(image: Any) -> Any:
    return tf.concat([image, tf.ones_like(image[..., :1]) * 255], -1)
