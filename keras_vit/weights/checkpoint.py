"""A file and its layout, found from its names: arrays by the plain names of the layout."""

from __future__ import annotations

import os
import re
from functools import cache

import numpy as np

from keras_vit.errors import CheckpointError
from keras_vit.weights import official_layouts, torch_layouts
from keras_vit.weights.array_file import ArrayFile, Entry
from keras_vit.weights.formats import open_arrays
from keras_vit.weights.layout import Layout

LAYOUTS: tuple[Layout, ...] = official_layouts.LAYOUTS + torch_layouts.LAYOUTS

_SCAN = "Transformer/encoderblock/"
_MAX_BLOCKS = 1000


class Checkpoint:
    """A file whose arrays go by the plain names of its layout.

    Prefixes are gone, stacked blocks are taken apart, and numbers that TensorFlow appended too.

    Args:
        file: The file.
        layout: Its layout.
        prefix: What its names begin with.
        sources: From plain names to the file's own, and the place on the first axis if stacked.
        others: The file's own names of arrays that belong to other parts.
    """

    def __init__(
        self,
        file: ArrayFile,
        layout: Layout,
        prefix: str,
        sources: dict[str, tuple[str, int | None]],
        others: tuple[str, ...],
    ):
        self.file = file
        self.layout = layout
        self.prefix = prefix
        self.others = others
        self._sources = sources
        self._stacks: dict[str, np.ndarray] = {}
        self.entries = {name: self._entry(name) for name in sources}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.__exit__()

    def _entry(self, name: str) -> Entry:
        key, index = self._sources[name]
        entry = self.file.entries[key]
        return entry if index is None else Entry(entry.shape[1:], entry.dtype)

    def original(self, name: str) -> str:
        """The file's own name of an array."""
        if name in self._sources:
            return self._sources[name][0]
        return self.layout.original(name, self.prefix)

    def read(self, name: str) -> np.ndarray:
        """One array as float32; arrays of stacked blocks are read once."""
        key, index = self._sources[name]
        if index is None:
            return self.file.read(key)
        if key not in self._stacks:
            self._stacks[key] = self.file.read(key)
        return self._stacks[key][index]

    def find(self, path: str) -> Entry | None:
        """What the file says about a variable of ours that is one array there; None if it lacks."""
        for rule in self.layout.rules:
            keys = rule.match(path)
            if keys and keys[0] in self.entries:
                return self.entries[keys[0]]
        return None


def open_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Opens a checkpoint and finds its layout from its names.

    Args:
        path: An `.npz` or `.safetensors` file.

    Returns:
        A `Checkpoint`, to be used in a `with` statement.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file cannot be read, or its names are of no layout that is known.
    """
    file = open_arrays(path)
    try:
        layout, prefix = _find_layout(file)
        sources, others = _plain_names(file, layout, prefix)
        return Checkpoint(file, layout, prefix, sources, others)
    except BaseException:
        file.__exit__()
        raise


def _find_layout(file: ArrayFile) -> tuple[Layout, str]:
    """The layout and prefix whose names are met most often among the file's."""
    names = [_modern(key, file.kind) for key in file.entries]
    best, layout, prefix = 0, None, ""
    for candidate in LAYOUTS:
        if candidate.kind != file.kind:
            continue
        pattern = _pattern(candidate)
        for start in candidate.prefixes:
            hits = sum(
                name.startswith(start) and bool(pattern.fullmatch(name, len(start)))
                for name in names
            )
            if hits > best:
                best, layout, prefix = hits, candidate, start
    if layout is None or best < 0.5 * sum(not layout.is_other(name) for name in names):
        some = ", ".join(repr(key) for key in list(file.entries)[:4])
        raise CheckpointError(
            f"The names in {file.path} are of no layout that is known ({some}, ...). Known are "
            f"{', '.join(candidate.name for candidate in LAYOUTS)}."
        )
    return layout, prefix


@cache
def _pattern(layout: Layout) -> re.Pattern:
    keys = {key for rule in layout.rules for key in rule.keys}
    numbered = (re.sub(r"\\\{[ij][^}]*\}", r"\\d+", re.escape(key)) for key in sorted(keys))
    return re.compile("|".join(numbered))


def _modern(key: str, kind: str) -> str:
    """A name as its layout writes it today, for the purpose of recognising the layout."""
    if kind != "npz":
        return key
    key = key.replace(_SCAN, "Transformer/encoderblock_0/")
    key = re.sub(r"Transformer/pos_embedding$", "pos_embedding", key)  # big_vision before 2022
    return re.sub(r"(standardized_conv2d|group_norm|conv2d)_\d+", r"\1", key)


def _plain_names(
    file: ArrayFile, layout: Layout, prefix: str
) -> tuple[dict[str, tuple[str, int | None]], tuple[str, ...]]:
    """Plain names to the file's own, and the file's own of other parts."""
    sources: dict[str, tuple[str, int | None]] = {}
    others = []
    for key, entry in file.entries.items():
        inside = key.startswith(prefix)
        name = key[len(prefix) :] if inside else key
        if layout.is_other(name) or (not inside and layout.is_other(key)):
            others.append(key)
        elif _SCAN in name:
            blocks = entry.shape[0] if entry.shape else 0
            if blocks > _MAX_BLOCKS:
                raise CheckpointError(f"{key!r} in {file.path} stacks {blocks} blocks.")
            for index in range(blocks):
                plain = name.replace(_SCAN, f"Transformer/encoderblock_{index}/")
                _add(sources, file, plain, (key, index))
        else:
            _add(sources, file, _modern(name, file.kind), (key, None))
    return sources, tuple(others)


def _add(sources, file: ArrayFile, name: str, source: tuple[str, int | None]) -> None:
    if name in sources:
        raise CheckpointError(
            f"{file.path} holds {name!r} twice, as {sources[name][0]!r} and {source[0]!r}."
        )
    sources[name] = source
