"""Sizes of an architecture from the shapes of its arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from keras_vit.config import ResNetConfig, ResNetStem, ViTConfig, field_value
from keras_vit.resize import BIAS_TABLE
from keras_vit.variants import VARIANTS
from keras_vit.weights.array_file import Entry

# From the path of a variable to shape and type of its array, or `None`.
Find = Callable[[str], Entry | None]

_ROOT = 64  # channels of a ResNet's first convolution, times the width factor


def read_sizes(find: Find, kind: str) -> dict[str, Any]:
    """Reads fields of the configuration from shapes.

    Args:
        find: `Checkpoint.find`.
        kind: `"npz"` or `"safetensors"`, the format of the file.

    Returns:
        For a ViT `patch_size`, `width`, `depth`, `mlp_dim`, `channels`, the `stem` of a hybrid,
        and `num_heads` where kernels are split by heads, as in official files, or where heads have
        norms or position biases. For a ResNet `stages`, `width_factor` and `channels`. Empty if the
        arrays that tell it are missing.
    """
    if find("root/conv/kernel") is not None:
        return _resnet_sizes(find, kind)
    has_bias = kind == "npz" or find("block_0/mlp/hidden/bias") is not None  # some have none
    bias = "bias" if has_bias else "kernel"
    hidden = find(f"block_0/mlp/hidden/{bias}")
    kernel = find("patch_encoder/projection/kernel")
    axes = (4,) if kind == "npz" else (2, 4)
    if hidden is None or kernel is None or len(kernel.shape) not in axes:
        return {}
    rows, columns, channels, width = _axes(kernel, kind)
    if rows * columns * channels == 0:
        return {}
    output = size(find("block_0/mlp/output/kernel"), -2 if kind == "npz" else -1)
    # Of both inputs of a gate, where one layer computes both.
    units = size(hidden, -1 if bias == "bias" else -2)
    sizes = {
        "patch_size": (rows, columns),
        "width": width,
        "depth": _count(find, f"block_{{}}/mlp/hidden/{bias}", start=0),
        "mlp_dim": output if units == 2 * output else units,
        "channels": channels,
    }
    root = find("stem_root/conv/kernel")
    if root is not None and len(root.shape) == 4:
        stages = _stages(find, "stem_stage_{}/unit_{}/conv_1/kernel")
        *_, sizes["channels"], filters = _axes(root, kind)
        sizes["stem"] = ResNetStem(stages, max(1, filters // _ROOT))
    query = find("block_0/attention/qkv/kernel")
    if kind == "npz" and query is not None and len(query.shape) == 3:
        sizes["num_heads"] = query.shape[1]
    head = size(find("block_0/attention/query_norm/gamma"), -1)
    if kind != "npz" and head:
        sizes["num_heads"] = width // head
    heads = size(find(f"block_0/{BIAS_TABLE}"), -1)
    if heads:
        sizes["num_heads"] = heads
    return sizes


def grid_of(
    image_size: tuple[int, int], patch_size: tuple[int, int], stem: ResNetStem | None
) -> tuple[int, int]:
    """Patches along (height, width) of images; a stem rounds its feature maps up."""
    height, width = image_size if stem is None else stem.map_size(image_size)
    return height // patch_size[0], width // patch_size[1]


def pixels_of(
    grid: tuple[int, int], patch_size: tuple[int, int], stem: ResNetStem | None
) -> tuple[int, int]:
    """Pixels along (height, width) of a grid of patches, on the feature maps of a stem."""
    stride = 1 if stem is None else stem.stride
    return grid[0] * patch_size[0] * stride, grid[1] * patch_size[1] * stride


def guess_variant(sizes: dict[str, Any]) -> str | None:
    """Finds the variant of these sizes, or `None` if the table has none."""
    fitting = (name for name, config in VARIANTS.items() if sizes and _is_of(config, sizes))
    return next(fitting, None)


def size(entry: Entry | None, axis: int) -> int:
    """Length of an axis of an array, 0 without the array or the axis."""
    return 0 if entry is None or len(entry.shape) < -axis else entry.shape[axis]


def _is_of(config: ViTConfig | ResNetConfig, sizes: dict[str, Any]) -> bool:
    if isinstance(config, ResNetConfig):
        fields = ["stages", "width_factor"]
    else:
        fields = ["patch_size", "width", "depth", "mlp_dim"]
        ours, theirs = (stem and stem.stages for stem in (config.stem, sizes.get("stem")))
        if ours != theirs:
            return False
    return all(sizes.get(field) == field_value(config, field) for field in fields)


def _resnet_sizes(find: Find, kind: str) -> dict[str, Any]:
    root = find("root/conv/kernel")
    stages = _stages(find, "stage_{}/unit_{}/conv_1/kernel")
    if root is None or len(root.shape) != 4 or not stages:
        return {}
    *_, channels, filters = _axes(root, kind)
    return {"stages": stages, "width_factor": max(1, filters // _ROOT), "channels": channels}


def _axes(kernel: Entry, kind: str) -> tuple[int, ...]:
    """Rows, columns, channels in and channels out of a convolution's kernel."""
    if kind == "npz":
        return kernel.shape
    if len(kernel.shape) == 2:  # pixels of a square patch, in colour
        side = math.isqrt(kernel.shape[1] // 3)
        return side, side, 3 if 3 * side**2 == kernel.shape[1] else 0, kernel.shape[0]
    out, channels, rows, columns = kernel.shape
    return rows, columns, channels, out


def _stages(find: Find, path: str) -> tuple[int, ...]:
    """Counts the units in each stage of a ResNet; `path` has fields for stage and unit."""
    counts = (_count(find, path.format(stage, "{}"), start=1) for stage in itertools.count(1))
    return tuple(itertools.takewhile(bool, counts))


def _count(find: Find, path: str, start: int) -> int:
    """Counts consecutive numbers from `start` whose path has an array."""
    numbers = itertools.count(start)
    found = (find(path.format(number)) is not None for number in numbers)
    return sum(itertools.takewhile(bool, found))
