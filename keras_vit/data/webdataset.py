"""Reads labelled images of WebDataset's tars as an `ImageSet`."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import IO

import numpy as np

from keras_vit.checks import check_choice, is_broken
from keras_vit.data.decode import MAX_PIXELS
from keras_vit.data.folder import examine_bytes, report_problems
from keras_vit.data.image_set import ImageSet
from keras_vit.data.labelled_set import item_name
from keras_vit.data.stored_labels import find_labels
from keras_vit.data.tars import Sample, find_files, load_item, make_item, read_tar
from keras_vit.errors import printable, raise_problems
from keras_vit.progress import map_threads
from keras_vit.reading import parse_json, read_lines

CHECKS = ("none", "headers", "pixels")
_LABEL_NAMES = ("cls", "class", "label")  # of members, and keys of JSON
_CAPTION = ".txt"
_CLASS_NAMES = "classnames.txt"  # as the CLIP benchmark writes it, there or in the folder above


def read_webdataset(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    class_names: Sequence[str] | None = None,
    label_name: str | None = None,
    unreadable: str = "error",
    check: str = "headers",
    max_pixels: int = MAX_PIXELS,
    labelled: bool = True,
) -> ImageSet:
    """Reads labelled images from tars of WebDataset on a local disk.

    Members that differ only after the first dot of their names are a sample: `0001.jpg` with
    `0001.cls`, `.class` or `.label`, which hold the number or the name of its class, or with
    `0001.json`, which has it under `"cls"`, `"class"` or `"label"`. Images with captions are read
    with `image_text.read_caption_shards`.

    Opening reads the headers of all members, in every worker, and the images as far as `check`
    says. Training shuffles all images as a whole, and every worker reads those of its own part.

    Args:
        files: A pattern such as `"shards/train-*.tar"`, whose files are sorted by name, or paths.
        class_names: Names of the classes in the order of the labels, such as those of the training
            images. `None` takes the lines of `classnames.txt` next to the tars or in the folder
            above; the names that occur, sorted; or numbers from 0.
        label_name: Ending of the member, or key of JSON, that holds the label; `None` takes the
            first of `cls`, `class` and `label` that a sample has.
        unreadable: As for `read_folder`; a missing or unknown label is always an error.
        check: As for `read_folder`; `"none"` reads no image before training, where an unreadable
            one is an error.
        max_pixels: As for `read_folder`.
        labelled: Whether labels are read. Without, every image is of the first of `class_names`.

    Returns:
        An `ImageSet` in the order of the files and of the images in them.

    Raises:
        FileNotFoundError: If there are no such files.
        ValueError: If a file is no tar, compressed, damaged or cut off, or there are images that
            cannot be read, members without an image, or labels that are missing or unknown. The
            message lists them.
    """
    check_choice("unreadable", unreadable, ("error", "skip"))
    check_choice("check", check, CHECKS)
    found = find_files(files)
    source = f"{os.path.dirname(found[0]) or '.'} ({len(found)} tars)"
    names = _LABEL_NAMES if label_name is None else (label_name,)
    endings = (*(f".{name.lower()}" for name in names), ".json", _CAPTION)

    def examine(image: IO[bytes], size: int) -> str | None:
        return examine_bytes(image, size, check, max_pixels)

    problems: list[str] = []
    samples: list[Sample] = []
    items: list[str] = []
    tars = map_threads(lambda path: read_tar(path, endings, examine), found, "checking tars")
    for path, (inside, others) in zip(found, tars, strict=True):
        problems += [f"{path}: {other}" for other in others if labelled]
        samples += inside
        changed = os.stat(path).st_mtime_ns
        items += [make_item(path, *sample[:3], changed) for sample in inside]
    if labelled:
        values = []
        for item, sample in zip(items, samples, strict=True):
            try:
                values.append(_find_label(sample, names))
            except ValueError as error:
                problems.append(f"{item_name(item)} {error}")
        raise_problems(source, problems)
        known, labels = find_labels(
            *(values, class_names, _stored(found[0]), source),
            name_of=lambda index: item_name(items[index]),
        )
    else:
        known, labels = tuple(class_names or ("image",)), np.zeros(len(items), "int64")
    skipped = tuple(
        f"{item_name(item)} {sample.problem}"
        for item, sample in zip(items, samples, strict=True)
        if sample.problem is not None
    )
    report_problems(skipped, unreadable, source, len(items))
    if not items:
        raise ValueError(f"There are no images in {printable(source)}.")
    kept = np.array([sample.problem is None for sample in samples])
    rows = (np.array(items, object)[kept], labels[kept])
    load = functools.partial(load_item, max_pixels=max_pixels)
    return ImageSet(source, known, rows, load, max_pixels, skipped=skipped)


def _find_label(sample: Sample, names: Sequence[str]) -> int | str:
    """The label in the members of a sample; a `ValueError` says why there is none."""
    for name in names:
        try:
            text = sample.texts.get(f".{name.lower()}", b"").decode().strip()
        except UnicodeDecodeError:
            raise ValueError(f"has a label in .{name} that is no text in UTF-8") from None
        if text:
            return text
    try:
        fields = parse_json(sample.texts.get(".json", b"null"))
    except ValueError as error:
        raise ValueError(f"has a .json that cannot be read: {error}") from None
    found = [fields[name] for name in names if name in fields] if isinstance(fields, dict) else []
    if found and is_broken(str(found[0])):
        raise ValueError("has a label in .json with half of a surrogate pair")
    if found and isinstance(found[0], int | str) and not isinstance(found[0], bool):
        return found[0]
    if _CAPTION in sample.texts:
        raise ValueError(
            "has no label but a caption: `image_text.read_caption_shards` reads such images"
        )
    others = ", ".join(sorted(sample.texts)) or "none"
    raise ValueError(
        f"has no label: no .cls, .class or .label, and no such key in .json (found: {others})"
    )


def _stored(path: str) -> list[str] | None:
    """Names of the classes, where a file next to the tars or in the folder above lists them."""
    folder = pathlib.Path(path).absolute().parent
    for place in (folder, folder.parent):
        if (place / _CLASS_NAMES).is_file():
            return read_lines(place / _CLASS_NAMES)
    return None
