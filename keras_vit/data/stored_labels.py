"""Classes of the labels that others have stored: numbers or names, one for each image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.data.folder import check_distinct
from keras_vit.errors import printable

_MAX_CLASSES = 100_000  # ImageNet-21k has 21,843
_MAX_LISTED = 20


class StoredLabels(NamedTuple):
    """Names of the classes, the class of every image, and the labels that are none of them.

    Args:
        class_names: The names.
        labels: int64 array of shape `(images,)`, -1 where a label is unknown.
        unknown: Positions of unknown labels, and what is wrong with them.
    """

    class_names: tuple[str, ...]
    labels: np.ndarray
    unknown: dict[int, str]


def find_labels(
    values: Sequence[int | str],
    class_names: Sequence[str] | None,
    stored_names: Sequence[str] | None,
    source: str,
) -> StoredLabels:
    """Finds the class of every image.

    Args:
        values: A number or a name for every image; texts of digits are numbers if all are.
        class_names: Names of the classes in the order of the labels that are wanted, such as those
            of the training images; `None` takes those that are stored, or the sorted names that
            occur, or numbers from 0.
        stored_names: Names of the numbers, if the data set has some.
        source: What the labels are of, for error messages.

    Raises:
        ValueError: If there are not two classes, or too many; or a name stands for several.
    """
    numbers = _numbers(values)
    if numbers is None:
        names: Sequence[str] = tuple(map(str, values))
        known = tuple(class_names or sorted(set(names)))
    else:
        stored = tuple(stored_names or ())
        known = tuple(class_names or stored or map(str, range(_check_count(numbers, source))))
        are_names = class_names is not None and known != stored
        if not are_names or not (stored or set(map(str, numbers)) <= set(known)):
            return _result(known, [n if 0 <= n < len(known) else None for n in numbers], values)
        names = [stored[n] if 0 <= n < len(stored) else str(n) for n in numbers]
    if len(known) > _MAX_CLASSES or (class_names is None and len(known) < 2):
        listed = ", ".join(map(printable, known[:_MAX_LISTED]))
        raise ValueError(
            f"{source} has {len(known):,} names of classes: {listed}. There must be 2 to "
            f"{_MAX_CLASSES:,}. Choose another label with `label_name`; for a part of a larger "
            "set, pass `class_names`."
        )
    check_distinct(known)
    position = {name: index for index, name in enumerate(known)}
    return _result(known, [position.get(name) for name in names], values)


def _numbers(values: Sequence[int | str]) -> list[int] | None:
    """The labels as numbers, or `None` if some are names."""
    try:
        return [int(value) for value in values]
    except ValueError:
        return None


def _check_count(numbers: list[int], source: str) -> int:
    largest = max(numbers, default=0)
    if not 0 < largest < _MAX_CLASSES:
        raise ValueError(
            f"Labels of {source} must be numbers from 0 to the number of classes - 1, of at least "
            f"two classes and at most {_MAX_CLASSES:,}. Received: {min(numbers, default=0)} to "
            f"{largest}. Pass `class_names`, or choose another label with `label_name`."
        )
    return largest + 1


def _result(
    known: tuple[str, ...], labels: list[int | None], values: Sequence[int | str]
) -> StoredLabels:
    of = ", ".join(map(printable, known[:_MAX_LISTED])) + ", ..." * (len(known) > _MAX_LISTED)
    unknown = {
        index: f"has the label {values[index]}, which is none of the {len(known):,} classes {of}"
        for index, label in enumerate(labels)
        if label is None
    }
    found = np.array([-1 if label is None else label for label in labels], "int64")
    return StoredLabels(known, found, unknown)


def raise_problems(source: str, problems: Sequence[str]) -> None:
    """Raises a `ValueError` that lists problems of a source, if there are any."""
    if not problems:
        return
    rest = len(problems) - _MAX_LISTED
    lines = [printable(each) for each in problems[:_MAX_LISTED]]
    lines += [f"and {rest:,} more"] * (rest > 0)
    raise ValueError(
        f"{printable(source)} has {len(problems):,} problems:\n  " + "\n  ".join(lines)
    )
