"""95 % intervals of accuracies, and of differences of two accuracies or means."""

from __future__ import annotations

import math

import numpy as np

_Z = 1.959964  # of 95 % of a normal distribution


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion, such as an accuracy; (0, 1) without images."""
    if not total:
        return 0.0, 1.0
    share, square = right / total, _Z**2 / total
    middle = share + square / 2
    half = math.sqrt(share * (1 - share) * square + square**2 / 4)
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def drop_interval(lost: int, gained: int, total: int) -> tuple[float, float]:
    """95 % interval of the difference of two accuracies on the same images.

    Agresti and Min (https://doi.org/10.1002/sim.1781): half an image is added to each of the four
    cells, so that it is not empty where the two agree on all images.

    Args:
        lost: Images that only the first has right.
        gained: Images that only the second has right.
        total: Number of images, at least 1.
    """
    size, b, c = total + 2, lost + 0.5, gained + 0.5
    middle = (b - c) / size
    half = _Z * math.sqrt(b + c - (b - c) ** 2 / size) / size
    return max(-1.0, middle - half), min(1.0, middle + half)


def mean_change(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """Difference of two means, and its 95 % interval; not a number for fewer than two values."""
    if min(len(before), len(after)) < 2:
        return (math.nan,) * 3
    change = float(after.mean() - before.mean())
    half = _Z * math.sqrt(after.var(ddof=1) / len(after) + before.var(ddof=1) / len(before))
    return change, change - half, change + half
