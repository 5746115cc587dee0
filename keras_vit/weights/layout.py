"""What a layout of names is: rules that serve both directions, loading and writing back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from keras_vit.weights.forms import SAME, Form


@dataclasses.dataclass(frozen=True)
class Rule:
    """Where one of our variables is in a file.

    Args:
        path: Path of our variable, with `{i}` and `{j}` for numbers.
        keys: Names of the file's arrays that make it up, with the same letters. Numbers may be
            written `{i+1}`, `{i-1}` or with two digits, `{j:02}`.
        form: How the file holds the numbers.
        rows: (first, last, all) where our variable is only a share of the file's leading axis.
        when: (field, value) of the model's configuration that this rule needs.
    """

    path: str
    keys: tuple[str, ...]
    form: Form = SAME
    rows: tuple[int, int, int] = (0, 1, 1)
    when: tuple[str, Any] | None = None

    def match(self, path: str) -> tuple[str, ...] | None:
        """The file's names for a variable of ours, or None where the rule is about another."""
        found = _path_pattern(self.path).fullmatch(path)
        if not found:
            return None
        numbers = {letter: int(number) for letter, number in found.groupdict().items()}
        return tuple(_fill(key, numbers) for key in self.keys)

    def to_ours(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Our array from the file's."""
        first, last, whole = self.rows
        if whole > 1:
            share = arrays[0].shape[0] // whole
            arrays = [arrays[0][first * share : last * share]]
        return self.form.to_ours(arrays)

    def to_file(self, array: np.ndarray, heads: int) -> list[np.ndarray]:
        """The file's arrays, or our share of them, from ours."""
        return self.form.to_file(array, len(self.keys), heads)

    def file_shapes(self, shape: tuple[int, ...], heads: int) -> list[tuple[int, ...]]:
        """Shapes of the file's arrays for a variable of ours of shape `shape`."""
        # A view of one zero costs no memory, whatever its shape.
        arrays = self.to_file(np.broadcast_to(np.float32(0), shape), heads)
        first, last, whole = self.rows
        if whole == 1:
            return [a.shape for a in arrays]
        return [(a.shape[0] * whole // (last - first), *a.shape[1:]) for a in arrays]


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """One way of naming the arrays of a checkpoint.

    Args:
        name: Its name.
        rules: One for every variable of ours that such a file can hold.
        prefixes: What names may begin with; the first is written.
        kind: `"npz"` or `"safetensors"`, what is written.
        options: Fields of `ViTConfig` that models of this source have.
        prefix_places: Whether the position table has rows for class tokens: `"always"`, `"never"`,
            or `"either"`.
        resize: How the source resizes positions, a method of `resize_positions`.
        resize_flexible: How it does in a model of flexible patches, if otherwise.
        resize_patches: How it resizes patches, a method of `resize_patch_kernel`.
        others: Patterns of names that belong to other parts: optimizer states, text towers,
            decoders. They are left out and reported.
        unprefixed: Patterns of names that never take the prefix.
        unwritten: Beginnings of our paths that such files are read for, but not written with.
        zeros: Names of vectors `(1, width)` that the project wants and we do not have.
    """

    name: str
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...] = ("",)
    kind: str = "npz"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    prefix_places: str = "always"
    resize: str = "align_corners"
    resize_flexible: str | None = None
    resize_patches: str = "bilinear"
    others: tuple[str, ...] = ()
    unprefixed: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()

    def find(self, path: str, config: Any) -> tuple[Rule, tuple[str, ...]] | None:
        """The rule for a variable of ours, and the file's names without prefix."""
        for rule in self.rules:
            keys = rule.match(path)
            if keys and (rule.when is None or getattr(config, rule.when[0], None) == rule.when[1]):
                return rule, keys
        return None

    def original(self, key: str, prefix: str) -> str:
        """A name as a file with this prefix has it."""
        unprefixed = any(re.match(pattern, key) for pattern in self.unprefixed)
        return key if unprefixed else f"{prefix}{key}"

    def is_other(self, key: str) -> bool:
        """Whether a name belongs to a part that is not the image model."""
        return any(re.match(pattern, key) for pattern in self.others)


def pairs(ours: str, theirs: str, parts: Iterable[tuple[str, str, Form]]) -> Iterator[Rule]:
    """Rules of one layer: for each part, `ours/part` is `theirs` followed by the part's name."""
    for part, key, form in parts:
        yield Rule(f"{ours}/{part}", (f"{theirs}{key}",), form)


@cache
def _path_pattern(path: str) -> re.Pattern:
    """What paths with numbers for `{i}` and `{j}` look like."""
    pattern = re.escape(path)
    for letter in "ij":
        pattern = pattern.replace(rf"\{{{letter}\}}", rf"(?P<{letter}>\d+)")
    return re.compile(pattern)


def _fill(key: str, numbers: dict[str, int]) -> str:
    """`"block{i+1}/unit{j:02}"` with its numbers written out."""

    def write(found: re.Match) -> str:
        letter, shift, width = found.groups()
        return format(numbers[letter] + int(shift or 0), width or "d")

    return re.sub(r"\{([ij])([+-]\d)?(?::(\d+))?\}", write, key)
