"""Text towers in files of two towers: names, sizes and values."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from keras_vit.errors import CheckpointError, CheckpointMismatchError, listed
from keras_vit.families.rules import Layout, Rule
from keras_vit.families.table import FAMILIES
from keras_vit.runtime.model import Model
from keras_vit.texts.settings import Settings, read_settings
from keras_vit.texts.text_tower import TextConfig
from keras_vit.weights.array_file import ArrayFile
from keras_vit.weights.layout_search import PlainArrays, split_blocks
from keras_vit.weights.save import Sized

_LAYOUTS = tuple(layout for family in FAMILIES for layout in family.text_layouts)
_TABLE, _POSITIONS = "token_embedding/embeddings", "position_embedding/embedding"
_QUERIES, _PROJECTION = "block_0/attention/qkv/kernel", "projection/kernel"
_SCALE, _BIAS, _ADDED = "logit_scale", "logit_bias", "position_embedding/added"
_SCAN = "encoderblock/"  # all blocks stacked in one array, in big_vision
_LISTED = 10


class TextFile(PlainArrays):
    """The text tower in an open file of two towers.

    Args:
        file: The file.

    Attributes:
        layout: Layout of the text tower.
        prefix: Prefix of its names.
        entries: Shape and type of its arrays by name without prefix.

    Raises:
        CheckpointError: If the file has none.
    """

    def __init__(self, file: ArrayFile):
        found = [
            (layout, prefix)
            for layout in _LAYOUTS
            for prefix in layout.prefixes
            if layout.kind == file.kind
            for rule in layout.rules
            if rule.path == _TABLE and f"{prefix}{rule.keys[0]}" in file.entries
        ]
        if not found:
            raise CheckpointError(
                f"{file.path} has no text tower that is known here: CLIP, SigLIP and their "
                f"relatives in the names of transformers, open_clip or big_vision.{_foreign(file)} "
                "`keras_vit.from_pretrained` loads image towers alone."
            )
        named = [(dict(_plain_names(file, *each)), *each) for each in found]
        # Name in the file, and index on the first axis of a stack, by name without prefix.
        sources, self.layout, self.prefix = max(
            named, key=lambda each: sum(map(each[1].knows, each[0]))
        )
        unknown = [name for name in sources if not self.layout.knows(name)]
        if unknown:
            raise CheckpointMismatchError(
                f"{file.path} ({self.layout.name} layout) has arrays of the text tower that no "
                f"model of this package has, and nothing was loaded: "
                f"{listed(sorted(unknown), _LISTED)}."
            )
        super().__init__(file, sources)

    @cached_property
    def settings(self) -> Settings:
        """What the files next to it say; a file of big_vision has none."""
        if self.file.kind == "npz":
            return Settings(dict(self.layout.options), projects=False)
        return read_settings(self.file.path.parent, self.layout.project)

    def config(self) -> TextConfig:
        """The architecture, from shapes and sidecar files.

        Raises:
            CheckpointError: If an array is missing, or files and arrays disagree.
        """
        projected = self._has(_PROJECTION)
        if self.settings.projects and not projected:
            raise CheckpointMismatchError(
                f"{self.file.path} lacks the projection of texts to the space of images. Fetch it "
                "again."
            )
        depths = itertools.count()
        depth = next(i for i in depths if not self._has(f"block_{i}/mlp/hidden/kernel"))
        vocabulary, width = self._shape(_TABLE, 2)
        units = self._shape("block_0/mlp/hidden/kernel", 2)[1]
        fields: dict[str, Any] = {
            "vocabulary_size": vocabulary,
            "width": width,
            "depth": depth,
            "mlp_dim": units // 2 if self.settings.text.get("swiglu") else units,
            "projection_size": self._shape(_PROJECTION, 2)[1] if projected else None,
        }
        if self.layout.has(_POSITIONS):
            fields["context_length"] = self._shape(_POSITIONS, 3)[1]
        wrong = [
            f"{where} = {value!r:.40}, the arrays have {fields[field]}"
            for where, field, value in self.settings.sizes
            if value != fields[field]
        ]
        if wrong:
            raise CheckpointError(f"{self.file.path}: {'; '.join(wrong)}: it is of another model.")
        if self.file.kind == "npz":  # kernels are split by heads
            self._shape(_QUERIES, 2)
            fields["num_heads"] = self.entries[self._find(_QUERIES)[1][0]].shape[1]
        fields |= {"projection_bias": self._has("projection/bias"), **self.settings.text}
        try:
            return TextConfig(**fields)
        except ValueError as error:
            raise CheckpointError(
                f"{self.file.path} has no possible text tower: {error}"
            ) from error

    def _find(self, path: str) -> tuple[Rule, tuple[str, ...]]:
        """The rule of a variable, and names without prefix; none for what the layout has not."""
        return self.layout.find(path, None, self._sources) or (Rule(path, ()), ())

    def _has(self, path: str) -> bool:
        return any(key in self._sources for key in self._find(path)[1])

    def _shape(self, path: str, axes: int) -> tuple[int, ...]:
        """Shape of a variable with a number of axes, from those of its arrays."""
        rule, keys = self._find(path)
        missing = [self.original(key) for key in keys if key not in self.entries]
        if missing:
            raise CheckpointMismatchError(f"{self.file.path} lacks {', '.join(missing)}.")
        shapes = [self.entries[key].shape for key in keys]
        try:
            shape = rule.to_ours([np.broadcast_to(np.float32(0), each) for each in shapes]).shape
        except (IndexError, ValueError):
            shape = ()
        if len(shape) != axes or 0 in shape:
            names = ", ".join(map(self.original, keys))
            raise CheckpointMismatchError(
                f"{names} in {self.file.path} cannot have the shape {shapes[0]}. Fetch it again."
            )
        return shape

    def load(self, model: Model, config: TextConfig) -> None:
        """Loads the text tower, completely or not at all.

        Raises:
            CheckpointMismatchError: If it does not fit; lists all that does not.
        """
        problems = []
        used = {key for path in (_SCALE, _BIAS, _ADDED) for key in self._find(path)[1]}
        for variable in model.weights:
            rule, keys = self._find(variable.path)
            used.update(keys)
            shapes = rule.file_shapes(tuple(variable.shape), config.num_heads)
            for key, shape in zip(keys, shapes, strict=True):
                entry = self.entries.get(key)
                if entry is None:
                    problems.append(f"{self.original(key)!r} is missing")
                elif entry.shape != shape:
                    problems.append(f"{self.original(key)!r} is {entry.shape}, needed is {shape}")
        problems += [
            f"{self.original(name)!r} is of no layer" for name in self._sources.keys() - used
        ]
        if problems:
            lines = listed(problems, _LISTED, "\n  ")
            raise CheckpointMismatchError(
                f"The text tower in {self.file.path} ({self.layout.name} layout) does not fit, and "
                f"nothing was loaded. {len(problems)} problems:\n  {lines}"
            )
        for variable in model.weights:
            value = self._value(variable.path)
            if variable.path == _POSITIONS and self._has(_ADDED):
                value = value + self._value(_ADDED)
            variable.assign(value)

    def _value(self, path: str) -> np.ndarray:
        """The value of a variable."""
        rule, keys = self._find(path)
        return rule.to_ours(list(map(self.read, keys)))

    def scalar(self, path: str) -> float | None:
        """The value of `"logit_scale"` or `"logit_bias"`, `None` if the file has none."""
        if not self._has(path):
            return None
        with np.errstate(divide="ignore", invalid="ignore"):  # the logarithm of what is no scale
            value = self._value(path)
        if value.size != 1 or not np.isfinite(value).all():
            raise CheckpointMismatchError(
                f"{path} in {self.file.path} is one finite number, not {str(value)[:80]}. Fetch it "
                "again."
            )
        return float(value.item())

    def original(self, name: str) -> str:
        """The name in the file of an array."""
        return self.layout.original(name, self.prefix)

    def arrays(
        self, model: Model, config: TextConfig, scale: float, bias: float | None
    ) -> dict[str, Sized]:
        """The arrays of a text tower, in the names and shapes of this file."""
        values = {each.path: np.asarray(each.numpy(), "float32") for each in model.weights}
        scalars = {_SCALE: scale} if bias is None else {_SCALE: scale, _BIAS: bias}
        values |= {path: np.full(1, x, "float32") for path, x in scalars.items()}
        arrays: dict[str, Sized] = {}
        for path, value in values.items():
            rule, keys = self._find(path)
            for key, array in zip(keys, rule.to_file(value, config.num_heads), strict=True):
                if path in scalars:
                    array = array.reshape(self.entries[key].shape if key in self.entries else ())
                arrays[self.original(key)] = (array.shape, functools.partial(np.asarray, array))
        return arrays


def _foreign(file: ArrayFile) -> str:
    """What the file has in place of such a tower."""
    found = (
        f" It has {what}."
        for family in FAMILIES
        for pattern, what in family.text_others
        if any(re.match(pattern, name) for name in file.entries)
    )
    return next(found, "")


def _plain_names(
    file: ArrayFile, layout: Layout, prefix: str
) -> Iterator[tuple[str, tuple[str, int | None]]]:
    """Names without prefix of the text tower's arrays, with name and index in the file."""
    for key in file.entries:
        name = key if layout.is_unprefixed(key) else key.removeprefix(prefix)
        outside = prefix and name == key and not layout.is_unprefixed(key)
        if outside or layout.is_other(name):
            continue
        yield from ((each, (key, index)) for each, index in split_blocks(file, key, name, _SCAN))
