"""Quality of scores by rank: top-k accuracy, and recall of images and texts for each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_vit.checks import check_positive


class Recall(NamedTuple):
    """Share of queries with a match among the first answers. Made by `recall_at_k`.

    Args:
        image_to_text: Share of images with a text of theirs among the first texts.
        text_to_image: Share of texts with an image of theirs among the first images.
    """

    image_to_text: float
    text_to_image: float


def top_accuracy(scores: np.ndarray, labels: np.ndarray, k: int = 1) -> float:
    """Computes the share of images whose class is among the `k` highest scores.

    Of equal scores the first class wins, as with `argmax`.

    Args:
        scores: Logits or probabilities of shape `(B, K)`.
        labels: Classes of the images, integers of shape `(B,)` in [0, K).
        k: How many classes count, from 1 to `K`.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: If shapes do not fit, scores are NaN, or labels or `k` are out of range.

    Example:

    >>> import numpy as np
    >>> scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]])
    >>> top_accuracy(scores, np.array([2, 0])), top_accuracy(scores, np.array([2, 0]), k=2)
    (0.5, 1.0)
    """
    scores, labels = _check_scores(scores), np.asarray(labels)
    _check_k(k, scores.shape[1], "classes")
    if labels.shape != scores.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"`labels` must be an integer for each of {len(scores)} images. Received: "
            f"{labels.dtype} of shape {labels.shape}."
        )
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(
            f"`labels` must be from 0 to {scores.shape[1] - 1}, the columns of the scores. "
            f"Received: labels from {labels.min()} to {labels.max()}."
        )
    return float((_first(scores, k) == labels[:, None]).any(axis=1).mean())


def recall_at_k(similarity: np.ndarray, k: int = 1, positives: np.ndarray | None = None) -> Recall:
    """Computes recall at `k` of images for texts and of texts for images.

    An image counts as found if any of its texts is among the first `k`, as published results of
    five captions an image do. Of equal similarities the first wins.

    Args:
        similarity: Similarities or logits of `B` images and `C` texts, array of shape `(B, C)`.
        k: How many answers count.
        positives: Which texts describe which images: the index of its image for each text,
            integers of shape `(C,)`, or bools of shape `(B, C)`. `None` is one text for each image,
            in the same order.

    Returns:
        `Recall` in both directions.

    Raises:
        ValueError: If shapes do not fit, similarities are NaN, `k` is out of range, or an image or
            text has no match: the message lists the first.

    Example:

    >>> import numpy as np
    >>> similarity = np.array([[0.9, 0.1, 0.3], [0.8, 0.2, 0.6]])
    >>> recall_at_k(similarity, positives=np.array([0, 0, 1]))  # the last text is of image 1
    Recall(image_to_text=0.5, text_to_image=0.6666666666666666)
    """
    similarity = _check_scores(similarity)
    _check_k(k, min(similarity.shape), "images or texts")
    matches = _matches(positives, similarity.shape)
    for axis, what in ((1, "images"), (0, "texts")):
        without = np.flatnonzero(~matches.any(axis=axis))
        if len(without):
            raise ValueError(
                f"{len(without)} {what} have no match in `positives`, the first at "
                f"{', '.join(map(str, without[:5]))}. Leave them out of `similarity`."
            )
    found = (
        np.take_along_axis(hits, _first(scores, k), axis=1).any(axis=1).mean()
        for scores, hits in ((similarity, matches), (similarity.T, matches.T))
    )
    return Recall(*map(float, found))


def _first(scores: np.ndarray, k: int) -> np.ndarray:
    """Columns of the `k` highest scores of each row."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def _matches(positives: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    images, texts = shape
    if positives is None:
        if images != texts:
            raise ValueError(
                "Without `positives` there is one text for each image. Received: similarities of "
                f"{images} images and {texts} texts. Pass the index of its image for each text."
            )
        return np.eye(images, dtype=bool)
    positives = np.asarray(positives)
    if positives.dtype.kind in "iu" and positives.shape == (texts,):
        if positives.min() < 0 or positives.max() >= images:
            raise ValueError(
                f"`positives` must be indices of {images} images. Received: from "
                f"{positives.min()} to {positives.max()}."
            )
        return np.arange(images)[:, None] == positives
    if positives.dtype.kind == "b" and positives.shape == shape:
        return positives
    raise ValueError(
        f"`positives` must be integers of shape ({texts},), or bools of shape {shape}. Received: "
        f"{positives.dtype} of shape {positives.shape}."
    )


def _check_scores(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, "float64")
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"Scores must be of shape (B, K). Received: shape {scores.shape}.")
    if np.isnan(scores).any():
        raise ValueError("Scores must be numbers. Received: NaN among them.")
    return scores


def _check_k(k: int, most: int, what: str) -> None:
    check_positive("k", k)
    if k > most:
        raise ValueError(f"`k` must be at most {most}, the number of {what}. Received: k={k}.")
