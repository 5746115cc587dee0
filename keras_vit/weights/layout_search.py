"""Recognition of a file's layout from the names of its arrays."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from keras_vit.errors import CheckpointError
from keras_vit.families.rules import Layout, names_pattern
from keras_vit.families.table import FAMILIES
from keras_vit.weights.array_file import ArrayFile, Entry
from keras_vit.weights.sidecar import CONFIG, model_type_of

LAYOUTS = tuple(layout for family in FAMILIES for layout in family.layouts)
_FEATURES = tuple(feature for family in FAMILIES for feature in family.features)
# From the plain name of an array to its name in the file, and its index in a stack of blocks.
Sources = dict[str, tuple[str, int | None]]

# Names in memory and in files, and what may stand before them.
_IN_MEMORY = tuple(dict.fromkeys(names for layout in LAYOUTS for names in layout.in_memory))
_BEFORE = dict.fromkeys(
    prefix for layout in LAYOUTS if layout.in_memory for prefix in layout.prefixes
)
# Every model has one of these kernels.
_FIRST = ("patch_encoder/projection/kernel", "root/conv/kernel", "stem_root/conv/kernel")
_SCAN = "Transformer/encoderblock/"  # all blocks stacked in one array
_MAX_BLOCKS = 1000


class FileLayout(NamedTuple):
    """How the arrays of a file are named.

    Args:
        layout: The layout.
        prefix: Prefix of the layout that its names have.
        wrapper: What stands before all names of the model, such as `"module."`.
    """

    layout: Layout
    prefix: str
    wrapper: str = ""


def find_file_layout(file: ArrayFile, wrapper: str | None = None) -> FileLayout:
    """Finds the layout and the prefixes that match most names of a file.

    Args:
        file: The file.
        wrapper: What the caller says that stands before the names of the model; `None` looks for
            it where the names match no layout as they are.

    Raises:
        CheckpointError: If no layout matches half of the names, or there are several models.
    """
    keys = list(file.entries)
    if wrapper and not wrapper.endswith((".", "/")):
        wrapper += "/" if file.kind == "npz" else "."
    found: list[FileLayout] = []
    for each in _find_wrappers(keys, file.kind) if wrapper is None else [wrapper]:
        # What begins with a shorter one is a part of what that holds.
        if not each.startswith(tuple(match.wrapper for match in found)):
            found += _find_layout(keys, file.kind, each)
    if not found and wrapper is None:  # without a patch kernel: loading lists all that is missing
        found += _find_layout(keys, file.kind, "")
    asked = _other_head(found[0], keys) if len(found) == 1 and wrapper is None else []
    if len(found) == 1 and not asked:
        return found[0]
    if len(found) > 1:
        ways = " or ".join(repr(match.wrapper) for match in found)
        raise CheckpointError(
            f"{file.path} holds several models, whose names begin with {ways}. Pass one of them as "
            "`prefix` to from_pretrained, create_model or load_weights (--prefix)."
        )
    names = [_current_name(key, file.kind) for key in keys]
    some = ", ".join(repr(key) for key in keys[:4])
    asked = asked or foreign_features(names)
    model_type = model_type_of(file.path)
    if model_type is not None:
        asked.insert(0, f"{CONFIG} names {model_type!r}")
    because = f" It has {', '.join(asked)}." if asked else ""
    after = f" after the prefix {wrapper!r}" if wrapper else ""
    raise CheckpointError(
        f"The names in {file.path}{after} match no known layout ({some}, ...).{because} Known "
        f"layouts: {', '.join(candidate.name for candidate in LAYOUTS)}."
    )


def _other_head(found: FileLayout, keys: list[str]) -> list[str]:
    """Names what is beside the model, where the project itself has a prefix before its names."""
    if not found.wrapper or found.wrapper not in found.layout.prefixes:
        return []
    return foreign_features([key for key in keys if not key.startswith(found.wrapper)])


def _find_layout(keys: list[str], kind: str, wrapper: str) -> list[FileLayout]:
    """The layout that matches most names after a wrapper, if it matches at least half of them."""
    start = len(wrapper)
    names = [_current_name(key[start:], kind) for key in keys if key.startswith(wrapper)]
    matches = (
        (_count_hits(names, layout, prefix), FileLayout(layout, prefix, wrapper))
        for layout in LAYOUTS
        if layout.kind == kind and (not layout.needs or _any_has(names, layout.needs))
        for prefix in layout.prefixes
    )
    (hits, _), found = max(matches, key=lambda match: match[0])  # the first of equals
    needed = 0.5 * sum(not found.layout.is_other(name) for name in names)
    return [found] if hits and hits >= needed else []


def _find_wrappers(keys: list[str], kind: str) -> list[str]:
    """What stands before the name of the first convolution of some layout, the shortest first."""
    endings = {
        f"{prefix}{first}"
        for layout in LAYOUTS
        if layout.kind == kind
        for rule in layout.rules
        if rule.path in _FIRST
        for first in rule.keys
        for prefix in layout.prefixes
    }
    found = {key.removesuffix(end) for end in endings for key in keys if key.endswith(end)}
    wrappers = [each for each in found if not each or each.endswith((".", "/"))]
    return sorted(wrappers, key=lambda each: (len(each), each))


def _count_hits(names: list[str], layout: Layout, start: str) -> tuple[int, int]:
    """Counts the names that belong to a layout, and those of them that have the prefix."""
    pattern = names_pattern(layout)
    hits = prefixed = 0
    for name in names:
        inside = name.startswith(start)
        # transformers 5 writes the encoder of ViTMSN without the prefix of its other arrays.
        if not inside and layout.kind == "npz" and not layout.is_unprefixed(name):
            continue
        begin = len(start) if inside and not layout.is_unprefixed(name) else 0
        if pattern.fullmatch(name, begin):
            hits += 1
            prefixed += inside
    return hits, prefixed


def foreign_features(names: Collection[str]) -> list[str]:
    """Names the features of a file that no model of this package has.

    Args:
        names: Names of the arrays of the image model that its layout does not know.

    Returns:
        What the features are called.
    """
    return [what for pattern, what in _FEATURES if _any_has(names, pattern)]


def _any_has(names: Collection[str], pattern: str) -> bool:
    return any(re.search(pattern, name) for name in names)


def published_name(key: str) -> str:
    """A name of transformers 5 in memory, as it stands in published files."""
    return _renamed(key, _IN_MEMORY)


def in_memory_name(key: str, layout: Layout) -> str:
    """The inverse of `published_name`, for a name of a layout."""
    return _renamed(key, tuple((theirs, ours) for ours, theirs in layout.in_memory))


def _renamed(key: str, names: tuple[tuple[str, str], ...]) -> str:
    """A name with its beginning replaced by the longest that fits, with `{i}` for a number."""
    for pattern, name in _patterns(names):
        if found := pattern.match(key):
            return found.expand(name) + key[found.end() :]
    return key


@cache
def _patterns(names: tuple[tuple[str, str], ...]) -> list[tuple[re.Pattern[str], str]]:
    before = "|".join(map(re.escape, _BEFORE))
    number = re.escape("{i}")
    return [
        (
            re.compile(rf"({before}){re.escape(old).replace(number, '([0-9]+)')}(?=[.]|$)"),
            r"\1" + new.replace("{i}", r"\2"),
        )
        for old, new in sorted(names, key=lambda pair: -len(pair[0]))
    ]


def _current_name(key: str, kind: str) -> str:
    """A name as the project writes it today."""
    if kind != "npz":
        return published_name(key)
    key = key.replace(_SCAN, "Transformer/encoderblock_0/")
    key = re.sub(r"Transformer/pos_embedding$", "pos_embedding", key)  # big_vision before 2022
    return re.sub(r"(standardized_conv2d|group_norm|conv2d)_\d+", r"\1", key)


class PlainArrays:
    """The arrays of a file by their plain names.

    Args:
        file: The file.
        sources: Names in the file; of an array that stacks all blocks, with an index in it.

    Attributes:
        entries: Shape and type by plain name.
    """

    def __init__(self, file: ArrayFile, sources: Sources):
        self.file = file
        self._sources = sources
        self._stacks: dict[str, np.ndarray] = {}
        self.entries = {name: self._entry(name) for name in sources}

    def _entry(self, name: str) -> Entry:
        key, index = self._sources[name]
        entry = self.file.entries[key]
        return entry if index is None else Entry(entry.shape[1:], entry.dtype)

    def read(self, name: str) -> np.ndarray:
        """Reads one array as float32; an array of stacked blocks is read once."""
        key, index = self._sources[name]
        if index is None:
            return self.file.read(key)
        if key not in self._stacks:
            self._stacks[key] = self.file.read(key)
        return self._stacks[key][index]


def split_blocks(
    file: ArrayFile, key: str, name: str, scan: str
) -> Iterator[tuple[str, int | None]]:
    """Plain names of an array: that of each block with its index, if it stacks all blocks.

    Args:
        file: The file.
        key: Name in the file.
        name: Plain name.
        scan: What stands in the names of stacks, such as `"Transformer/encoderblock/"`.

    Raises:
        CheckpointError: If it stacks too many blocks.
    """
    if scan not in name:
        yield name, None
        return
    blocks = next(iter(file.entries[key].shape), 0)
    if blocks > _MAX_BLOCKS:
        raise CheckpointError(f"{key!r} in {file.path} stacks {blocks} blocks.")
    for index in range(blocks):
        yield name.replace(scan, f"{scan[:-1]}_{index}/"), index


def plain_names(file: ArrayFile, found: FileLayout) -> tuple[Sources, tuple[str, ...]]:
    """Maps the plain names of a layout to the names in a file.

    Returns:
        The sources by plain name, and the names in the file that are outside the image model.

    Raises:
        CheckpointError: If an array is there twice, or stacks too many blocks.
    """
    layout, prefix, wrapper = found
    sources: Sources = {}
    others = []
    for key, entry in file.entries.items():
        unwrapped = key.removeprefix(wrapper)
        inside = unwrapped.startswith(prefix)
        name = unwrapped[len(prefix) :] if inside else unwrapped
        other = layout.is_other(name) or (not inside and layout.is_other(unwrapped))
        is_empty = 0 in entry.shape  # as transformers writes no registers
        if other or is_empty or not key.startswith(wrapper):
            others.append(key)
            continue
        plain = name if _SCAN in name else _current_name(name, file.kind)
        for each, index in split_blocks(file, key, plain, _SCAN):
            if each in sources:
                raise CheckpointError(
                    f"{file.path} holds {each!r} twice, as {sources[each][0]!r} and {key!r}."
                )
            sources[each] = (key, index)
    return sources, tuple(others)
