"""Looks at a folder of images before training: counts, sizes, and what would go wrong."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import os
import pathlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.checks import short_repr
from keras_vit.data import folder as folders
from keras_vit.data.duplicates import find_near_duplicates
from keras_vit.data.headers import read_exif_orientation, read_size
from keras_vit.data.image_files import list_files
from keras_vit.data.image_set import ImageSet, file_set
from keras_vit.data.pixel_range import find_black, find_small_range
from keras_vit.errors import listed
from keras_vit.progress import align_columns
from keras_vit.reading import list_left_over

UNREADABLE, SINGLE = "unreadable files", "classes of one image"  # kinds of findings
_SKEW = 10  # images of the largest class over those of the smallest
_MIXED = 4  # longest side of an image over that of another
_MOST_COMPARED = 30_000  # images; the time of a comparison grows with the square
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to look at before training.

    Args:
        kind: What it is, in a few words.
        number: How many files, pairs or classes.
        advice: What it does to training, and what to do.
        examples: Files, pairs or classes, all of them.
    """

    kind: str
    number: int
    advice: str
    examples: tuple[str, ...]

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a data set.

    Args:
        name: `"train"`, `"validation"` or `"test"`.
        folder: The folder, or the share of one that is held out.
        counts: Readable images of every class.
        formats: Images of every file format.
        sizes: Smallest, median and largest image by area, each `(height, width)`.
    """

    name: str
    folder: str
    counts: dict[str, int]
    formats: dict[str, int]
    sizes: tuple[tuple[int, int], ...]

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True)
class FolderReport:
    """Contents and problems of a folder of images. `print(report)` shows them as tables.

    Args:
        parts: The parts of the data set.
        findings: What to look at before training; empty if nothing was found.
    """

    parts: tuple[Part, ...]
    findings: tuple[Finding, ...]

    __repr__ = short_repr

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain values for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]]
        rows = [("part", "images", "classes", "smallest", "median", "largest", "formats", "folder")]
        rows += [_summary(part) for part in self.parts]
        lines = [align_columns(rows)]
        names = list(dict.fromkeys(name for part in self.parts for name in part.counts))
        rows = [("class", *(part.name for part in self.parts))]
        rows += [
            (name, *(f"{part.counts.get(name, 0):,}" for part in self.parts)) for name in names
        ]
        lines += ["", align_columns(rows[: 1 + 4 * _SHOWN])]
        lines += [f"and {len(names) - 4 * _SHOWN} more classes"] * (len(names) > 4 * _SHOWN)
        if not self.findings:
            return "\n".join([*lines, "", "No problems found."])
        rows = [("finding", "count", "")]
        rows += [(each.kind, f"{each.number:,}", each.advice) for each in self.findings]
        lines += ["", align_columns(rows)]
        for finding in self.findings:
            examples = listed(finding.examples, _SHOWN, "\n  ")
            lines += ["", f"{finding.kind}:", *[f"  {examples}"] * bool(examples)]
        return "\n".join(lines)


def check_folder(
    folder: str | os.PathLike[str],
    validation: str | os.PathLike[str] | float | None = None,
    test: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    decode: bool = True,
) -> FolderReport:
    """Looks at images before training: counts, sizes, split, and what would go wrong.

    Reports unreadable files, near-duplicates across the split, images that EXIF data rotates,
    classes that only some parts have, classes of very unequal size or one image, mixed image sizes,
    and, of 32 images, nearly black ones and fewer bits than the file has room for. Lists files and
    folders that readers skip, because they are hidden or another program left them.

    Args:
        folder: Folder with one folder per class, or with `train/` and `val/` or `test/`.
        validation: Another folder, or the share of the images to hold out; `None` takes `val/`.
        test: Another folder; `None` takes `test/`.
        seed: Seed of the choice of held-out images, as for `ImageSet.split`.
        decode: Whether to decode all images, which finds damage and near-duplicates; otherwise
            only headers are read, and 32 images.

    Returns:
        A `FolderReport`.

    Raises:
        FileNotFoundError: If a folder does not exist.
        ValueError: If a folder holds no folders.

    Example:

    >>> print(keras_vit.data.check_folder("photos"))  # doctest: +SKIP
    """
    part_paths = folders.find_parts(folder) or {"train": pathlib.Path(folder)}
    share = validation if isinstance(validation, float) else None
    if validation is not None and share is None:
        part_paths["validation"] = pathlib.Path(str(validation))
    if test is not None:
        part_paths["test"] = pathlib.Path(test)
    found = {name: _look(path, decode) for name, path in part_paths.items()}
    sets = {name: images for name, (images, _) in found.items() if images is not None}
    if share is not None and "train" in sets:
        sets["train"], sets["validation"] = sets["train"].split(share, seed)
    order = [name for name in ("train", "validation", "test") if name in sets]
    looked = {path: each for _, files in found.values() for path, each in files.items()}
    facts = {path: each for path, each in looked.items() if not isinstance(each, str)}
    parts = tuple(_describe(name, sets[name], facts) for name in order)
    left = [path for place in part_paths.values() for path in list_left_over(place)]
    findings = [
        *_find(
            UNREADABLE,
            "repair or remove them, or leave them out with --unreadable skip",
            [f"{path} {each}" for path, each in looked.items() if isinstance(each, str)],
        ),
        *_find(
            "rotated by EXIF",
            "training turns them as it says; Preprocessing(exif_orientation=False) does not",
            [path for path, fact in facts.items() if fact.is_rotated],
        ),
        *_class_findings(parts),
        *_size_findings(facts),
        *_range_findings(list(facts)),
        *_find("hidden files and files of other programs", "they are left out", left),
    ]
    if decode:
        findings += _duplicate_findings({name: sets[name] for name in order})
    return FolderReport(parts, tuple(findings))


class _ImageFacts(NamedTuple):
    height: int
    width: int
    format: str
    is_rotated: bool


def _look(root: pathlib.Path, decode: bool) -> tuple[ImageSet | None, dict[str, _ImageFacts | str]]:
    """The readable images in a folder of classes, and facts of all files, see `_read_facts`."""
    names = folders.find_class_folders(root)
    files = {path: i for i, n in enumerate(names) for path in list_files(root / n, folders.ENDINGS)}
    check = "pixels" if decode else "headers"
    read = folders.map_files(lambda path: _read_facts(path, check), list(files))
    looked = dict(zip(files, read, strict=True))
    whole = [path for path, each in looked.items() if not isinstance(each, str)]
    labels = np.array([files[path] for path in whole], "int64")
    return file_set(root, names, whole, labels) if whole else None, looked


def _read_facts(path: str, check: str) -> _ImageFacts | str:
    """Reads the header of a file; a text says why the file cannot be read."""
    problem = folders.examine(path, check)
    if problem is not None:
        return problem
    height, width, name = read_size(path)
    return _ImageFacts(height, width, name, read_exif_orientation(path, name) > 1)


def _describe(name: str, images: ImageSet, facts: dict[str, _ImageFacts]) -> Part:
    assert images.class_counts is not None  # as of every folder
    counts = dict(zip(images.class_names, images.class_counts.tolist(), strict=True))
    image_facts = [facts[path] for path in images.file_names()]
    sizes_of_all = ((each.height, each.width) for each in image_facts)
    ordered = sorted(sizes_of_all, key=lambda size: (math.prod(size), size))
    sizes = (ordered[0], ordered[len(ordered) // 2], ordered[-1])
    formats = dict(collections.Counter(each.format for each in image_facts).most_common())
    return Part(name, images.name, counts, formats, sizes)


def _find(kind: str, advice: str, examples: Sequence[object]) -> Iterator[Finding]:
    """A finding, if there are examples of it."""
    if examples:
        yield Finding(kind, len(examples), advice, tuple(map(str, examples)))


def _class_findings(parts: tuple[Part, ...]) -> Iterator[Finding]:
    training = parts[0].counts if parts else {}
    for part in parts[1:]:
        unknown = [name for name in part.counts if name not in training]
        missing = [name for name in training if not part.counts.get(name)]
        advice = "training would refuse them: rename or remove the folders"
        yield from _find(f"classes of {part.name} without training", advice, unknown)
        advice = "their accuracy stays unknown"
        yield from _find(f"classes without images of {part.name}", advice, missing)
    advice = "training would refuse them: add images or remove the folders"
    empty = [name for name, count in training.items() if not count]
    yield from _find("classes without images", advice, empty)
    advice = "one image does not teach a class, and none is left to test it: add images"
    yield from _find(SINGLE, advice, [name for name, count in training.items() if count == 1])
    filled = sorted((count, name) for name, count in training.items() if count)
    if filled and filled[-1][0] >= _SKEW * filled[0][0]:
        advice = f"the largest class has {filled[-1][0] / filled[0][0]:.0f} times the images of it"
        rare = [f"{name}: {count}" for count, name in filled if count * _SKEW <= filled[-1][0]]
        yield from _find("rare classes", advice, rare)


def _size_findings(facts: dict[str, _ImageFacts]) -> Iterator[Finding]:
    if not facts:
        return
    sides = {path: max(fact.height, fact.width) for path, fact in facts.items()}
    typical = statistics.median(sides.values())
    odd = [
        f"{path}: {facts[path].width} x {facts[path].height}"
        for path, side in sides.items()
        if side * _MIXED <= typical or side >= _MIXED * typical
    ]
    advice = f"{_MIXED} times larger or smaller than the median of {typical:.0f} pixels"
    yield from _find("mixed sizes", advice, odd)


def _range_findings(paths: list[str]) -> Iterator[Finding]:
    """Findings about the values of some images."""
    small = find_small_range(paths)
    if small is not None:
        yield from _find(f"{small.bits} bits in 16-bit files", small.advice, small.paths)
    advice = "no value is above 31 of 255: look at them, or multiply their values"
    yield from _find("nearly black images", advice, find_black(paths))


def _duplicate_findings(sets: dict[str, ImageSet]) -> Iterator[Finding]:
    if sum(images.num_images for images in sets.values()) > _MOST_COMPARED:
        advice = f"more than {_MOST_COMPARED:,} images: use `find_near_duplicates` on a part"
        yield Finding("near-duplicates not looked for", 1, advice, ())
        return
    files = {name: images.file_names() for name, images in sets.items()}
    for a, b in list(itertools.combinations(sets, 2)) or [(name, name) for name in sets]:
        near = find_near_duplicates(sets[a], sets[b])
        shown = [
            f"{files[a][one.first]} and {files[b][one.second]} ({one.similarity:.3f})"
            for one in near
            if a != b or one.first < one.second
        ]
        advice = "the accuracy on them says nothing about new images: remove one of each pair"
        if a != b:
            yield from _find(f"near-duplicates in {a} and {b}", advice, shown)
        else:
            yield from _find("near-duplicates", f"a split divides them: {advice}", shown)


def _summary(part: Part) -> tuple[str, ...]:
    sizes = [f"{width} x {height}" for height, width in part.sizes]
    formats = ", ".join(f"{count:,} {name}" for name, count in part.formats.items())
    counts = part.counts.values()
    numbers = (f"{sum(counts):,}", f"{sum(map(bool, counts)):,}")
    return (part.name, *numbers, *sizes, formats, part.folder)
