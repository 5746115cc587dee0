"""A sheet of augmented training images as a PNG file."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batches import train_batches
from keras_vit.data.decode import decode
from keras_vit.data.image_files import read_image
from keras_vit.data.image_set import ImageSet
from keras_vit.data.input_transform import InputTransform, transform_of
from keras_vit.files import write_atomically

if TYPE_CHECKING:
    import keras

    from keras_vit.config import ResNetConfig, ViTConfig

_GAP = 4  # pixels between two images


def write_preview(
    images: ImageSet,
    model: keras.Model | ViTConfig | ResNetConfig | InputTransform,
    path: str | os.PathLike[str],
    augmentation: Augmentation | None = None,
    seed: int = 0,
    *,
    rows: int = 6,
    columns: int = 8,
    image_size: int | tuple[int, int] | None = None,
) -> None:
    """Writes a sheet of training images as the model sees them: cropped, augmented and mixed.

    Args:
        images: Training images.
        model: As for `train_batches`.
        path: The PNG file to write.
        augmentation: As for `train_batches`.
        seed: Seed of the choice of images and of their augmentation. With the seed of training,
            these are the first images that it reads.
        rows: Rows of images.
        columns: Images in a row.
        image_size: As for `train_batches`.
    """
    transform = transform_of(model, image_size)
    count = rows * columns
    repeats = -(-count // images.num_images)
    batches = train_batches(
        images, transform, count, augmentation, seed, one_hot=True, repeats=repeats, steps=1
    )
    x = next(iter(batches))[0].numpy()  # (rows * columns, H, W, C)
    if transform.normalize:
        mean, std = map(np.array, transform.preprocessing.per_channel(transform.channels))
        x = x * std + mean
    height, width, channels = x.shape[1:]
    sheet = np.full((rows, height + _GAP, columns, width + _GAP, channels), 255, "uint8")
    whole = np.clip(np.round(x), 0, 255).astype("uint8")
    tiles = whole.reshape(rows, columns, height, width, channels).transpose(0, 2, 1, 3, 4)
    sheet[:, :height, :, :width] = tiles
    pixels = sheet.reshape(rows * (height + _GAP), columns * (width + _GAP), channels)
    write_png(path, pixels)


def read_one(source: ImageSet | str | os.PathLike[str], position: int) -> np.ndarray:
    """Reads an image of a set, or a file, as a uint8 array of shape `(h, w, 3)`.

    Raises:
        OSError: If its file does not exist, or cannot be read. The message names it.
    """
    if not isinstance(source, ImageSet):
        return read_image(pathlib.Path(source))
    if source.are_files:
        return read_image(pathlib.Path(os.fsdecode(source.rows[0][position])))
    item, _ = next(iter(source.subset(np.array([position])).spread(1)))
    return decode(source.load(item)).numpy()


def encode_thumbnail(pixels: np.ndarray, side: int) -> bytes:
    """Encodes pixels in [0, 255] as JPEG, shrunk to `side` pixels along the longer side."""
    scale = min(1.0, side / max(pixels.shape[:2]))
    size = [max(1, round(scale * each)) for each in pixels.shape[:2]]
    small = tf.image.resize(pixels, size, "area") if scale < 1 else pixels
    encoded: bytes = tf.io.encode_jpeg(np.round(small).astype("uint8"), quality=85).numpy()
    return encoded


def write_png(path: str | os.PathLike[str], pixels: np.ndarray) -> None:
    """Writes pixels of shape `(h, w, C)` as a PNG file in place of another.

    Args:
        path: The file.
        pixels: Integers in [0, 255]; of uint16, those of a file of 16 bits.
    """
    dtype = "uint16" if pixels.dtype == np.uint16 else "uint8"
    with write_atomically(pathlib.Path(path), replace=True) as unfinished:
        unfinished.write_bytes(tf.io.encode_png(pixels.astype(dtype)).numpy())
