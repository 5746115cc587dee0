"""Rotary position embedding of queries and keys."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import pair
from keras_vit.config import RotaryPositions
from keras_vit.layers.any_size import grid_of, is_known
from keras_vit.layers.layer import Layer, Tensor

Rotation = tuple[Tensor, Tensor]  # cosines and sines


@keras.saving.register_keras_serializable("keras_vit")
class RotaryTable(Layer):
    """Cosines and sines of rotary positions (https://arxiv.org/abs/2104.09864), for all blocks.

    The model makes them once and hands them to every block as `rotation`. Without weights.

    Args:
        rope: The option `rope` of the blocks, a `RotaryPositions` or its fields.
        head_dim: Dimension of an attention head, a multiple of 4.
        grid: Patches along (height, width); `None` takes those of each call, for images of any
            size.
        num_prefix_tokens: Tokens before the patches, registers last, which are not turned.
        num_registers: How many of these are registers, which turn where `rope` has a
            `register_base`.

    Call arguments:
        inputs: Any tensor of the model; where `grid` is `None`, feature maps of shape
            `(B, rows, columns, ...)`.

    Returns:
        Two float32 tensors of shape `(T, head_dim / 2)`, without a batch.

    Raises:
        ValueError: If registers form no square grid.
    """

    def __init__(
        self,
        rope: RotaryPositions | dict[str, Any],
        head_dim: int,
        grid: tuple[int, int] | None = None,
        num_prefix_tokens: int = 0,
        num_registers: int = 0,
        **kwargs: Any,
    ):
        super().__init__(autocast=False, **kwargs)
        self.rope = RotaryPositions(**rope) if isinstance(rope, dict) else rope
        self.rope.check_registers(num_registers)
        self.head_dim = head_dim
        self.grid = None if grid is None else pair("grid", grid)
        self.num_prefix_tokens = num_prefix_tokens
        self.num_registers = num_registers

    def call(self, inputs: Tensor) -> Rotation:
        grid = self.grid or grid_of(inputs)
        xp: Any = np if is_known(grid) else ops  # constants of the graph, or tensors
        before = self._prefix_angles()
        angles = rotary_angles(self.rope, grid, self.head_dim, xp)
        angles = xp.concatenate([before, angles], axis=0)  # (T, head_dim / 2)
        return ops.convert_to_tensor(xp.cos(angles)), ops.convert_to_tensor(xp.sin(angles))

    def _prefix_angles(self) -> np.ndarray:
        """Angles of the tokens before the patches: 0, except for rotated registers."""
        angles = np.zeros((self.num_prefix_tokens, self.head_dim // 2), "float32")
        base = self.rope.register_base
        if base is not None:
            side = math.isqrt(self.num_registers)
            own = dataclasses.replace(self.rope, base=base, reference_grid=None)
            registers = rotary_angles(own, (side, side), self.head_dim)
            angles[self.num_prefix_tokens - self.num_registers :] = registers
        return angles

    def compute_output_spec(self, inputs: Tensor) -> Rotation:
        patches = inputs.shape[1:3] if self.grid is None else self.grid
        known = None not in patches
        num_tokens = self.num_prefix_tokens + math.prod(patches) if known else None
        shape = (num_tokens, self.head_dim // 2)
        return keras.KerasTensor(shape, "float32"), keras.KerasTensor(shape, "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rope": dataclasses.asdict(self.rope)}


def rotary_angles(rope: RotaryPositions, grid: tuple[Any, Any], head_dim: int, xp: Any = np) -> Any:
    """Angle of every patch and pair of channels, computed in float32 as in the projects.

    Args:
        rope: What the angles are.
        grid: Patches along (height, width).
        head_dim: Dimension of an attention head, a multiple of 4.
        xp: `numpy`, or `keras.ops` where the grid is of tensors.

    Returns:
        float32 array or tensor of shape `(N, head_dim / 2)`.
    """
    exponents = np.arange(head_dim // 4, dtype="float32") / np.float32(head_dim // 4)
    periods = np.float32(rope.base) ** exponents
    rows, columns = (_coordinates(rope, size, axis, xp) for axis, size in enumerate(grid))
    places = xp.stack(xp.meshgrid(rows, columns, indexing="ij"), -1)
    places = xp.reshape(places, (-1, 2))  # (N, 2)
    if rope.order == "wh":
        places = xp.flip(places, 1)
    turn = np.float32(2 * np.pi if rope.coordinates == "centered" else 1)
    angles = turn * places[:, :, None] / periods  # (N, 2, head_dim / 4)
    return xp.reshape(angles, (-1, head_dim // 2))


def _coordinates(rope: RotaryPositions, size: Any, axis: int, xp: Any) -> Any:
    """Position of the patches along one axis, float32 of shape `(size,)`."""
    is_array = xp is np
    places = np.arange(size, dtype="float32") if is_array else xp.cast(xp.arange(size), "float32")
    count = np.float32(size) if is_array else xp.cast(size, "float32")
    if rope.coordinates == "centered":
        return 2 * ((places + np.float32(0.5)) / count) - 1
    places = places + np.float32(rope.offset)
    if rope.reference_grid is None:
        return places
    return places / count * np.float32(rope.reference_grid[axis])


def rotate(x: Tensor, rotation: Rotation, interleaved: bool) -> Tensor:
    """Turns every pair of channels by the angle of its token, in float32.

    Prefix tokens are multiplied by 1 and stay as they are. The channels of interleaved pairs come
    out as two halves: products of queries and keys both rotated do not depend on the order.

    Args:
        x: Queries or keys, float tensor of shape `(B, A, T, d)`.
        rotation: Two float32 tensors of shape `(T, d / 2)`, see `RotaryTable`.
        interleaved: Whether neighbouring channels make a pair, or channels half a head apart.

    Returns:
        Tensor of the shape and type of `x`.
    """
    rotated = ops.cast(x, "float32")
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]  # (B, A, T, d / 2) each
    else:
        first, second = ops.split(rotated, 2, axis=-1)
    cosine, sine = rotation
    halves = [first * cosine - second * sine, second * cosine + first * sine]
    return ops.cast(ops.concatenate(halves, axis=-1), x.dtype)
