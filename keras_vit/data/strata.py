"""Stratified choice of held-out images: each class, label and range of numbers has its share.

NumPy's generator, stable sorts and exact comparisons make the choice the same on every platform.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDING = 1e-9  # of a share times a number of images
HELD_OUT = "held_out"  # in config.json of a run: the text of `labelled_set.describe_held_out`


def hold_out(task: str | None, labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Chooses held-out images.

    Args:
        task: `"single_label"`, `"multi_label"` or `"regression"`, see `ImageSet`; `None` draws the
            images whatever their labels.
        labels: Labels of shape `(n,)` or `(n, K)`.
        share: As for `LabelledSet.split`.
        seed: Random seed.

    Returns:
        Positions, int64, in ascending order; none if the share is too small for one image.
    """
    total = len(labels)
    number = round(share * total) if 0 < share < 1 else int(share)
    fewest = most = number
    random = np.random.default_rng(seed)
    part = min(number / total, 1.0) if share >= 1 else share
    if task == "single_label":
        order, fewest, most = _order_classes(labels, part, random)
    elif task == "multi_label":
        order, parts = divide_labels(labels, (part, 1 - part), random)
        order = np.concatenate([order[parts[order] == 0], order[parts[order] == 1][::-1]])
        fewest = most = int((parts == 0).sum())
    elif task == "regression":
        return _choose_ranges(labels, min(max(number, 1), total - 1), random)
    else:
        order = random.permutation(total)
    if share < 1:  # where no class has two images, as many as were asked for
        number = min(max(number, fewest), most) or number
    return np.sort(order[:number])


def _order_classes(
    labels: np.ndarray, share: float, random: np.random.Generator
) -> tuple[np.ndarray, int, int]:
    """Orders images so that the first ones are a stratified choice, whatever their number.

    Returns:
        Positions, and the fewest and most first ones that give every class its share to the nearest
        image: they differ where a share is half an image.
    """
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # class by class
    _, first, of_class, sizes = np.unique(
        labels[order], return_index=True, return_inverse=True, return_counts=True
    )
    rank, size = np.arange(len(order)) - first[of_class], sizes[of_class]
    place = (rank + 0.5) / size
    # One image of every class comes first, and one last.
    place += np.where(rank == size - 1, 1.0, np.where(rank == 0, -1.0, 0.0))
    fewest, most = ((place <= share + sign * _ROUNDING).sum() for sign in (-1, 1))
    return order[np.lexsort((random.permutation(len(order)), place))], int(fewest), int(most)


def divide_labels(
    labels: np.ndarray, shares: Sequence[float], random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Divides images with several labels, so that every part has its share of each label.

    Iterative stratification, https://doi.org/10.1007/978-3-642-23808-6_10: images of the rarest
    label are assigned first. Each goes to the part that lacks its labels most, compared with what
    the images left would give it: the paper compares the rarest label alone, which leaves frequent
    ones up to 11 images from their share of 3,000 images with 100 labels, this 1.5.

    Args:
        labels: Array of 0 and 1 of shape `(n, K)`.
        shares: Share of each part; together 1. The largest has the labels of one image.
        random: Generator of random numbers.

    Returns:
        Positions of the images in the order in which they were assigned, and the part of each.
    """
    total = len(labels)
    has = np.concatenate([np.asarray(labels) > 0, np.ones((total, 1), bool)], axis=1)
    left = size = has.sum(axis=0)
    expected = np.reshape(shares, (-1, 1))
    # At least one in each part, of labels of two images or more; the last column is the number.
    lacks = np.maximum(expected * size, np.minimum(size // 2, 1))
    lacks[:, size == 1] = np.where(expected == max(shares), total, -total)  # to the largest part
    drawn, parts, order = random.permutation(total), np.full(total, -1), []
    while left.any():
        rarest = int(np.argmin(np.where(left > 0, left, total + 1)))
        for position in drawn[has[drawn, rarest] & (parts[drawn] < 0)]:
            own = np.flatnonzero(has[position])
            excess = (lacks[:, own] - expected * left[own]) / size[own]
            parts[position] = np.argmax(excess.sum(axis=1))
            order.append(position)
            lacks[parts[position], own] -= 1
            left = left - has[position]
    return np.array(order, "int64"), parts


def _choose_ranges(values: np.ndarray, number: int, random: np.random.Generator) -> np.ndarray:
    """Chooses images from ranges of their numbers, which hold equally many images."""
    total = len(values)
    numbers = np.reshape(values, (total, -1))

    def choose(positions: np.ndarray, count: int, axis: int) -> list[int]:
        if count < 2:
            return random.choice(positions, count).tolist()
        order = positions[np.argsort(numbers[positions, axis], kind="stable")]
        cut, following = len(order) * (count // 2) // count, (axis + 1) % numbers.shape[1]
        lower = choose(order[:cut], count // 2, following)
        return lower + choose(order[cut:], count - count // 2, following)

    chosen = choose(random.permutation(total), min(number, total - number), 0)
    if 2 * number > total:  # those that are left are chosen
        return np.setdiff1d(np.arange(total), chosen)
    return np.sort(np.array(chosen, "int64"))
