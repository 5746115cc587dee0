"""Checks of arrays of pixels, labels and regression targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keras_vit.checks import NORMALIZED_LIMIT
from keras_vit.data.pixel_range import bits_of


def check_labels(labels: np.ndarray, num_classes: int, name: str) -> None:
    """Raises `ValueError` if a label is out of range."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise ValueError(
            f"Labels must be from 0 to {num_classes - 1}, one for each class. Received in {name}: "
            f"{len(wrong)} others, first {labels[wrong[0]]} at image {wrong[0]}."
        )


def check_values(x: np.ndarray) -> None:
    """Raises `ValueError` unless pixels are in [0, 255]."""
    if x.dtype == "uint8":
        return
    low, high = float(x.min()), float(x.max())
    advice = ""
    if x.dtype.kind == "f" and low >= 0 and 0 < high <= 1:
        advice = " They look like values in [0, 1]: multiply by 255."
    elif x.dtype.kind in "iu" and low >= 0 and high > 255:
        bits = bits_of(high) or 16
        advice = f" They look like {bits} bits a channel: multiply by 255 / {2**bits - 1}."
    elif low < 0 and high <= NORMALIZED_LIMIT:
        advice = " They look normalised: undo it, since the model does it itself."
    if not (low >= 0 and high <= 255) or (advice and high <= 1):  # NaN fails too
        raise ValueError(
            f"`images` must have values in [0, 255]. Received: {x.dtype} in [{low:g}, {high:g}]."
            f"{advice}"
        )


def check_vectors(y: np.ndarray, count: int, task: str, names: Sequence[str] | None) -> None:
    """Checks labels of several classes, or regression targets."""
    columns = None if names is None else len(names)
    if y.ndim != 2 or len(y) != count or not y.shape[1] or columns not in (None, y.shape[1]):
        raise ValueError(
            f"`labels` must have the shape ({count}, {columns or 'K'}) for task={task!r}: a row "
            f"for each image, a column for each name. Received: shape {y.shape}."
        )
    is_valid = y.dtype.kind in "biuf" and np.isfinite(y).all()
    if not is_valid or (task == "multi_label" and not np.isin(y, (0, 1)).all()):
        expected = "0 and 1" if task == "multi_label" else "finite numbers"
        raise ValueError(f"`labels` must be {expected} for task={task!r}. Received: {y}.")
