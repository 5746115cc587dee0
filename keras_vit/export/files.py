"""Sizes of exported files, and class labels."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence


def size_of(path: str | os.PathLike) -> int:
    """Bytes of a file and of the weights beside it, or of all files in a directory."""
    path = pathlib.Path(path)
    files = path.rglob("*") if path.is_dir() else [path, path.with_name(path.name + ".data")]
    files = [file for file in files if file.is_file()]
    return sum(file.stat().st_size for file in files)


def check_labels(labels: Sequence[str] | None, classes: int | None) -> list[str]:
    """The labels, one a class; the numbers of the classes where there are none.

    Raises:
        ValueError: If there are more or fewer labels than classes.
    """
    if labels is None:
        return [str(index) for index in range(classes or 0)]
    if isinstance(labels, str) or len(labels) != (classes or 0):
        received = f"the string {labels!r}" if isinstance(labels, str) else f"{len(labels)} labels"
        raise ValueError(
            f"`labels` must name each of the model's {classes or 0} classes, in their order. "
            f"Received: {received}."
        )
    return [str(label) for label in labels]
