"""Thresholds of classes, from a few labelled images."""

from __future__ import annotations

import numpy as np

from keras_vit.checks import check_choice

_METRICS = ("f1", "balanced_accuracy")


def calibrate_thresholds(
    scores: np.ndarray, labels: np.ndarray, metric: str = "f1", precision: float | None = None
) -> np.ndarray:
    """Chooses for each class the score from which it is predicted, on labelled images.

    A zero-shot classifier knows the order of images by a class better than the level of their
    scores: the probabilities of SigLIP can all be small. Each class is predicted where `score >=
    threshold`, of any scores of the same model: probabilities of a sigmoid or a softmax, or logits.
    Thresholds lie in the middle between two scores; where several are equally good, in the widest
    gap. On the images that they are chosen on, the metric is a little too good.

    Args:
        scores: Scores of the images, array of shape `(B, K)`.
        labels: Integers of shape `(B,)`, the class of each image; or of shape `(B, K)`, 1 where an
            image shows a class and 0 elsewhere.
        metric: `"f1"`, or `"balanced_accuracy"` (the mean of the recall of images with and without
            the class), which does not depend on how frequent the class is.
        precision: Share of the predictions that must be right, in place of a metric: the threshold
            with the highest recall among those that reach it, or else with the highest precision.

    Returns:
        float64 array of shape `(K,)`.

    Raises:
        ValueError: If shapes do not fit, scores are not finite, or a class is shown by no image or
            by all: the message lists these classes.

    Example:

    >>> import numpy as np
    >>> scores = np.array([[0.2, 0.1], [0.4, 0.0], [0.1, 0.1], [0.0, 0.3]])
    >>> calibrate_thresholds(scores, np.array([0, 0, 1, 1])).tolist()
    [0.15000000000000002, 0.05]
    """
    check_choice("metric", metric, _METRICS)
    if precision is not None and not 0 < precision <= 1:
        raise ValueError(f"`precision` must be in (0, 1]. Received: {precision!r}.")
    scores = np.asarray(scores, "float64")
    is_shown = _check_labels(scores, np.asarray(labels))
    columns = zip(scores.T, is_shown.T, strict=True)
    return np.array([_threshold(*each, metric, precision) for each in columns])


def _threshold(
    scores: np.ndarray, is_shown: np.ndarray, metric: str, precision: float | None
) -> float:
    """The best threshold of one class; bools say which images show it."""
    order = np.argsort(-scores)
    values, shown = scores[order], is_shown[order]
    predicted, right = np.arange(1, len(values) + 1), np.cumsum(shown)
    count = right[-1]
    if precision is not None:
        shares = right / predicted
        quality = np.where(shares >= precision, 1 + right, shares)
    elif metric == "f1":
        quality = 2 * right / (predicted + count)
    else:
        quality = (right / count + 1 - (predicted - right) / (len(values) - count)) / 2
    below = np.append(values[1:], values[-1])
    gaps = values - below  # to the next lower score
    gaps[-1] = np.finfo("float64").tiny  # all images
    quality = np.where(gaps > 0, quality, -1)  # equal scores are told apart by no threshold
    best = np.flatnonzero(quality >= quality.max() - 1e-12)
    index = best[np.argmax(gaps[best])]
    middle = (values[index] + below[index]) / 2
    return float(middle if middle > below[index] else values[index])


def _check_labels(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Checks scores and labels; returns bools of shape `(B, K)`."""
    if scores.ndim != 2 or not scores.size or labels.shape not in (scores.shape, scores.shape[:1]):
        raise ValueError(
            "Thresholds need scores of shape (B, K), and labels of shape (B,) or (B, K). Received: "
            f"{scores.shape} and {labels.shape}."
        )
    if not np.isfinite(scores).all():
        raise ValueError("Scores must be finite. Received: NaN or infinity among them.")
    most = scores.shape[1] - 1 if labels.ndim == 1 else 1
    if (labels != np.round(labels)).any() or labels.min() < 0 or labels.max() > most:
        raise ValueError(
            f"`labels` of shape {labels.shape} must be integers from 0 to {most}. Received: "
            f"{labels.dtype} from {labels.min()} to {labels.max()}."
        )
    is_shown = labels > 0
    if labels.ndim == 1:
        is_shown = labels[:, None] == np.arange(scores.shape[1])
    shares = is_shown.mean(axis=0)
    one_sided = np.flatnonzero((shares == 0) | (shares == 1))
    if len(one_sided):
        raise ValueError(
            "A threshold needs images with and without the class. Classes that none or all of "
            f"{len(scores)} images show: {', '.join(map(str, one_sided[:10]))}."
        )
    return is_shown
