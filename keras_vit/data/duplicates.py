"""Images that are in two sets: what must not be in the test set, was it in the training set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.data.decode import decode
from keras_vit.data.image_set import ImageSet

_SIDE = 16
_BLOCK = 4096


class NearDuplicate(NamedTuple):
    """An image of one set that is nearly one of another.

    Args:
        first: Its place in the first set.
        second: Its place in the second.
        similarity: Correlation of the two thumbnails, at most 1.
    """

    first: int
    second: int
    similarity: float


def find_near_duplicates(
    first: ImageSet, second: ImageSet, similarity: float = 0.98, mirrored: bool = True
) -> list[NearDuplicate]:
    """Pairs of images of two sets that look alike: stored again, resized, recoloured, mirrored.

    The paper removed such images from the pre-training sets of its downstream test sets. Images are
    compared as grey thumbnails of 16 x 16 pixels, by the correlation of their values, so brightness
    and contrast do not count; all pairs are compared. Even images have no correlation with
    anything, and crops are not found.

    Args:
        first: Such as a pre-training set.
        second: Such as a test set.
        similarity: Least correlation that counts as the same image.
        mirrored: Whether to find mirror images, too.

    Returns:
        The pairs, the most similar first; look at them before anything is removed.

    Raises:
        ValueError: If `similarity` is not in (0, 1].
    """
    if not 0 < similarity <= 1:
        raise ValueError(f"`similarity` must be in (0, 1]. Received: {similarity}.")
    ours, theirs = _thumbnails(first), _thumbnails(second)
    versions = [theirs, theirs[:, :, ::-1]] if mirrored else [theirs]
    best: dict[tuple[int, int], float] = {}
    for version in map(_standardize, versions):
        for start in range(0, len(ours), _BLOCK):
            scores = _standardize(ours[start : start + _BLOCK]) @ version.T
            for i, j in np.argwhere(scores >= similarity):
                pair = (start + int(i), int(j))
                best[pair] = max(best.get(pair, 0.0), min(1.0, float(scores[i, j])))
    pairs = [NearDuplicate(*pair, score) for pair, score in best.items()]
    return sorted(pairs, key=lambda pair: (-pair.similarity, *pair))


def _thumbnails(images: ImageSet) -> np.ndarray:
    """uint8 array of shape `(B, 16, 16)`, in the order of the images."""

    def shrink(item: Any, label: Any) -> Any:
        pixels = tf.cast(_decode(images.load(item)), tf.float32)
        small = tf.image.resize(tf.reduce_mean(pixels, -1, keepdims=True), (_SIDE, _SIDE), "area")
        return tf.cast(tf.round(small[..., 0]), tf.uint8)

    pairs = images.read((0, images.num_images), None, 0)
    batches = pairs.map(shrink, tf.data.AUTOTUNE, deterministic=True).batch(_BLOCK)
    return np.concatenate(list(batches.as_numpy_iterator()))


def _decode(image: Any) -> Any:
    """Pixels of encoded images, or of images that are pixels of any number of channels."""
    return decode(image) if image.dtype == tf.string else image


def _standardize(thumbnails: np.ndarray) -> np.ndarray:
    """Rows of mean 0 and length 1, or of zeros where all values are about the same."""
    x = thumbnails.reshape(len(thumbnails), -1).astype("float32")
    x -= x.mean(1, keepdims=True)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.where(length > _SIDE, x / np.maximum(length, 1e-6), 0.0).astype("float32")
