"""Layouts: names, shapes and transforms of the arrays in a project's checkpoints.

Here are the rules that they are made of, and what models of a project do not have. Each family
has the layouts of its files.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from keras_vit.config import field_value

Arrays = list[np.ndarray]
# From the path of a variable to its array in a file, something with a `shape`, or `None`.
Find = Callable[[str], Any]


class Transform(NamedTuple):
    """Conversion between one variable and the arrays that hold it in a file.

    Args:
        to_ours: Makes the variable from the file's arrays.
        to_file: Makes the file's arrays from the variable, the number of arrays in the file and
            the number of attention heads.
    """

    to_ours: Callable[[Arrays], np.ndarray]
    to_file: Callable[[np.ndarray, int, int], Arrays]


def _split(array: np.ndarray, parts: int, axis: int) -> Arrays:
    return list(np.split(array, parts, axis=axis))


def _join(arrays: Arrays, axis: int) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=axis)


# The same array, one after the other on the last axis where the file has several.
SAME = Transform(
    lambda arrays: _join(arrays, -1), lambda array, parts, heads: _split(array, parts, -1)
)
# Flax's attention: kernels (D, heads, head_dim) of queries, keys and values, their biases, and
# the output kernel (heads, head_dim, D).
HEADS_KERNEL = Transform(
    lambda arrays: _join([a.reshape(a.shape[0], -1) for a in arrays], 1),
    lambda array, parts, heads: [a.reshape(a.shape[0], heads, -1) for a in _split(array, parts, 1)],
)
HEADS_BIAS = Transform(
    lambda arrays: _join([a.reshape(-1) for a in arrays], 0),
    lambda array, parts, heads: [a.reshape(heads, -1) for a in _split(array, parts, 0)],
)
HEADS_OUTPUT = Transform(
    lambda arrays: arrays[0].reshape(-1, arrays[0].shape[-1]),
    lambda array, parts, heads: [array.reshape(heads, -1, array.shape[-1])],
)


def _of_one(
    to_ours: Callable[[np.ndarray], np.ndarray], to_file: Callable[[np.ndarray], np.ndarray]
) -> Transform:
    """A conversion where the file has one array, which does not depend on the heads."""
    return Transform(
        lambda arrays: to_ours(arrays[0]), lambda array, parts, heads: [to_file(array)]
    )


# Vectors of the official group norms, (1, 1, 1, C), and their dense layers as 1 x 1 convolutions.
CHANNELS = _of_one(lambda theirs: theirs.reshape(-1), lambda ours: ours.reshape(1, 1, 1, -1))
POINTWISE = _of_one(lambda theirs: theirs.reshape(theirs.shape[-2:]), lambda ours: ours[None, None])
# PyTorch: linear layers (out, in), convolutions (out, in, height, width).
LINEAR = Transform(
    lambda arrays: _join(arrays, 0).T, lambda array, parts, heads: _split(array.T, parts, 0)
)
CONVOLUTION = _of_one(
    lambda theirs: theirs.transpose(2, 3, 1, 0), lambda ours: ours.transpose(3, 2, 0, 1)
)
# A convolution of patches as a linear layer of their pixels; loading knows the kernel's shape.
PATCH_VECTORS = _of_one(lambda theirs: theirs.T, lambda ours: ours.reshape(-1, ours.shape[-1]).T)
POINTWISE_CONVOLUTION = _of_one(
    lambda theirs: theirs.reshape(theirs.shape[:2]).T, lambda ours: ours.T[:, :, None, None]
)
# A vector without its leading axes of one.
VECTOR = _of_one(lambda theirs: theirs.reshape(1, 1, -1), lambda ours: ours.reshape(-1))
# The logarithm of a scale as a temperature, the inverse of the scale.
TEMPERATURE = _of_one(lambda theirs: -np.log(theirs), lambda ours: np.exp(-ours))
# A table without the leading axis of one, and such a vector.
TABLE = _of_one(lambda theirs: theirs[None], lambda ours: ours[0])


def _squared(table: np.ndarray) -> np.ndarray:
    """A table `(1, N, D)` as `(1, rows, columns, D)`, a column of rows where N is no square."""
    count, width = table.shape[1:]
    side = math.isqrt(count)
    return table.reshape(1, *((side, side) if side**2 == count else (count, 1)), width)


# A table with axes for rows and columns.
GRID_TABLE = _of_one(lambda theirs: theirs.reshape(1, -1, theirs.shape[-1]), _squared)


def always(config: Any) -> bool:
    """For `Rule.written` and `Layout.writes`."""
    return True


@dataclasses.dataclass(frozen=True)
class Rule:
    """The arrays of a file that make up one variable.

    Args:
        path: Path of the variable, with `{i}` and `{j}` for numbers.
        keys: Names of the file's arrays, with the same letters. Numbers may be written `{i+1}`,
            `{i-1}` or with two digits, `{j:02}`.
        transform: Conversion between the variable and the arrays.
        rows: (first, last, all) where the variable is only a part of the array's leading axis.
        when: (field, value) that the model's configuration must have for this rule.
        written: Which configurations are written by this rule, where several rules have a path; of
            a file that is read, the names tell which one it follows.
    """

    path: str
    keys: tuple[str, ...]
    transform: Transform = SAME
    rows: tuple[int, int, int] = (0, 1, 1)
    when: tuple[str, Any] | None = None
    written: Callable[[Any], bool] = always

    def holds(self, config: Any) -> bool:
        """Whether a configuration has the value of `when`."""
        return self.when is None or field_value(config, self.when[0], None) == self.when[1]

    def match(self, path: str) -> tuple[str, ...] | None:
        """Names of the file's arrays for a variable, or `None` if the rule has another path."""
        found = _path_pattern(self.path).fullmatch(path)
        if not found:
            return None
        numbers = {letter: int(number) for letter, number in found.groupdict().items()}
        return tuple(_fill(key, numbers) for key in self.keys)

    def to_ours(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Makes the variable from the file's arrays."""
        first, last, whole = self.rows
        if whole > 1:
            share = arrays[0].shape[0] // whole
            arrays = [arrays[0][first * share : last * share]]
        return self.transform.to_ours(arrays)

    def to_file(self, array: np.ndarray, heads: int) -> list[np.ndarray]:
        """Makes the file's arrays, or the variable's rows of them, from the variable."""
        return self.transform.to_file(array, len(self.keys), heads)

    def file_shapes(self, shape: tuple[int, ...], heads: int) -> list[tuple[int, ...]]:
        """Shapes of the file's arrays for a variable of shape `shape`."""
        # A view of one zero costs no memory, whatever its shape.
        arrays = self.to_file(np.broadcast_to(np.float32(0), shape), heads)
        first, last, whole = self.rows
        if whole == 1:
            return [a.shape for a in arrays]
        return [(a.shape[0] * whole // (last - first), *a.shape[1:]) for a in arrays]


class Lack(NamedTuple):
    """What the models of a project compute otherwise than models of some configurations.

    Args:
        is_met: Whether a configuration asks for something else.
        what: What the project's models have or do.
        fields: Fields of the configuration that are shown.
        advice: What to do.
        name: What `Layout.computes` calls it, where some projects do compute it.
    """

    is_met: Callable[[Any], Any]
    what: str
    fields: tuple[str, ...]
    advice: str
    name: str = ""


class Unsaid(NamedTuple):
    """Settings of some models of a project that only `config.json` or a name tells.

    Args:
        told: Field of the configuration that those sources state, if there are any.
        holds: Whether the arrays are of such a model, from the settings and names of the arrays.
        text: What is open.
        fields: Fields of the configuration. A caller who sets them all goes on.
    """

    told: str
    holds: Callable[[Mapping[str, Any], Collection[str]], Any]
    text: str
    fields: tuple[str, ...]


KEEP = "Save the model with `model.save`."
AS_TIMM = 'Save with layout="timm".'


def _pools(field: str, others: str) -> Callable[[Any], bool]:
    """Whether the pooling has a size of its own, other than that of the blocks."""
    return lambda config: (
        config.pooling == "map"
        and getattr(config, field) not in (None, getattr(config.block, others))
    )


# What models of the paper's projects do not have, and most others neither.
ROPE = Lack(
    lambda config: config.block.rope, "have no such rotary positions", ("rope",), AS_TIMM, "rope"
)
LACKS = (
    ROPE,
    Lack(
        lambda config: config.takes_patches, "take images of one size", ("max_num_patches",),
        'Save with layout="transformers" or "timm".', "max_num_patches",
    ),
    *(
        Lack(functools.partial(field_value, name=field), f"have no {field}", (field,), KEEP)
        for field in (
            "post_norm", "head_width", "grid_attention", "window_size", "num_merged_tokens"
        )
    ),
    Lack(
        lambda config: config.pooling == "token_gap",
        "have no head that reads the class token and the mean of the patches", ("pooling",),
        'Save with layout="transformers".', "token_gap",
    ),
    Lack(
        _pools("map_mlp_dim", "mlp_dim"),
        "have an MLP in the pooling that is as wide as those of the blocks",
        ("map_mlp_dim", "mlp_dim"), KEEP, "map",
    ),
    Lack(
        _pools("map_heads", "num_heads"), "have as many heads in the pooling as in the blocks",
        ("map_heads", "num_heads"), KEEP, "map",
    ),
    Lack(
        lambda config: (
            config.pooling == "map" and config.map_prefix_tokens and config.num_prefix_tokens
        ),
        "have a pooling that attends to the patches alone", ("map_prefix_tokens",),
        "Build the model with map_prefix_tokens=False.", "prefix",
    ),
    Lack(
        lambda config: (
            config.pooling == "gap" and config.gap_prefix_tokens and config.num_prefix_tokens
        ),
        "have a mean of the patches alone", ("gap_prefix_tokens",), AS_TIMM, "prefix",
    ),
    Lack(
        lambda config: not config.norm_after_blocks and not config.post_norm,
        "have a norm after the last block", ("norm_after_blocks",), AS_TIMM, "norm_after_blocks",
    ),
    Lack(
        lambda config: config.norm_after_pooling, "have the last norm before the pooling",
        ("norm_after_pooling",), AS_TIMM, "norm_after_pooling",
    ),
)  # fmt: skip


def biases(*known: Collection[str]) -> Lack:
    """Refuses models without other biases than those of one of some lists."""
    return Lack(
        lambda config: {*config.block.without_bias} not in [{*names} for names in known],
        "have biases in other dense layers", ("without_bias",), KEEP,
    )  # fmt: skip


# Of queries, keys and values all, or none.
ALL_OR_NONE = biases((), ("query", "key", "value"))
_SQUARE = Lack(
    lambda config: config.grid[0] != config.grid[1],
    "exchange rows and columns of position biases where the grid is no square", ("grid",), AS_TIMM,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Names and conventions of one project's checkpoints.

    Of layouts that know equally many names of a file the first is taken, of those that write a
    model the last, in the order of the families and of their layouts.

    Args:
        name: Its name.
        rules: One for every variable that such a file can hold.
        project: The project whose models it is of.
        writes: Whether models of a configuration are written so, for one of the layout's kind:
            of a ResNet or a ViT. `None` for files that are read only.
        written_for: The project that a user names to write so; that of the models if empty.
        prefixes: Prefixes that names may have; files are written with the first.
        kind: `"npz"` or `"safetensors"`, the format of the file.
        options: Fields of `ViTConfig` or `ResNetConfig` that the project's models have.
        class_token_positions: Whether the position table has rows for class tokens: `"always"`,
            `"never"`, or `"either"`.
        no_positions: The `position_embedding` of models without an array of positions; empty where
            the file must say.
        square_grids: Whether positions in the blocks are right in square grids alone.
        resize: How the project resizes positions, a method of `resize_positions`.
        resize_block_tables: The same for the tables of positions in the blocks.
        resize_flexible: The same for models of flexible patch sizes, where it differs.
        resize_patches: How it resizes patch kernels, a method of `resize_patch_kernel`.
        others: Patterns of names outside the image model: optimizer states, text towers, decoders.
            They are skipped and reported.
        unprefixed: Patterns of names that never have the prefix.
        unwritten: Prefixes of variable paths that are read from such files, but never written.
        zeros: Names of arrays that the project needs and this package does not have, and their
            shapes, from the configuration.
        needs: Pattern of a name without which a file is not of this project.
        constants: Arrays of the project's files that follow from the configuration, by paths as
            those of variables: files that are read must agree with them.
        pooling: Input of the head, where the project's have one alone, or a function that says it
            of a configuration.
        computes: Names of what is among `LACKS`, and is computed; or a function of a configuration.
        lacks: Further rows of the kind.
        settings: Fields of the configuration that the arrays tell in such files alone, from a
            function like `Checkpoint.find` and the sizes.
        unsaid: What neither the arrays nor the project tell.
        in_memory: Names that the project's models have in memory today, and those of the files,
            without prefix.
    """

    name: str
    rules: tuple[Rule, ...]
    project: str
    writes: Callable[[Any], Any] | None = None
    written_for: str = ""
    prefixes: tuple[str, ...] = ("",)
    kind: str = "npz"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    class_token_positions: str = "always"
    no_positions: str = ""
    square_grids: bool = False
    resize: str = "align_corners"
    resize_block_tables: str = "bilinear"
    resize_flexible: str | None = None
    resize_patches: str = "bilinear"
    others: tuple[str, ...] = ()
    unprefixed: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    zeros: Callable[[Any], dict[str, tuple[int, ...]]] = lambda config: {}
    needs: str = ""
    constants: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}
    pooling: str | Callable[[Any], str] = ""
    computes: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = ()
    lacks: tuple[Lack, ...] = ()
    settings: Callable[[Find, Mapping[str, Any]], dict[str, Any]] = lambda find, sizes: {}
    unsaid: tuple[Unsaid, ...] = ()
    in_memory: tuple[tuple[str, str], ...] = ()

    @property
    def is_resnet(self) -> bool:
        """Whether its models are ResNets."""
        return self.has("root/conv/kernel")

    @property
    def standardization(self) -> tuple[str, float]:
        """How kernels of convolutions are standardised, and the epsilon of their group norms."""
        if self.kind == "safetensors":
            return "torch", 1e-5
        return ("variance", 1e-5) if self.is_resnet else ("std", 1e-6)

    @property
    def reads_vectors(self) -> bool:
        """Whether the patch kernel can come as a linear layer of pixels."""
        return any(rule.transform is PATCH_VECTORS for rule in self.rules)

    def all_lacks(self, config: Any) -> Iterator[Lack]:
        """What its models compute otherwise than some of a configuration's kind."""
        reads = self.pooling(config) if callable(self.pooling) else self.pooling
        computes = self.computes(config) if callable(self.computes) else self.computes
        for lack in LACKS:
            if lack.name not in (*computes, "token_gap" if reads else None):
                yield lack
        if reads:
            yield Lack(
                lambda config: reads != "gap" and not config.class_token,
                "have a class token", ("class_token",), "Save in another layout.",
            )  # fmt: skip
            yield Lack(
                lambda config: config.classes is not None and config.pooling != reads,
                f"have a head that reads pooling={reads!r}", ("pooling",),
                "Save in another layout, or the model without its head.",
            )  # fmt: skip
        if self.square_grids:
            yield _SQUARE
        yield from self.lacks

    def find(
        self, path: str, config: Any, names: Collection[str] | None = None
    ) -> tuple[Rule, tuple[str, ...]] | None:
        """Finds the rule of a variable, and its names in the file without prefix.

        Args:
            path: Path of the variable.
            config: Configuration of the model.
            names: Names in a file that is read, `None` for one that is written.

        Returns:
            Of several rules the one whose names are in the file, or that is written.
        """
        found = None
        for rule in self.rules:
            keys = rule.match(path)
            if not keys or not rule.holds(config):
                continue
            here = rule.written(config) if names is None else any(key in names for key in keys)
            if here or rule.when is not None:
                return rule, keys
            found = found or (rule, keys)
        return None if names is None else found

    def has(self, path: str) -> bool:
        """Whether the project has a name for a variable."""
        return any(rule.match(path) for rule in self.rules)

    def knows(self, key: str) -> bool:
        """Whether a plain name belongs to a variable."""
        return names_pattern(self).fullmatch(key) is not None

    def original(self, key: str, prefix: str) -> str:
        """Adds the prefix of a file to a name."""
        return key if self.is_unprefixed(key) else f"{prefix}{key}"

    def is_unprefixed(self, key: str) -> bool:
        """Whether a name never has the prefix."""
        return any(re.match(pattern, key) for pattern in self.unprefixed)

    def is_other(self, key: str) -> bool:
        """Whether a name is outside the image model."""
        return any(re.match(pattern, key) for pattern in self.others)


def pairs(
    ours: str, theirs: str, parts: Iterable[tuple[str, str, Transform]], **more: Any
) -> Iterator[Rule]:
    """Rules of one layer: the variable `ours/part` is the array `theirs` plus the part's key."""
    for part, key, transform in parts:
        yield Rule(f"{ours}/{part}", (f"{theirs}{key}",), transform, **more)


@cache
def names_pattern(layout: Layout) -> re.Pattern[str]:
    """Pattern of all names of a layout, without prefix."""
    keys = {key for rule in layout.rules for key in rule.keys}
    numbered = (re.sub(r"\\\{[ij][^}]*\}", r"\\d+", re.escape(key)) for key in sorted(keys))
    return re.compile("|".join(numbered))


@cache
def _path_pattern(path: str) -> re.Pattern[str]:
    """Pattern of paths with numbers for `{i}` and `{j}`."""
    pattern = re.escape(path)
    for letter in "ij":
        pattern = pattern.replace(rf"\{{{letter}\}}", rf"(?P<{letter}>\d+)")
    return re.compile(pattern)


def _fill(key: str, numbers: dict[str, int]) -> str:
    """`"block{i+1}/unit{j:02}"` with the numbers filled in."""

    def write(found: re.Match[str]) -> str:
        letter, shift, width = found.groups()
        return format(numbers[letter] + int(shift or 0), width or "d")

    return re.sub(r"\{([ij])([+-]\d)?(?::(\d+))?\}", write, key)
