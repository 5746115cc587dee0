"""Images as they come: an array, a dataset, a generator, files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.config import Preprocessing
from keras_vit.data.files import find_images


def image_batches(images: Any, batch_size: int = 16) -> Iterator[np.ndarray]:
    """Batches of images from an array, or from anything that yields batches.

    Args:
        images: Array of shape `(B, H, W, C)`, or an iterable (a `tf.data.Dataset`, a generator,
            a list) of such batches or of tuples that begin with one, as `(images, labels)`.
        batch_size: Images a batch, where `images` is an array.

    Returns:
        Iterator over arrays of shape `(b, H, W, C)`, none of them empty.

    Raises:
        ValueError: If something has another number of axes, or there are no images.
    """
    empty = True
    for batch in _split(images, batch_size):
        x = np.asarray(batch[0] if isinstance(batch, tuple | list) else batch)
        if x.ndim != 4:
            raise ValueError(
                "Images come in batches of shape (batch, height, width, channels). Received: shape "
                f"{x.shape}. For one image, pass `image[None]`."
            )
        if len(x):
            empty = False
            yield x
    if empty:
        raise ValueError("`images` must hold at least one image. Received: none.")


def _split(images: Any, batch_size: int) -> Iterator:
    if hasattr(images, "shape"):
        for start in range(0, len(images), batch_size):
            yield images[start : start + batch_size]
    else:
        yield from images


class ImageFiles:
    """Image files as batches that a model takes: resized as in evaluation, in the model's range.

    Every pass over it reads the files anew, and only one batch is in memory.

    Args:
        paths: Image files, and folders of them, of which every image counts.
        model: A model of this package, or one built on one.
        batch_size: Images a batch.

    Yields:
        float32 arrays of shape `(b, H, W, C)`.

    Raises:
        ValueError: If there are no images.
        OSError: If a file does not exist or, once it is read, is no image.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike], model: keras.Model, batch_size: int = 16
    ):
        self.files = find_images(paths)
        self.batch_size = batch_size
        self._model = model

    def __len__(self) -> int:
        return -(-len(self.files) // self.batch_size)

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self.files), self.batch_size):
            files = self.files[start : start + self.batch_size]
            yield np.stack([read_image(path, self._model) for path in files])


def read_image(path: str | os.PathLike, model: keras.Model) -> np.ndarray:
    """An image file as a model takes it, float32 array of shape `(H, W, C)`.

    Raises:
        OSError: If there is no such file, or it is no image.
    """
    from keras_vit.data.views import eval_view  # brings TensorFlow

    config = getattr(model, "config", None)
    preprocessing = Preprocessing() if config is None else config.preprocessing
    height, width, channels = model.inputs[0].shape[1:]
    mode = "grayscale" if channels == 1 else "rgb"
    try:
        image = keras.utils.img_to_array(keras.utils.load_img(path, color_mode=mode))
    except OSError as error:  # Pillow does not say which file
        raise OSError(
            f"{os.fspath(path)} cannot be read as an image ({error}). Remove it or replace it."
        ) from error
    pixels = np.asarray(eval_view(image, preprocessing, (height, width)))
    if config is None or config.include_preprocessing:
        return pixels
    mean, std = preprocessing.per_channel(channels)
    return ((pixels - np.array(mean)) / np.array(std)).astype("float32")


def displayed(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Images as the model takes them as pictures: pixels in [0, 255] of 1 or 3 channels."""
    config = getattr(model, "config", None)
    x = np.asarray(images, "float32")
    if config is not None and not config.include_preprocessing:
        mean, std = config.preprocessing.per_channel(config.channels)
        x = x * np.array(std) + np.array(mean)
    elif x.min() < 0 or x.max() <= 1:  # a model of the user's own, with a range of its own
        x = (x - x.min()) / max(float(np.ptp(x)), 1e-12) * 255
    if x.shape[-1] not in (1, 3):
        x = x.mean(axis=-1, keepdims=True)
    return np.clip(x, 0, 255)
