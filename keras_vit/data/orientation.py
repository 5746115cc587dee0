"""EXIF orientation of JPEG files: how stored pixels are turned for display.

The numbers 1 to 8 are tag 0x0112 of the first directory, https://www.cipa.jp/std/documents/e/DC-008.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_HEADER_BYTES = 1 << 16  # a segment of a JPEG is not longer
_SEGMENTS = 3  # EXIF is the first segment, or follows the one or two of JFIF
_ENTRIES = 64  # of a directory; cameras write about ten
_ORIENTATION = 0x0112
_EXIF_SEGMENT = 0xFFE1
_EXIF = 0x45786966  # "Exif"
# Displayed pixels are the stored ones transposed, then mirrored along x, then along y.
_TRANSPOSED, _MIRRORED_X, _MIRRORED_Y = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)


# One operator where it is not needed, as in decode.py.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def read_orientation(data: Any) -> Any:
    """Reads the orientation of a JPEG: an int32 scalar from 1 to 8, 1 where it is not stated."""
    head = tf.cast(tf.io.decode_raw(tf.strings.substr(data, 0, _HEADER_BYTES), tf.uint8), tf.int32)
    last = tf.shape(head)[0] - 1

    def number(position: Any, count: int, little: Any = False) -> Any:
        places = [tf.clip_by_value(position + i, 0, last) for i in range(count)]
        values = [tf.gather(head, place) for place in places]
        ends = [sum(v * 256**i for i, v in enumerate(x)) for x in (values[::-1], values)]
        return tf.where(little, ends[1], ends[0])

    segment = tf.constant(2)
    for _ in range(_SEGMENTS - 1):
        is_exif = (number(segment, 2) == _EXIF_SEGMENT) & (number(segment + 4, 4) == _EXIF)
        segment = tf.where(is_exif, segment, segment + 2 + number(segment + 2, 2))
    is_exif = (number(segment, 2) == _EXIF_SEGMENT) & (number(segment + 4, 4) == _EXIF)
    start = segment + 10
    little = number(start, 2) == 0x4949
    directory = start + number(start + 4, 4, little)
    entries = directory + 2 + 12 * tf.range(_ENTRIES)
    found = (number(entries, 2, little) == _ORIENTATION) & (entries + 12 <= last + 1)
    found &= tf.range(_ENTRIES) < number(directory, 2, little)
    value = tf.reduce_max(tf.where(found & is_exif, number(entries + 8, 2, little), 0))
    return tf.where((value >= 1) & (value <= 8), value, 1)


def orient(pixels: Any, orientation: Any) -> Any:
    """Turns stored pixels of shape `(h, w, C)` as they are displayed."""

    def turned() -> Any:
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

    return tf.cond(orientation > 1, turned, lambda: pixels)


def displayed_shape(shape: Any, orientation: Any) -> Any:
    """Height, width and channels as displayed, from those that are stored."""
    turned = tf.gather(shape, (1, 0, 2))
    return tf.where(_is_one_of(orientation, _TRANSPOSED), turned, shape)


def stored_window(window: Any, shape: Any, orientation: Any) -> Any:
    """Where a window lies in the stored pixels.

    Args:
        window: Top, left, height and width in the displayed image.
        shape: Shape of the displayed image.
        orientation: From 1 to 8.
    """
    top, left, height, width = tf.unstack(window)
    left = tf.where(_is_one_of(orientation, _MIRRORED_X), shape[1] - left - width, left)
    top = tf.where(_is_one_of(orientation, _MIRRORED_Y), shape[0] - top - height, top)
    stored = tf.stack((top, left, height, width))
    turned = tf.stack((left, top, width, height))
    return tf.where(_is_one_of(orientation, _TRANSPOSED), turned, stored)


def _is_one_of(orientation: Any, orientations: tuple[int, ...]) -> Any:
    return tf.reduce_any(orientation == tf.constant(orientations))
