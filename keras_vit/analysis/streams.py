"""Images as they come: an array, a dataset, a generator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


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
