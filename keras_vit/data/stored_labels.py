"""Classes of the labels that others have stored: numbers or names, one for each image."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from keras_vit.data.folder import check_distinct
from keras_vit.errors import listed, raise_problems

_MAX_CLASSES = 100_000  # ImageNet-21k has 21,843


def find_labels(
    values: Sequence[int | str],
    class_names: Sequence[str] | None,
    stored_names: Sequence[str] | None,
    source: str,
    name_of: Callable[[int], str],
) -> tuple[tuple[str, ...], np.ndarray]:
    """Finds the class of every image.

    Args:
        values: A number or a name for every image; texts of digits are numbers if all are.
        class_names: Names of the classes in the order of the labels that are wanted, such as those
            of the training images; `None` takes those that are stored, or the sorted names that
            occur, or numbers from 0.
        stored_names: Names of the numbers, if the data set has some.
        source: What the labels are of, for error messages.
        name_of: Names the image at a position, for error messages.

    Returns:
        Names of the classes, and int64 labels of shape `(images,)`.

    Raises:
        ValueError: If there are not two classes, or too many; a name stands for several; or a label
            is none of the classes.
    """
    known, labels = _number_labels(values, class_names, stored_names, source)
    of = f"which is none of the {len(known):,} classes {listed(known)}"
    unknown = [index for index, label in enumerate(labels) if label < 0]
    raise_problems(source, [f"{name_of(i)} has the label {values[i]}, {of}" for i in unknown])
    return known, np.array(labels, "int64")


def _number_labels(
    values: Sequence[int | str],
    class_names: Sequence[str] | None,
    stored_names: Sequence[str] | None,
    source: str,
) -> tuple[tuple[str, ...], list[int]]:
    """Names of the classes, and the class of every image, -1 where the label is unknown."""
    numbers = _numbers(values)
    if numbers is None:
        names: Sequence[str] = tuple(map(str, values))
        known = tuple(class_names or sorted(set(names)))
    else:
        stored = tuple(stored_names or ())
        known = tuple(class_names or stored or map(str, range(_check_count(numbers, source))))
        are_names = class_names is not None and known != stored
        if not are_names or not (stored or set(map(str, numbers)) <= set(known)):
            return known, [n if 0 <= n < len(known) else -1 for n in numbers]
        names = [stored[n] if 0 <= n < len(stored) else str(n) for n in numbers]
    if len(known) > _MAX_CLASSES or (class_names is None and len(known) < 2):
        raise ValueError(
            f"{source} has {len(known):,} names of classes: {listed(known)}. There must be 2 to "
            f"{_MAX_CLASSES:,}. Choose another label with `label_name`; for a part of a larger "
            "set, pass `class_names`."
        )
    check_distinct(known)
    position = {name: index for index, name in enumerate(known)}
    return known, [position.get(name, -1) for name in names]


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
