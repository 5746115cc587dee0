"""What a file holds: the architecture that it was made for, and what else its names tell."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from typing import Any

from keras_vit.weights.array_file import Entry
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.sidecar import Neighbours, read_neighbours
from keras_vit.weights.sizes import guess_variant, read_sizes, size


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """What a checkpoint's names and shapes say.

    Args:
        path: The file.
        kind: `"npz"` or `"safetensors"`.
        layout: Name of its layout.
        variant: The architecture of that size in the table, or `None` if there is none.
        classes: Outputs of its head, or `None` without one.
        grid: Patches along (height, width) of its positions, or `None` where several fit or none.
        sizes: Fields of the configuration that its shapes tell, such as `width` and `depth`.
        options: Fields of the configuration that the file asks for beside them.
        parameters: Number of values in the arrays of the image model.
        arrays: Shape and type of every array, by the file's own names.
    """

    path: pathlib.Path
    kind: str
    layout: str
    variant: str | None
    classes: int | None
    grid: tuple[int, int] | None
    sizes: dict[str, Any]
    options: dict[str, Any]
    parameters: int
    arrays: dict[str, Entry]

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Pixels along (height, width) that its positions are for, where they are known."""
        if self.grid is None or self.patch_size is None:
            return None
        stem = self.sizes.get("stem")
        stride = 1 if stem is None else stem.stride
        rows, columns = self.patch_size
        return self.grid[0] * rows * stride, self.grid[1] * columns * stride

    @property
    def patch_size(self) -> tuple[int, int] | None:
        """Pixels along (height, width) of its patch kernel, of a stem's maps in a hybrid."""
        return self.sizes.get("patch_size")


def inspect_file(path: str | os.PathLike) -> FileInfo:
    """Says what a checkpoint is, from its names and shapes alone.

    Args:
        path: An `.npz` or `.safetensors` file.

    Returns:
        A `FileInfo`.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file cannot be read, or its names are of no layout that is known.
    """
    with open_checkpoint(path) as checkpoint:
        head = checkpoint.find("head/bias")
        sizes = read_sizes(checkpoint)
        return FileInfo(
            path=checkpoint.file.path,
            kind=checkpoint.file.kind,
            layout=checkpoint.layout.name,
            variant=guess_variant(checkpoint),
            classes=None if head is None else size(head, -1),
            grid=_guess_grid(checkpoint),
            sizes=sizes,
            options=implied_options(checkpoint),
            parameters=sum(math.prod(entry.shape) for entry in checkpoint.entries.values()),
            arrays=dict(checkpoint.file.entries),
        )


def implied_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Fields of the configuration that a file's layout and arrays ask for."""
    options = {**checkpoint.layout.options, **_neighbours(checkpoint).options}
    if "bit" in checkpoint.layout.name:
        options.pop("num_heads", None)
        return options
    sizes = read_sizes(checkpoint)
    if "num_heads" in sizes:
        options["num_heads"] = sizes["num_heads"]
    has = checkpoint.find
    pre_logits, registers = has("pre_logits/bias"), has("registers/token")
    class_token = has("class_token/token") is not None
    after_pooling = "fc_norm.weight" in checkpoint.entries
    options.update(
        norm_after_pooling=after_pooling,
        class_token=class_token,
        distillation_token=has("distillation_token/token") is not None,
        num_registers=size(registers, -2),
        pre_logits=size(pre_logits, -1) or None,
        layer_scale=1e-5 if has("block_0/attention_scale/gamma") else None,
        position_embedding="learned" if has("position_embedding/embedding") else "sincos_2d",
        pooling=_implied_pooling(checkpoint, class_token and not after_pooling),
    )
    places = position_readings(checkpoint)
    if places and class_token:
        options["position_on_class_token"] = max(prefix for prefix, _ in places) > 0
    return options


def _neighbours(checkpoint: Checkpoint) -> Neighbours:
    """What lies beside files of timm and transformers; the official projects publish no such."""
    if checkpoint.file.kind == "npz":
        return Neighbours({}, None)
    return read_neighbours(checkpoint.file.path)


def position_readings(
    checkpoint: Checkpoint,
    grid: tuple[int, int] | None = None,
    model_grid: tuple[int, int] | None = None,
) -> list[tuple[int, tuple[int, int]]]:
    """Every way to read a file's position table.

    Args:
        checkpoint: The file.
        grid: Patches along (height, width) that the caller says it has.
        model_grid: Those of the model, which the table may be for. Square grids always may.

    Returns:
        Pairs of the number of rows before the patches and the grid of the others. Where a size of
        images is stated beside the file, and its rows agree, that is the only reading.
    """
    stated = None if grid else _stated_grid(checkpoint)
    return (_readings(checkpoint, stated, None) if stated else []) or _readings(
        checkpoint, grid, model_grid
    )


def _stated_grid(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Patches along (height, width) of the images that `config.json` says the file is for."""
    image_size = _neighbours(checkpoint).image_size
    sizes = read_sizes(checkpoint) if image_size else {}
    if image_size is None or "patch_size" not in sizes or 0 in sizes["patch_size"]:
        return None
    stride = sizes["stem"].stride if "stem" in sizes else 1
    rows, columns = (
        pixels // (patch * stride)
        for pixels, patch in zip(image_size, sizes["patch_size"], strict=True)
    )
    return rows, columns


def _readings(
    checkpoint: Checkpoint, grid: tuple[int, int] | None, model_grid: tuple[int, int] | None
) -> list[tuple[int, tuple[int, int]]]:
    entry = checkpoint.find("position_embedding/embedding")
    if entry is None or len(entry.shape) < 2:
        return []
    readings = []
    for prefix in sorted(possible_prefixes(checkpoint)):
        rest = entry.shape[-2] - prefix
        side = math.isqrt(max(rest, 0))
        grids = [grid] if grid else [model_grid, (side, side)]
        for candidate in grids:
            if candidate and 0 < rest == candidate[0] * candidate[1]:
                reading = (prefix, (candidate[0], candidate[1]))
                if reading not in readings:
                    readings.append(reading)
    return readings


def possible_prefixes(checkpoint: Checkpoint) -> set[int]:
    """How many rows for tokens a file's position table can begin with."""
    paths = ("class_token/token", "distillation_token/token", "registers/token")
    tokens = [size(checkpoint.find(path), -2) for path in paths]
    class_tokens = tokens[0] + tokens[1]
    if checkpoint.layout.prefix_places == "always":
        return {class_tokens}
    if checkpoint.layout.prefix_places == "never":  # but before 2022, when it had a row
        return {0, class_tokens}
    return {0, class_tokens, class_tokens + tokens[2]}


def _implied_pooling(checkpoint: Checkpoint, reads_token: bool) -> str:
    if checkpoint.find("pooling/probe") is not None:
        return "map"
    return "token" if reads_token else "gap"


def _guess_grid(checkpoint: Checkpoint) -> tuple[int, int] | None:
    readings = position_readings(checkpoint)
    return readings[0][1] if len(readings) == 1 else None
