"""Batches of images from arrays, datasets and generators, and images for display."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

# One array of images, or an iterable of batches or of tuples that begin with one.
ImageBatches = np.ndarray | Iterable[Any]


def image_batches(images: ImageBatches, batch_size: int = 16) -> Iterator[np.ndarray]:
    """Iterates over batches of images.

    Args:
        images: Array of shape `(B, H, W, C)`, or an iterable (a `tf.data.Dataset`, a generator,
            a list) of such batches or of tuples that begin with one, as `(images, labels)`.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        Iterator over arrays of shape `(b, H, W, C)`; empty batches are skipped.

    Raises:
        ValueError: If a batch has another number of axes, or there are no images.
    """
    batches: Any = images
    if hasattr(images, "shape"):
        array, starts = batches, range(0, len(batches), batch_size)
        batches = (array[start : start + batch_size] for start in starts)
    empty = True
    for batch in batches:
        x = np.asarray(batch[0] if isinstance(batch, tuple | list) else batch)
        if x.ndim != 4:
            raise ValueError(
                "Batches of images must have the shape (batch, height, width, channels). Received: "
                f"{x.shape}. For one image, pass `image[None]`."
            )
        if len(x):
            empty = False
            yield x
    if empty:
        raise ValueError("`images` must hold at least one image. Received: none.")


def displayed(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Converts model inputs to images for display: pixels in [0, 255] with 1 or 3 channels."""
    config = getattr(model, "config", None)
    x = np.asarray(images, "float32")
    if config is not None and not config.include_preprocessing:
        mean, std = config.preprocessing.per_channel(config.channels)
        x = x * np.array(std) + np.array(mean)
    elif x.min() < 0 or x.max() <= 1:  # the model's own range, which is unknown
        x = (x - x.min()) / max(float(np.ptp(x)), 1e-12) * 255
    if x.shape[-1] not in (1, 3):
        x = x.mean(axis=-1, keepdims=True)
    return np.clip(x, 0, 255)
