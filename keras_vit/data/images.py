"""Image files as arrays of any size."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.decode import decode
from keras_vit.data.files import find_images


def read_images(
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    channels: int = 3,
    count: int | None = None,
) -> list[np.ndarray]:
    """Images of any size from files, for `images` and `calibration` of the exports.

    Args:
        paths: Image files, and folders of them, of which every image counts; one or several.
        channels: 1, 3 or 4, whatever the files have.
        count: How many to read at most, spread evenly over all; `None` reads all.

    Returns:
        uint8 arrays of shape `(h, w, channels)`.

    Raises:
        OSError: If a file does not exist, or is no image.
        ValueError: If there are no images.

    Example:

    >>> photographs = keras_vit.read_images("photographs", count=100)
    """
    return [_read(path, channels) for path in _spread(find_images(paths), count)]


def _spread(files: list[pathlib.Path], count: int | None) -> Iterator[pathlib.Path]:
    count = len(files) if count is None else min(count, len(files))
    return (files[index * len(files) // count] for index in range(count))


def _read(path: pathlib.Path, channels: int) -> np.ndarray:
    try:
        return decode(tf.constant(path.read_bytes()), channels).numpy()
    except tf.errors.InvalidArgumentError as error:
        raise OSError(
            f"{path} cannot be read as an image (JPEG, PNG, BMP, GIF, or WebP that does not move). "
            "Remove it or replace it."
        ) from error
