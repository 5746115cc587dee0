"""EXIF orientation of JPEG, PNG and WebP files: how stored pixels are turned for display.

The numbers 1 to 8 are tag 0x0112 of the first directory, https://www.cipa.jp/std/documents/e/DC-008.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_vit.data.headers import EXIF_SEGMENTS

_HEADER_BYTES = 1 << 16  # a segment of a JPEG is not longer
_NAMES = 8  # times that the name of the chunk may occur in a PNG: by chance once in 4 GB of data
_CHUNKS = 32  # of a WebP file that does not move; encoders write at most six
_NOTHING = bytes(16)  # in place of a block of EXIF
_ENTRIES = 64  # of a directory; cameras write about ten
_ORIENTATION = 0x0112
_EXIF_SEGMENT = 0xFFE1
_EXIF = 0x45786966  # "Exif"
_LITTLE, _BIG = 0x4949, 0x4D4D  # byte orders: "II", "MM"
_BYTES = [1, 1 << 8, 1 << 16, 1 << 24]
# Displayed pixels are the stored ones transposed, then mirrored along x, then along y.
_TRANSPOSED, _MIRRORED_X, _MIRRORED_Y = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)


# Each is one operator where it is not needed, as in decode.py.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def read_orientation(data: Any) -> Any:
    """Reads the orientation of a JPEG: an int32 scalar from 1 to 8, 1 where it is not stated."""
    head = _to_numbers(tf.strings.substr(data, 0, _HEADER_BYTES))
    segment = tf.constant(2)

    def is_exif() -> Any:
        return (_number(head, segment, 2) == _EXIF_SEGMENT) & (
            _number(head, segment + 4, 4) == _EXIF
        )

    for _ in range(EXIF_SEGMENTS - 1):
        after = segment + 2 + _number(head, segment + 2, 2)
        segment = tf.where(is_exif(), segment, after)
    return _of_directory(head, segment + 10, is_exif())


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def read_png_orientation(data: Any) -> Any:
    """Reads the orientation of a PNG, from its chunk eXIf, like `read_orientation`.

    A chunk is its length, its name and its data. The name is searched for as TensorFlow splits a
    string, since a PNG can have thousands of chunks before it.
    """
    pieces = tf.raw_ops.StringSplitV2(input=[data], sep="eXIf", maxsplit=_NAMES).values
    before, after = pieces[:-1], pieces[1:]
    ends = tf.strings.substr(tf.strings.join([bytes(4), before]), -4, 4)
    lengths = tf.io.decode_raw(ends, tf.uint8, fixed_length=4)  # (n, 4)
    lengths = tf.reduce_sum(tf.cast(lengths, tf.int64) * _BYTES[::-1], -1)
    fits = lengths <= tf.cast(tf.strings.length(after), tf.int64)
    blocks = tf.boolean_mask(after, fits & (lengths >= len(_NOTHING)))
    return _of_block(tf.concat([blocks, [_NOTHING]], 0)[0])


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def read_webp_orientation(data: Any) -> Any:
    """Reads the orientation of a WebP file, from its chunk EXIF, like `read_orientation`.

    A chunk is its name, its length and its data, to an even number of bytes. A flag of the first
    one, VP8X, says that there is EXIF.
    """
    size = tf.cast(tf.strings.length(data), tf.int64)

    def chunk(at: Any) -> tuple[Any, Any]:
        """Name and length of a chunk; both 0 after the end."""
        header = tf.strings.substr(data, tf.minimum(at, size), tf.constant(8, tf.int64))
        numbers = tf.cast(tf.io.decode_raw(header, tf.uint8, fixed_length=8), tf.int64)
        return tf.strings.substr(header, 0, 4), tf.reduce_sum(numbers[4:] * _BYTES)

    def after(at: Any) -> Any:
        length = chunk(at)[1]
        return tf.minimum(at + 8 + length + length % 2, size)

    flags = tf.io.decode_raw(data, tf.uint8, fixed_length=32)[20]
    start = tf.constant(12, tf.int64)  # after RIFF, length and WEBP
    is_marked = (chunk(start)[0] == b"VP8X") & (flags // 8 % 2 > 0)
    at = tf.while_loop(
        lambda at: (chunk(at)[0] != b"EXIF") & (at < size),
        lambda at: (after(at),),
        [tf.where(is_marked, start, size)],
        maximum_iterations=_CHUNKS,
    )[0]
    name, length = chunk(at)
    block = tf.strings.substr(data, tf.minimum(at + 8, size), tf.minimum(length, _HEADER_BYTES))
    has_start = tf.strings.substr(block, 0, 6) == b"Exif\0\0"  # of some programs, as in a JPEG
    block = tf.strings.substr(block, tf.where(has_start, 6, 0), _HEADER_BYTES)
    is_whole = (name == b"EXIF") & (tf.strings.length(block) >= len(_NOTHING))
    return _of_block(tf.where(is_whole, block, _NOTHING))


def _of_block(block: Any) -> Any:
    """The orientation in a block of EXIF, a string tensor of 16 bytes or more."""
    head = _to_numbers(tf.strings.substr(block, 0, _HEADER_BYTES))
    order = _number(head, 0, 2)
    return _of_directory(head, tf.constant(0), (order == _LITTLE) | (order == _BIG))


def _of_directory(head: Any, start: Any, is_exif: Any) -> Any:
    """The orientation in the directory of EXIF that begins at `start`."""
    little = _number(head, start, 2) == _LITTLE
    directory = start + _number(head, start + 4, 4, little)
    entries = directory + 2 + 12 * tf.range(_ENTRIES)
    found = (_number(head, entries, 2, little) == _ORIENTATION) & (entries + 12 <= tf.size(head))
    found &= tf.range(_ENTRIES) < _number(head, directory, 2, little)
    value = tf.reduce_max(tf.where(found & is_exif, _number(head, entries + 8, 2, little), 0))
    return tf.where((value >= 1) & (value <= 8), value, 1)


def _to_numbers(text: Any) -> Any:
    return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)


def _number(head: Any, position: Any, count: int, little: Any = False) -> Any:
    """Reads unsigned numbers of `count` bytes at positions, which are cut to the data."""
    offsets = tf.expand_dims(position, -1) + tf.range(count)
    values = tf.gather(head, tf.clip_by_value(offsets, 0, tf.size(head) - 1))
    powers = [256**i for i in range(count)]
    return tf.reduce_sum(values * tf.where(little, powers, powers[::-1]), -1)


def orient(pixels: Any, orientation: Any) -> Any:
    """Turns stored pixels of shape `(h, w, C)` as they are displayed."""

    def transformed() -> Any:
        x = tf.cond(
            _is_one_of(orientation, _TRANSPOSED),
            lambda: tf.transpose(pixels, (1, 0, 2)),
            lambda: pixels,
        )
        for axis, orientations in ((1, _MIRRORED_X), (0, _MIRRORED_Y)):
            x = tf.cond(
                _is_one_of(orientation, orientations),
                lambda x=x, axis=axis: tf.reverse(x, [axis]),
                lambda x=x: x,
            )
        return x

    return tf.cond(orientation > 1, transformed, lambda: pixels)


def displayed_shape(shape: Any, orientation: Any) -> Any:
    """Height, width and channels as displayed, from those that are stored."""
    transposed = tf.gather(shape, (1, 0, 2))
    return tf.where(_is_one_of(orientation, _TRANSPOSED), transposed, shape)


def stored_window(window: Any, shape: Any, orientation: Any) -> Any:
    """Position of a window in the stored pixels.

    Args:
        window: Top, left, height and width in the displayed image.
        shape: Shape of the displayed image.
        orientation: From 1 to 8.
    """
    top, left, height, width = tf.unstack(window)
    left = tf.where(_is_one_of(orientation, _MIRRORED_X), shape[1] - left - width, left)
    top = tf.where(_is_one_of(orientation, _MIRRORED_Y), shape[0] - top - height, top)
    stored = tf.stack((top, left, height, width))
    transposed = tf.stack((left, top, width, height))
    return tf.where(_is_one_of(orientation, _TRANSPOSED), transposed, stored)


def _is_one_of(orientation: Any, orientations: tuple[int, ...]) -> Any:
    return tf.reduce_any(orientation == tf.constant(orientations))
