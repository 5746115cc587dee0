"""From a checkpoint to the variables of a model: everything is checked, then all is assigned."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from keras_vit.errors import CheckpointMismatchError
from keras_vit.resize import resize_patch_kernel, resize_positions
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.inspection import inspect_file
from keras_vit.weights.matching import PATCHES, POSITIONS, Plan, explain, make_plan

__all__ = ["CheckpointMismatchError", "LoadReport", "inspect_file", "load_weights"]

_TOKENS = ("class_token/token", "distillation_token/token", "registers/token")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What became of every array of a checkpoint and every weight of the model.

    Args:
        path: The file.
        layout: Name of its layout.
        loaded: Paths of our variables that came from the file, resized ones too.
        resized: What was done to those that were resized or adapted, by path.
        fresh: Paths of our variables that the file had nothing for: heads of other classes.
        left_out: Names in the file that were not needed.
    """

    path: str
    layout: str
    loaded: tuple[str, ...]
    resized: dict[str, str]
    fresh: tuple[str, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} weights from {self.path} ({self.layout} layout)"]
        lines += [f"resized: {path}, {what}" for path, what in self.resized.items()]
        if self.fresh:
            lines.append(f"started fresh: {', '.join(self.fresh)}")
        if self.left_out:
            lines.append(f"left out: {_some(self.left_out)}")
        return "\n".join(lines)


def load_weights(
    model: Any,
    path: str | os.PathLike,
    grid: tuple[int, int] | None = None,
    resize_patches: bool = False,
) -> LoadReport:
    """Loads a published checkpoint into a model, all of it or nothing.

    Positions are resized to the model's grid as the file's source does it, and the patch kernel
    adapts to the model's number of channels. A head of other classes stays out: the model's then
    starts at zero.

    Args:
        model: A model of `build_vit`, `build_resnet` or `create_model`.
        path: An `.npz` or `.safetensors` file in a layout of the official projects, timm or
            transformers.
        grid: Patches along (height, width) that the file's positions are for, where they are not
            square.
        resize_patches: Whether the file is used as one of flexible patches: a patch kernel of
            another size is carried over to the model's by the pseudo-inverse resize, positions
            are resized as FlexiViT does. Otherwise another size is an error, for it is mostly a
            wrong file.

    Returns:
        A `LoadReport`, which the model keeps as `model.load_report`.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file is damaged, pickled, or of no known layout.
        CheckpointMismatchError: If it does not fit the model; lists all that does not.

    Example:

    >>> model = keras_vit.create_model("vit_b16", classes=10)
    >>> report = keras_vit.load_weights(model, "ViT-B_16.npz")  # doctest: +SKIP
    """
    with open_checkpoint(path) as checkpoint:
        plan = make_plan(model, checkpoint, grid, resize_patches)
        if plan.problems:
            raise CheckpointMismatchError(explain(plan))
        arrays = {name: _read(plan, name) for name in plan.parts}
        _place_tokens(plan, arrays)
        _check_finite(plan, arrays)
    for name, variable in plan.fresh.items():
        variable.assign(_fresh_value(name, variable, model.config))
    for name in list(arrays):
        plan.parts[name][0].assign(arrays.pop(name))
    report = LoadReport(
        path=os.fspath(path),
        layout=checkpoint.layout.name,
        loaded=tuple(plan.parts),
        resized=plan.resized,
        fresh=tuple(plan.fresh),
        left_out=tuple(plan.left_out) + checkpoint.others,
    )
    model.load_report = report
    return report


def _read(plan: Plan, path: str) -> np.ndarray:
    """A variable's value from the file, resized where it must be."""
    variable, rule, keys, shapes = plan.parts[path]
    arrays = [
        plan.checkpoint.read(key).reshape(shape) for key, shape in zip(keys, shapes, strict=True)
    ]
    array = rule.to_ours(arrays)
    if path == PATCHES and path in plan.resized:
        array = resize_patch_kernel(
            array, variable.shape[:2], plan.checkpoint.layout.resize_patches
        )
        array = adapt_channels(array, variable.shape[2])
    return array


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """A patch kernel for another number of channels.

    For one channel the kernels of all are summed, so that a grey image gives what it gives as a
    colour image. For more they are repeated and scaled to keep the size of the output.

    Args:
        kernel: float array of shape `(rows, columns, C, D)`.
        channels: Wanted number of channels.

    Returns:
        float32 array of shape `(rows, columns, channels, D)`.
    """
    old = kernel.shape[2]
    if old == channels:
        return kernel
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    kernel = np.tile(kernel, (1, 1, -(-channels // old), 1))[:, :, :channels]
    return (kernel * (old / channels)).astype("float32")


def _place_tokens(plan: Plan, arrays: dict[str, np.ndarray]) -> None:
    """Brings positions to the model's grid, and rows of tokens to where the model has them."""
    if plan.places is None or POSITIONS not in arrays:
        return
    prefix, grid = plan.places
    config = plan.model.config
    table = arrays[POSITIONS]  # (1, prefix + N, D)
    rows, cells = table[:, :prefix], table[:, prefix:]
    wanted = config.num_class_tokens if config.position_on_class_token else 0
    if prefix > wanted:  # the sum of token and place is what counts
        _add_rows(plan, arrays, rows[:, wanted:], wanted)
        rows = rows[:, :wanted]
    elif prefix < wanted:
        rows = np.zeros((1, wanted, table.shape[-1]), "float32")
        plan.resized.setdefault(POSITIONS, "zero rows for the class token")
    if grid != config.grid:
        cells = resize_positions(cells, grid, config.grid, plan.resize_method)
    arrays[POSITIONS] = np.concatenate([rows, cells], axis=1) if wanted else cells


def _add_rows(plan: Plan, arrays, rows: np.ndarray, start: int) -> None:
    """Adds the places of tokens, the first of them token number `start`, to the tokens."""
    number = 0
    for path in _TOKENS:
        if path not in arrays:
            continue
        count = arrays[path].shape[1]
        first = max(number, start)
        if first < number + count:
            token = arrays[path].copy()
            token[:, first - number :] += rows[:, first - start : number + count - start]
            arrays[path] = token
            plan.resized[path] = "plus its row of the position embedding"
        number += count


def _check_finite(plan: Plan, arrays: dict[str, np.ndarray]) -> None:
    """A sum or an interpolation of finite values may still overflow."""
    for path in plan.resized:
        if not np.isfinite(arrays[path]).all():
            raise CheckpointMismatchError(
                f"{path} is not finite after it was resized: the values in "
                f"{plan.checkpoint.file.path} are too large. Fetch the file again."
            )


def _fresh_value(path: str, variable: Any, config: Any) -> np.ndarray:
    """The start of a weight of the head: zero, as in the official code."""
    if path.startswith("pre_logits/kernel"):
        return variable.numpy()
    bias = config.head_bias if path.startswith("head") and path.endswith("bias") else 0.0
    return np.full(variable.shape, bias, "float32")


def _some(names: tuple[str, ...]) -> str:
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest
