"""An open checkpoint: its arrays by plain names, its sizes, options and position table."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from keras_vit.families.rules import SAME
from keras_vit.resize import BIAS_TABLE, num_biases, side_of_biases
from keras_vit.weights.array_file import ArrayFile, Entry
from keras_vit.weights.formats import open_arrays
from keras_vit.weights.layout_search import (
    FileLayout,
    PlainArrays,
    find_file_layout,
    foreign_features,
    plain_names,
)
from keras_vit.weights.sidecar import Refusal, Setting, Sidecar, read_sidecar
from keras_vit.weights.sizes import grid_of, guess_variant, read_sizes, size
from keras_vit.weights.timm_settings import timm_pixels

# Patches of an image that a file asks for: a model has constants for each, or for each two of them.
_MAX_PATCHES, _MAX_TABLE_PATCHES = 1 << 17, 1 << 13  # models take 65,536 and 1,024
_MAX_POSITIONS = 1 << 28  # patches times width: 1 GB


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _settings(options: dict[str, Any], origin: str) -> dict[str, Setting]:
    return {field: Setting(value, origin) for field, value in options.items()}


def position_rows(entry: Entry) -> int:
    """Rows of a position table, also of one with an axis each for rows and columns of patches."""
    return math.prod(entry.shape[1:-1]) if len(entry.shape) == 4 else size(entry, -2)


class PositionTable(NamedTuple):
    """A way to split a position table.

    Args:
        num_tokens: Rows before the patches, for class tokens and registers.
        grid: Patches along (height, width) of the other rows.
    """

    num_tokens: int
    grid: tuple[int, int]


class Checkpoint(PlainArrays):
    """An open file whose arrays have the plain names of its layout.

    Plain names have no prefix and no numbers that TensorFlow appended; arrays that stack all
    blocks are split into blocks.

    Args:
        file: The file.
        found: Its layout, and the prefixes of its names.

    Attributes:
        others: Names in the file of arrays outside the image model.
    """

    def __init__(self, file: ArrayFile, found: FileLayout) -> None:
        self.layout, self.prefix, self.wrapper = found
        sources, self.others = plain_names(file, found)
        super().__init__(file, sources)

    def original(self, name: str) -> str:
        """The name of an array in the file."""
        if name in self._sources:
            return self._sources[name][0]
        return f"{self.wrapper}{self.layout.original(name, self.prefix)}"

    def find(self, path: str) -> Entry | None:
        """Finds shape and type of the array for a variable, or of the first of several."""
        for rule in self.layout.rules:
            keys = rule.match(path)
            if keys and keys[0] in self.entries:
                return self.entries[keys[0]]
        return None

    @property
    def classes(self) -> int | None:
        """Outputs of the head, or `None` without one."""
        paths = ("head/bias", "head/kernel")  # one of them can be missing
        for rule in sorted(self.layout.rules, key=lambda rule: rule.path):
            head = self.entries.get(rule.keys[0]) if rule.path in paths else None
            if head is not None:
                first = self.file.kind != "npz" and rule.transform is not SAME
                return head.shape[0 if first else -1] if head.shape else None
        return None

    @cached_property
    def sizes(self) -> dict[str, Any]:
        """Fields of the configuration that follow from shapes: see `read_sizes`."""
        return read_sizes(self.find, self.file.kind)

    @cached_property
    def variant(self) -> str | None:
        """The variant of these sizes, or `None` if the table has none."""
        return guess_variant(self.sizes)

    @cached_property
    def sidecar(self) -> Sidecar:
        """Content of the sidecar files; the official projects publish none."""
        if self.file.kind == "npz":
            return Sidecar()
        return read_sidecar(self.file.path, self.layout)

    @property
    def options(self) -> dict[str, Any]:
        """Fields of the configuration that follow from the layout, names and sidecar files."""
        return {field: setting.value for field, setting in self.settings.items()}

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """The same, each with where it comes from."""
        project = self.layout.project
        settings = _settings(self.layout.options, f"the default of {project}")
        if self.layout.is_resnet:
            stated = self.sidecar.settings.get("preprocessing")
            return settings if stated is None else {**settings, "preprocessing": stated}
        settings.update(_settings(self._options_of_arrays(), "the file's arrays"))
        name = self.sidecar.timm_name
        if name is not None and self.layout.project == "timm":
            settings["preprocessing"] = Setting(timm_pixels(name), f"timm's {name}")
        arrays = settings.get("position_embedding")
        settings.update(self.sidecar.settings)
        if arrays is not None and self.find("position_embedding/embedding") is not None:
            settings["position_embedding"] = arrays  # beside the rotary ones of a name
        include = settings.get("map_prefix_tokens")
        if include is not None and include.value and "pool_include_prefix" in include.origin:
            settings["gap_prefix_tokens"] = include
        method = self.layout.resize
        settings.setdefault("position_resize", Setting(method, f"the default of {project}"))
        return settings

    def _options_of_arrays(self) -> dict[str, Any]:
        """Fields of the configuration that follow from the names of arrays."""
        has = self.find
        options: dict[str, Any] = {}
        if "num_heads" in self.sizes:
            options["num_heads"] = self.sizes["num_heads"]
        class_token = has("class_token/token") is not None
        after = any(
            rule.when == ("norm_after_pooling", True) and rule.keys[0] in self.entries
            for rule in self.layout.rules
        )
        options.update(
            norm_after_pooling=after,
            class_token=class_token,
            distillation_token=has("distillation_token/token") is not None,
            num_registers=size(has("registers/token"), -2),
            pre_logits=size(has("pre_logits/bias"), -1) or None,
            layer_scale=1e-5 if has("block_0/attention_scale/gamma") else None,
            pooling=self._pooling(class_token and not after),
        )
        learned = has("position_embedding/embedding") is not None
        if has(f"block_0/{BIAS_TABLE}") is not None:
            kind = "relative_bias"
            options["position_embedding"] = f"learned_{kind}" if learned else kind
            options["position_resize"] = self.layout.resize_block_tables
        elif learned or self.layout.no_positions:
            options["position_embedding"] = "learned" if learned else self.layout.no_positions
        tables = self.position_tables()
        if tables and learned and (class_token or options["num_registers"]):
            options["position_on_class_token"] = any(table.num_tokens for table in tables)
        if self.file.kind != "npz" and self.sizes:
            options.update(self._switches())
        return {**options, **self.layout.settings(has, self.sizes)}

    def _switches(self) -> dict[str, Any]:
        """Switches of newer ViTs that arrays tell, as they are there or not."""
        blocks = range(self.sizes["depth"])

        def anywhere(path: str) -> bool:
            return any(self.find(f"block_{index}/{path}") is not None for index in blocks)

        gate = size(self.find("block_0/mlp/hidden/kernel"), -2)
        split = any(
            keys is not None and len(keys) == 2 and keys[0] in self.entries
            for keys in (rule.match("block_0/mlp/hidden/kernel") for rule in self.layout.rules)
        )
        inner = (part for part in ("attention", "mlp") if anywhere(f"{part}/norm/gamma"))
        switches = {
            **({"qk_norm": True} if anywhere("attention/query_norm/gamma") else {}),
            **({"qk_norm_bias": True} if anywhere("attention/query_norm/beta") else {}),
            "swiglu": split or gate == 2 * self.sizes["mlp_dim"],
            "norm_patches": self.find("patch_norm/gamma") is not None,
            "norm_before_blocks": self.find("embedding_norm/gamma") is not None,
            "inner_norms": tuple(inner),
            "without_bias": tuple(self._missing_biases(anywhere)),
        }
        starts_at_0 = self.layout.project == "transformers" and self.layout.has("head/bias")
        if self.find("head/kernel") and not self.find("head/bias") and not starts_at_0:
            switches["head_bias"] = None  # as the projection of CLIP
        return switches

    def _missing_biases(self, anywhere: Callable[[str], bool]) -> Iterator[str]:
        """Dense layers of which no block has a bias, where the project knows such models."""
        bias = "patch_encoder/projection/bias"
        without = self.find("embedding_norm/gamma") is not None or not self.layout.has(bias)
        if without and self.find(bias) is None:
            yield "patch"
        if not self.layout.has("block_0/attention/query_bias"):
            return
        fused = anywhere("attention/qkv/bias")
        for part in ("query", "key", "value"):
            separate = self.layout.has("block_0/attention/key_bias") or not fused
            if separate and not anywhere(f"attention/{part}_bias"):
                yield part
        for part, path in (("projection", "attention/output"), ("mlp", "mlp/hidden")):
            if not anywhere(f"{path}/bias"):
                yield part

    def _pooling(self, reads_token: bool) -> str:
        """What the head reads, as the arrays tell it."""
        head = size(self.find("head/kernel"), -1)  # (out, in) in files of PyTorch
        reads = self.layout.pooling
        if head and reads in ("gap", "token_gap"):
            return str(reads)
        if self.find("pooling/probe"):
            return "map" if self.layout.has("pooling/query/kernel") else "attention"
        return "token" if reads_token else "gap"

    @cached_property
    def refusals(self) -> tuple[Refusal, ...]:
        """What the file or its sidecar files ask for, and no model of this package computes."""
        unknown = [name for name in self.entries if not self.layout.knows(name)]
        found = [Refusal(f"the arrays have {what}") for what in foreign_features(unknown)]
        if found:  # what the file leaves open does not matter then
            return (*found, *(each for each in self.sidecar.refusals if not each.open))
        of_vit = () if self.layout.is_resnet else self._refusals_of_vit()
        return (*self.sidecar.refusals, *self._too_many_patches(), *of_vit)

    def _refusals_of_vit(self) -> Iterator[Refusal]:
        """Where the arrays disagree with the sidecar files, and what both leave open."""
        for where, field, value in self.sidecar.sizes:
            ours = self.sizes.get(field)
            wanted = (value, value) if isinstance(ours, tuple) and type(value) is int else value
            if ours is not None and _listed(wanted) != _listed(ours):
                yield Refusal(
                    f"{where} = {value!r:.80}, the arrays have {ours}: it is of another model"
                )
        options = self.options
        kernel = self.find("patch_encoder/projection/kernel")
        vectors = self.layout.reads_vectors and kernel is not None and len(kernel.shape) == 2
        if "max_num_patches" in options and not vectors:
            origin = self.settings["max_num_patches"].origin
            yield Refusal(
                f"{origin}: images of any aspect ratio, the arrays are for images of one size"
            )
        if self.sizes and "position_embedding" not in options:
            yield Refusal(
                "the arrays have no position embedding, so positions are rotary, relative or "
                "none, and the file does not say",
                ("position_embedding",),
                open=True,
            )
        rms = options.get("norm") == "rms"
        if not rms and self.find("encoder_norm/gamma") and not self.find("encoder_norm/beta"):
            yield Refusal("the arrays have norms without bias (RMSNorm)", ("norm",), open=True)
        for each in self.layout.unsaid:
            if each.told not in self.sidecar.settings and each.holds(options, self.entries):
                yield Refusal(each.text, each.fields, open=True)

    def _too_many_patches(self) -> Iterator[Refusal]:
        """Sizes of images for which the tables of positions alone would take gigabytes."""
        most = min(_MAX_PATCHES, _MAX_POSITIONS // max(1, self.sizes.get("width", 1)))
        for origin, image_size in self._stated_sizes().items():
            grid = self._grid_of(image_size)
            if grid is not None and math.prod(grid) > most:
                yield Refusal(
                    f"{origin}: images of {image_size} pixels, which are {math.prod(grid):,} "
                    f"patches, more than {most:,}",
                    ("image_size",),
                )
        for table in self._split_bias_table(None, None):
            if math.prod(table.grid) > _MAX_TABLE_PATCHES:
                yield Refusal(
                    f"a table of positions in every block for {math.prod(table.grid):,} patches, "
                    f"more than {_MAX_TABLE_PATCHES:,}"
                )

    def keep_size(self) -> None:
        """Leaves out the size of the preprocessing: images have that of the positions."""
        self.sidecar.input_size = None

    def position_tables(
        self, grid: tuple[int, int] | None = None, model_grid: tuple[int, int] | None = None
    ) -> list[PositionTable]:
        """Lists every way to split the position table.

        Args:
            grid: Patches along (height, width) that the caller states.
            model_grid: Patches of the model, tried in addition to square grids.

        Returns:
            The ways, without duplicates. Where a sidecar file states an image size that fits the
            number of rows, only that one.
        """
        for image_size in () if grid else self._stated_sizes().values():
            stated = self._grid_of(image_size)
            tables = self._split_rows(stated, None) if stated else []
            if tables:
                return tables
        return self._split_rows(grid, model_grid)

    def _stated_sizes(self) -> dict[str, tuple[int, int]]:
        """Image sizes in the sidecar files by their origin, that of the positions first."""
        sizes = {}
        if self.sidecar.image_size is not None:
            sizes["config.json"] = self.sidecar.image_size
        if self.sidecar.input_size is not None:
            sizes[self.sidecar.input_size.origin] = self.sidecar.input_size.value
        return sizes

    def _grid_of(self, image_size: tuple[int, int]) -> tuple[int, int] | None:
        """Patches along (height, width) of images of a size."""
        patch_size = self.sizes.get("patch_size", (0, 0))
        return None if 0 in patch_size else grid_of(image_size, patch_size, self.sizes.get("stem"))

    def _split_rows(
        self, grid: tuple[int, int] | None, model_grid: tuple[int, int] | None
    ) -> list[PositionTable]:
        entry = self.find("position_embedding/embedding")
        if entry is None:
            return self._split_bias_table(grid, model_grid)
        if len(entry.shape) < 2:
            return []
        known = grid if len(entry.shape) != 4 else (entry.shape[1], entry.shape[2])
        tables: list[PositionTable] = []
        for num_tokens in sorted(self.possible_token_rows()):
            rest = position_rows(entry) - num_tokens
            side = math.isqrt(max(rest, 0))
            tables += (
                PositionTable(num_tokens, (each[0], each[1]))
                for each in ([known] if known else [model_grid, (side, side)])
                if each and 0 < rest == each[0] * each[1]
            )
        return list(dict.fromkeys(tables))

    def _split_bias_table(
        self, grid: tuple[int, int] | None, model_grid: tuple[int, int] | None
    ) -> list[PositionTable]:
        """Grids that the table of distances in every block can be of."""
        entry = self.find(f"block_0/{BIAS_TABLE}")
        if entry is None:
            return []
        class_token = self.find("class_token/token") is not None
        rows = size(entry, -2)
        side = side_of_biases(rows, class_token)
        grids = [grid] if grid else [model_grid, (side, side)]
        return [
            PositionTable(0, found)
            for found in dict.fromkeys(grids)
            if found and min(found) > 0 and num_biases(found, class_token) == rows
        ]

    def possible_token_rows(self) -> set[int]:
        """Numbers of rows before the patches that the position table can have."""
        paths = ("class_token/token", "distillation_token/token", "registers/token")
        found = [self.find(path) for path in paths]
        tokens = [1 if entry and len(entry.shape) == 1 else size(entry, -2) for entry in found]
        class_tokens = tokens[0] + tokens[1]
        if self.layout.class_token_positions == "always":
            return {class_tokens}
        if self.layout.class_token_positions == "never":  # but before 2022, when it had a row
            return {0, class_tokens}
        return {0, class_tokens, class_tokens + tokens[2]}


@contextlib.contextmanager
def open_checkpoint(
    path: str | os.PathLike[str], prefix: str | None = None
) -> Iterator[Checkpoint]:
    """Opens a checkpoint and finds its layout from its names.

    Args:
        path: An `.npz` or `.safetensors` file, see `open_arrays`.
        prefix: What stands before the names of the model in the file; `None` looks for it.

    Yields:
        A `Checkpoint`, for a `with` statement.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file cannot be read, its names match no known layout, or it holds
            several models.
    """
    with open_arrays(path) as file:
        yield Checkpoint(file, find_file_layout(file, prefix))
