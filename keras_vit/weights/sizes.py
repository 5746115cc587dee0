"""Which architecture a checkpoint is of, from the shapes of its arrays."""

from __future__ import annotations

import itertools
from typing import Any

from keras_vit.config import ResNetConfig, ResNetStem, ViTConfig
from keras_vit.variants import VARIANTS
from keras_vit.weights.array_file import Entry
from keras_vit.weights.checkpoint import Checkpoint

_ROOT = 64  # channels of a ResNet's first convolution, times the width factor


def read_sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    """Fields of the configuration that the shapes of a checkpoint tell.

    Args:
        checkpoint: The file.

    Returns:
        For a ViT `patch_size`, `width`, `depth`, `mlp_dim`, `channels`, the `stem` of a hybrid,
        and `num_heads` where kernels are split by heads, as in official files. For a BiT
        `stages`, `width_factor` and `channels`. Empty where arrays that tell it are missing.
    """
    if checkpoint.find("root/conv/kernel") is not None:
        return _resnet_sizes(checkpoint)
    width = checkpoint.find("patch_encoder/projection/bias")
    hidden = checkpoint.find("block_0/mlp/hidden/bias")
    kernel = checkpoint.find("patch_encoder/projection/kernel")
    if width is None or hidden is None or kernel is None or len(kernel.shape) != 4:
        return {}
    rows, columns, channels, _ = _ours(checkpoint, kernel)
    sizes = {
        "patch_size": (rows, columns),
        "width": size(width, -1),
        "depth": _count(checkpoint, "block_{}/mlp/hidden/bias", start=0),
        "mlp_dim": size(hidden, -1),
        "channels": channels,
    }
    root = checkpoint.find("stem_root/conv/kernel")
    if root is not None and len(root.shape) == 4:
        stages = _stages(checkpoint, "stem_stage_{}/unit_{}/conv_1/kernel")
        sizes["channels"] = _ours(checkpoint, root)[2]
        factor = max(1, _ours(checkpoint, root)[3] // _ROOT)
        sizes["stem"] = ResNetStem(stages, factor)
    query = checkpoint.find("block_0/attention/qkv/kernel")
    if checkpoint.layout.kind == "npz" and query is not None and len(query.shape) == 3:
        sizes["num_heads"] = query.shape[1]
    return sizes


def guess_variant(checkpoint: Checkpoint) -> str | None:
    """The variant in the table that has these sizes, or `None` where none has."""
    sizes = read_sizes(checkpoint)
    for name, config in VARIANTS.items():
        if sizes and _is_of(config, sizes):
            return name
    return None


def size(entry: Entry | None, axis: int) -> int:
    """Length of an axis of an array, 0 where the array or the axis is not there."""
    return 0 if entry is None or len(entry.shape) < -axis else entry.shape[axis]


def _is_of(config: ViTConfig | ResNetConfig, sizes: dict[str, Any]) -> bool:
    if isinstance(config, ResNetConfig):
        fields = ["stages", "width_factor"]
    else:
        fields = ["patch_size", "width", "depth", "mlp_dim"]
        stem = sizes.get("stem")
        if (stem is None) != (config.stem is None):
            return False
        if stem is not None and config.stem is not None and stem.stages != config.stem.stages:
            return False
    return all(sizes.get(field) == getattr(config, field) for field in fields)


def _resnet_sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    root = checkpoint.find("root/conv/kernel")
    stages = _stages(checkpoint, "stage_{}/unit_{}/conv_1/kernel")
    if root is None or len(root.shape) != 4 or not stages:
        return {}
    *_, channels, filters = _ours(checkpoint, root)
    return {"stages": stages, "width_factor": max(1, filters // _ROOT), "channels": channels}


def _ours(checkpoint: Checkpoint, kernel: Entry) -> tuple[int, ...]:
    """Rows, columns, channels in and channels out of a convolution's kernel."""
    if checkpoint.layout.kind == "npz":
        return kernel.shape
    out, channels, rows, columns = kernel.shape
    return rows, columns, channels, out


def _stages(checkpoint: Checkpoint, path: str) -> tuple[int, ...]:
    """Units in each stage of a ResNet, whose paths have the numbers of stage and unit."""
    counts = (_count(checkpoint, path.format(stage, "{}"), start=1) for stage in itertools.count(1))
    return tuple(itertools.takewhile(bool, counts))


def _count(checkpoint: Checkpoint, path: str, start: int) -> int:
    """How many paths in a row, numbered from `start` on, have an array."""
    numbers = itertools.count(start)
    found = (checkpoint.find(path.format(number)) is not None for number in numbers)
    return sum(itertools.takewhile(bool, found))
