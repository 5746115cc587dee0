"""Images and models as they are named on the command line."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.cli.run_folder import find_model, read_config
from keras_vit.pretrained import from_pretrained

_TFDS = "tfds:"


def open_images(
    data: str,
    data_dir: str | None = None,
    class_names: Sequence[str] | None = None,
    unreadable: str = "error",
    split: str = "train",
    download: bool = False,
) -> Any:
    """The `ImageSet` of a folder, or of `"tfds:NAME"` or `"tfds:NAME@SPLIT"`.

    Args:
        data: As above.
        data_dir: Where TFDS keeps its data sets.
        class_names: Names of the classes, in the order of the labels.
        unreadable: As for `read_folder`.
        split: Of TFDS where none is named.
        download: Whether TFDS may download what is not there.

    Returns:
        An `ImageSet`.
    """
    if not data.startswith(_TFDS):
        from keras_vit.data.folder import read_folder

        return read_folder(data, class_names, unreadable)
    from keras_vit.data.tfds import read_tfds

    name, _, named = data.removeprefix(_TFDS).partition("@")
    return read_tfds(name, named or split, data_dir, download)


def open_model(name: str) -> keras.Model:
    """The model of a run's folder, of a `.keras` file, or what `from_pretrained` takes."""
    found = find_model(name) if pathlib.Path(name).is_dir() else None
    if found is not None:
        return keras.saving.load_model(found)
    return keras.saving.load_model(name) if name.endswith(".keras") else from_pretrained(name)


def class_names_of(name: str, labels: str | None, classes: int) -> list[str]:
    """Names of a model's classes: of a file with one a line, of its run, or numbers.

    Args:
        name: As for `open_model`.
        labels: A text file, or `None`.
        classes: Outputs of the model.

    Returns:
        As many names.

    Raises:
        ValueError: If there are other classes than outputs.
    """
    path = pathlib.Path(name)
    if labels is not None:
        names = pathlib.Path(labels).read_text(encoding="utf-8").splitlines()
    else:
        config = read_config(path if path.is_dir() else path.parent)
        names = config.get("class_names") or [str(number) for number in range(classes)]
    if len(names) != classes:
        raise ValueError(
            f"The model has {classes} classes, and {labels or path} names {len(names)}. Pass the "
            "names of the model's classes with --labels, one a line."
        )
    return list(names)
