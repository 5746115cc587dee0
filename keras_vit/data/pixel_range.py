"""Finds images whose values use a small part of their range, such as 12 bits in 16-bit files."""

from __future__ import annotations

import functools
import os
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_vit.data.decode import decode
from keras_vit.data.headers import is_tiff, open_tiff
from keras_vit.data.tiff import as_png
from keras_vit.reading import open_regular, read_bytes

_SAMPLE = 32  # files that are looked at, spread evenly
_HEADER = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_DEPTH = 24  # position of the bits of a channel in a PNG
_DEPTHS = (8, 10, 12, 14)  # bits of cameras and scanners
_BLACK = 31  # a value of 0 to 255


class SmallRange(NamedTuple):
    """16-bit files that hold fewer bits.

    Args:
        paths: The files.
        highest: Largest value of all of them.
        bits: 8, 10, 12 or 14.
    """

    paths: tuple[pathlib.Path, ...]
    highest: int
    bits: int

    @property
    def advice(self) -> str:
        """Describes the effect on the pixels, and what to do."""
        return (
            f"no value is above {self.highest:,}, as of {self.bits} bits, and read as 16 bits they "
            f"become 0 to {self.highest >> 8} of 255: multiply the stored values by "
            f"{65535 / (2**self.bits - 1):.4g}"
        )


def bits_of(highest: float) -> int | None:
    """The fewest bits, 8, 10, 12 or 14, that hold a value; `None` for 0 and more than 14 bits."""
    return next((bits for bits in _DEPTHS if 0 < highest < 2**bits), None)


def find_small_range(paths: Sequence[str | os.PathLike[str]]) -> SmallRange | None:
    """Looks for 16-bit files that hold 14 bits or fewer, in at most 32 of the files."""
    deep = tuple(path for path in _sample(paths) if _has_16_bits(path))
    highest = max((_highest(path, _decode_16_bits) or 0 for path in deep), default=0)
    bits = bits_of(highest)
    return None if bits is None else SmallRange(deep, highest, bits)


def find_black(paths: Sequence[str | os.PathLike[str]]) -> list[pathlib.Path]:
    """Looks for images without a value above 31 of 255, in at most 32 of the files."""
    shallow = [path for path in _sample(paths) if not _has_16_bits(path)]
    values = ((path, _highest(path, decode)) for path in shallow)
    return [path for path, value in values if value is not None and value <= _BLACK]


def warn_of_small_range(
    paths: Sequence[str | os.PathLike[str]], name: str | os.PathLike[str]
) -> None:
    """Warns of 16-bit files that hold 14 bits or fewer: they are read as nearly black."""
    found = find_small_range(paths)
    if found is not None:
        warnings.warn(f"In the 16-bit files of {name}, {found.advice}.", stacklevel=3)


_decode_16_bits = functools.partial(tf.io.decode_png, dtype=tf.uint16)


def _highest(path: pathlib.Path, decoder: Callable[[Any], Any]) -> int | None:
    """The largest value of an image file, or `None` if it is damaged."""
    try:
        return int(tf.reduce_max(decoder(tf.constant(as_png(read_bytes(path))))))
    except tf.errors.ResourceExhaustedError:  # too little memory is no fault of the file
        raise
    except (ValueError, tf.errors.OpError):
        return None


def _sample(paths: Sequence[str | os.PathLike[str]]) -> list[pathlib.Path]:
    count = min(_SAMPLE, len(paths))
    return [pathlib.Path(paths[index * len(paths) // count]) for index in range(count)]


def _has_16_bits(path: pathlib.Path) -> bool:
    if not path.is_file():
        return False
    with open_regular(path) as file:
        head = file.read(_DEPTH + 1)
        if is_tiff(head):
            image, _ = open_tiff(file, os.stat(path).st_size)
            return image is not None and image.mode.startswith("I;16")
    return head.startswith(_HEADER) and head[_DEPTH:] == b"\x10"
