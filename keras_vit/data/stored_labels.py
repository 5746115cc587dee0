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
    numbers, stored = _numbers(values), tuple(stored_names or ())
    names: Sequence[str] | None = None  # by which classes are found, where not by numbers
    if numbers is None:
        names = tuple(map(str, values))
        known = tuple(class_names or sorted(set(names)))
    else:
        known = tuple(class_names or stored or map(str, range(_check_count(numbers, source))))
        labels = [number if 0 <= number < len(known) else -1 for number in numbers]
        are_names = class_names is not None and known != stored
        if are_names and (stored or set(map(str, numbers)) <= set(known)):
            names = [stored[n] if 0 <= n < len(stored) else str(n) for n in numbers]
    if names is not None:
        if len(known) > _MAX_CLASSES or (class_names is None and len(known) < 2):
            raise ValueError(
                f"{source} has {len(known):,} names of classes: {listed(known)}. There must be 2 "
                f"to {_MAX_CLASSES:,}. Choose another label with `label_name`; for a part of a "
                "larger set, pass `class_names`."
            )
        check_distinct(known)
        position = {name: index for index, name in enumerate(known)}
        labels = [position.get(name, -1) for name in names]
    of = f"which is none of the {len(known):,} classes {listed(known)}"
    unknown = [index for index, label in enumerate(labels) if label < 0]
    raise_problems(source, [f"{name_of(i)} has the label {values[i]}, {of}" for i in unknown])
    return known, np.array(labels, "int64")


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
