"""Finds near-duplicate images across two data sets (test-set contamination)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.data.decode import decode
from keras_vit.data.image_set import ImageSet
from keras_vit.progress import Progress

_SIDE = 16
_BLOCK = 4096  # images that are compared at a time
_READ = 256  # images that are read at a time


class NearDuplicate(NamedTuple):
    """A pair of near-duplicate images.

    Args:
        first: Index of the image in the first set.
        second: Index of the image in the second set.
        similarity: Correlation of the two thumbnails, at most 1.
    """

    first: int
    second: int
    similarity: float


def find_near_duplicates(
    first: ImageSet, second: ImageSet, similarity: float = 0.98, mirrored: bool = True
) -> list[NearDuplicate]:
    """Finds near-duplicates across two data sets: recompressed, resized, recoloured or mirrored.

    The paper removed images of the downstream test sets from its pre-training sets. This function
    compares all pairs of images: it computes the correlation of grey thumbnails of 16 x 16 pixels,
    so brightness and contrast do not matter. Images of one colour match nothing. Crops of an image
    are not found.

    Args:
        first: Images, for example a pre-training set.
        second: Images, for example a test set.
        similarity: Minimum correlation of near-duplicates.
        mirrored: Whether to also find mirrored images.

    Returns:
        The pairs, most similar first. Look at them before you remove images.

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
    """Thumbnails of all images in order: a uint8 array of shape `(B, 16, 16)`."""

    def shrink(item: Any, label: Any) -> Any:
        pixels = images.load(item)
        if pixels.dtype == tf.string:  # pixels that are stored may have any number of channels
            pixels = decode(pixels, max_pixels=images.max_pixels)
        grey = tf.reduce_mean(tf.cast(pixels, tf.float32), -1, keepdims=True)
        small = tf.image.resize(grey, (_SIDE, _SIDE), "area")
        return tf.cast(tf.round(small[..., 0]), tf.uint8)

    pairs = images.read((0, images.num_images), None, 0)
    batches = pairs.map(shrink, tf.data.AUTOTUNE, deterministic=True).batch(_READ)
    thumbnails = np.empty((images.num_images, _SIDE, _SIDE), "uint8")
    with Progress("comparing images", images.num_images) as progress:
        for batch in batches.as_numpy_iterator():
            done = progress.done + len(batch)
            thumbnails[progress.done : done] = batch
            progress.update(done)
    return thumbnails


def _standardize(thumbnails: np.ndarray) -> np.ndarray:
    """Scales each row to mean 0 and length 1; rows with nearly constant values become 0."""
    x = thumbnails.reshape(len(thumbnails), -1).astype("float32")
    x -= x.mean(1, keepdims=True)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.where(length > _SIDE, x / np.maximum(length, 1e-6), 0.0).astype("float32")
