"""Image files: finding them, reading them as arrays, batching them for a model."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.array_checks import check_values
from keras_vit.data.decode import MAX_PIXELS, decode, decoding_problem
from keras_vit.data.input_transform import transform_of
from keras_vit.data.pixel_range import warn_of_small_range
from keras_vit.data.tiff import TIFF_ENDINGS, as_png
from keras_vit.data.transforms import model_input
from keras_vit.errors import listed, printable
from keras_vit.reading import is_left_over, is_regular, read_bytes

# TensorFlow decodes all of them but TIFF, WebP from version 2.19 on.
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", *TIFF_ENDINGS)


def read_images(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    channels: int = 3,
    count: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> list[np.ndarray]:
    """Reads image files as arrays, for `images` and `calibration` of the exports.

    Args:
        paths: Image files and folders of image files; one or several.
        channels: 1, 3 or 4, whatever the files have.
        count: How many to read at most, spread evenly over all; `None` reads all.
        max_pixels: Height times width above which an image is refused.

    Returns:
        uint8 arrays of shape `(h, w, channels)`.

    Raises:
        OSError: If a file does not exist, or is no image.
        ValueError: If there are no images.

    Example:

    >>> photographs = keras_vit.data.read_images("photographs", count=100)
    """
    files = find_images(paths)
    warn_of_small_range(files, "`paths`")
    count = len(files) if count is None else min(count, len(files))
    spread = (files[index * len(files) // count] for index in range(count))
    return [read_image(path, channels, max_pixels) for path in spread]


def read_image(
    path: pathlib.Path,
    channels: int = 3,
    max_pixels: int = MAX_PIXELS,
    exif_orientation: bool = True,
) -> np.ndarray:
    """Reads one image file as a uint8 array of shape `(h, w, channels)`, turned as EXIF says.

    Raises:
        OSError: If the file does not exist, is no image, or one of more pixels than `max_pixels`.
            The message names the file.
    """
    if not is_regular(path):
        raise OSError(f"{printable(path)} is no regular file, so it is not read as an image.")
    try:
        data = tf.constant(as_png(read_bytes(path), max_pixels))
        return decode(data, channels, max_pixels, exif_orientation=exif_orientation).numpy()
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        problem = error if isinstance(error, ValueError) else decoding_problem(error)
        raise OSError(
            f"{printable(path)} cannot be read as an image (JPEG, PNG, BMP, GIF, TIFF, or WebP "
            f"that does not move): {problem}. Remove it or replace it."
        ) from error


def read_pixels(image: Any, index: int, channels: int = 3) -> tuple[np.ndarray, str]:
    """Pixels of an image, and what messages call it.

    Args:
        image: Array of shape `(h, w, channels)` with values in [0, 255], or the path of a file,
            which is turned as its EXIF says.
        index: Its position among the images.
        channels: Channels of the result.

    Raises:
        OSError: If a file is no image.
        ValueError: If an array has another shape, or values outside.
    """
    if isinstance(image, str | os.PathLike):
        return read_image(pathlib.Path(image), channels), printable(image)
    pixels = np.asarray(image)
    if pixels.ndim != 3 or pixels.shape[-1] != channels or not pixels.size:
        raise ValueError(
            f"Image {index} must have the shape (height, width, {channels}), or be the path of a "
            f"file. Received: {pixels.dtype} of shape {pixels.shape}."
        )
    check_values(pixels)
    return pixels, f"image {index}"


class ImageFiles:
    """Image files as batches of a model's input: decoded, resized and cropped as in evaluation.

    Every iteration reads the files again, and only one batch is in memory.

    Args:
        paths: Image files and folders of image files.
        model: A model of this package, or one built on one.
        batch_size: Images in a batch.

    Yields:
        float32 arrays of shape `(b, H, W, C)`, in the value range that the model takes.

    Raises:
        ValueError: If there are no images, or the model has no one size of images.
        OSError: If a file does not exist or, once it is read, is no image.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], model: keras.Model, batch_size: int = 16
    ):
        self.files = find_images(paths)
        self.batch_size = batch_size
        self._transform = transform_of(model)

    def __len__(self) -> int:
        return -(-len(self.files) // self.batch_size)

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self.files), self.batch_size):
            files = self.files[start : start + self.batch_size]
            yield np.stack([self._read(path) for path in files])

    def _read(self, path: pathlib.Path) -> np.ndarray:
        turn = self._transform.preprocessing.exif_orientation
        image = read_image(path, self._transform.channels, exif_orientation=turn)
        return model_input(self._transform, tf.constant(image), MAX_PIXELS).numpy()


def find_images(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    endings: tuple[str, ...] = IMAGE_ENDINGS,
) -> list[pathlib.Path]:
    """Finds image files, and the images in folders and their sub-folders, in a fixed order.

    Args:
        paths: Files and folders; one or several.
        endings: How the names of files in folders end, in small letters.

    Raises:
        FileNotFoundError: If one does not exist.
        ValueError: If there are no images.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[pathlib.Path] = []
    for path in map(pathlib.Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"There is no image {printable(path)}.")
        files += map(pathlib.Path, list_files(path, endings)) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"There are no images in {listed(paths) or 'nothing'}.")
    return files


def list_files(folder: str | os.PathLike[str], endings: tuple[str, ...]) -> list[str]:
    """Finds files in a folder and its sub-folders, symbolic links included, sorted by path.

    A folder that several links lead to is read once, and a link to a folder above is not followed.

    Args:
        folder: The folder. Hidden files and folders in it, and what other programs leave, such as
            `__MACOSX` and `Thumbs.db`, are left out.
        endings: How the names end, in small letters.
    """
    top = pathlib.Path(folder)
    if not top.is_dir():
        return []
    visited = {_identity(each) for each in (top, *top.absolute().parents, *top.resolve().parents)}
    found: list[str] = []
    for parent, folders, names in os.walk(top, followlinks=True):
        inner = [name for name in folders if not is_left_over(name)]
        inner.sort(key=lambda name: (os.path.islink(os.path.join(parent, name)), name))
        folders.clear()
        for name in inner:
            identity = _identity(os.path.join(parent, name))
            if identity not in visited:
                visited.add(identity)
                folders.append(name)
        start = os.fspath(pathlib.Path(parent, "_")).removesuffix("_")
        found += [
            start + name
            for name in names
            if name.lower().endswith(endings) and not is_left_over(name)
        ]
    return sorted(found, key=lambda path: path.replace(os.sep, "\0"))  # as on every platform


def _identity(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """The common part of two paths of the same folder."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino
