"""Lists of the images of a run, as `config.json` has them: they show whether images have changed.

Held-out images are drawn from a list. With one image more or less, a share of a folder is another
draw, and most of it was trained on.
"""

from __future__ import annotations

import hashlib
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.sources import TrainingData

IMAGE_LISTS = "image_lists"  # in config.json


def describe_lists(names: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Describes every part of the images, such as `"training"`, by number and digest of names."""
    return {
        part: {"images": len(listed), "sha256": _digest(listed)} for part, listed in names.items()
    }


def find_changes(
    before: Mapping[str, dict[str, Any]], now: Mapping[str, dict[str, Any]]
) -> list[str]:
    """Lists the parts that differ, each as a clause."""
    changes = []
    for part in sorted(before.keys() | now.keys()):
        old, new = (lists.get(part, {"images": 0}) for lists in (before, now))
        count, was = new["images"], old["images"]
        if count != was:
            changes.append(f"there were {was:,} {part} images, there are {count:,}")
        elif old != new:
            changes.append(f"some of the {count:,} {part} images are others")
    return changes


def check_unchanged(
    folder: pathlib.Path, before: Mapping[str, dict[str, Any]] | None, data: TrainingData
) -> None:
    """Checks that the images held out today are those that a run was not trained on.

    Args:
        folder: Folder of the run.
        before: Its lists; `None` of an older version, and a warning says what is not checked.
        data: The images of today, some of them held out.

    Raises:
        ValueError: If they have changed.
    """
    assert data.held_out is not None
    part, images = data.held_out
    if before is None:
        warn_of_no_lists(folder, f"the {part} images are still the same")
        return
    if part not in before:  # test images that were added: none of them from those of training
        part, images = "training", data.training
    changes = find_changes({part: before[part]}, describe_lists({part: images.file_names()}))
    if changes:
        raise ValueError(
            f"The images of {folder} have changed: {changes[0]}. So the run may have been trained "
            f"on images that are held out now. Restore those of {images.name}, or pass images that "
            "it was not trained on: --data on the command line, `images` in Python."
        )


def warn_of_no_lists(folder: pathlib.Path, unchecked: str) -> None:
    """Warns that the run in a folder is of an older version, and what is not checked therefore."""
    warnings.warn(
        f"The run in {folder} has no lists of its images, as older versions wrote none. Whether "
        f"{unchecked} is not checked.",
        stacklevel=5,
    )


def _digest(names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:  # Linux allows names that are no UTF-8
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()
