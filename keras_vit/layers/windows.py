"""Windows of patches that attention stays in, for large images."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape, pair
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.layer import Tensor
from keras_vit.layers.saved_as import saved_as


@saved_as("SelfAttention")
@keras.saving.register_keras_serializable("keras_vit", "WindowAttention")
class WindowAttention(SelfAttention):
    """`SelfAttention` in which patches attend to prefix tokens and those of their window alone.

    https://arxiv.org/abs/2203.16527. Each window is a product of its own, in place of a mask over
    all pairs. With `return_attention_scores` there is such a mask.

    Args:
        num_heads: Attention heads, which divide the width.
        grid: Patches along (height, width).
        window_size: Patches along (height, width) of a window. One that is larger than the grid
            has the size of the grid; beyond the grid nothing is attended to.
        num_prefix_tokens: Tokens before the patches. They attend to everything, and every patch
            attends to them.
        **kwargs: As for `SelfAttention`, without `positions`.

    Raises:
        ValueError: As for `SelfAttention`; if the tokens do not fit the grid; for `num_queries`
            and `attention_mask`.
    """

    def __init__(
        self,
        num_heads: int,
        grid: tuple[int, int],
        window_size: int | tuple[int, int],
        num_prefix_tokens: int = 0,
        **kwargs: Any,
    ):
        super().__init__(num_heads, **kwargs)
        self.grid = pair("grid", grid)
        self.window_size = pair("window_size", window_size)
        self.num_prefix_tokens = num_prefix_tokens
        rows, columns = map(min, self.window_size, self.grid)
        self._windows = Windows(self.grid, (rows, columns), num_prefix_tokens)
        if self.positions is not None:
            raise ValueError(
                "Attention in windows has no relative positions. Received: window_size="
                f"{window_size}, positions={self.positions!r}. Leave one of them out."
            )

    def build(
        self,
        tokens_shape: Shape,
        rotation_shape: Shape | None = None,
        attention_mask_shape: Shape | None = None,
    ) -> None:
        if tokens_shape[1] != self.num_prefix_tokens + math.prod(self.grid):
            raise ValueError(
                f"Windows need the grid of the patches. Received: {tokens_shape[1]} tokens, "
                f"grid={self.grid}, num_prefix_tokens={self.num_prefix_tokens}. Set `grid` and "
                "`num_prefix_tokens` to what comes in."
            )
        super().build(tokens_shape, rotation_shape, attention_mask_shape)

    def mask(self, queries: Tensor, keys: Tensor, attention_mask: Any) -> Any:
        if attention_mask is not None or queries.shape[2] != keys.shape[2]:
            raise ValueError(
                f"Windows hold all patches of an image. Received: window_size={self.window_size} "
                "with `attention_mask` or `num_queries`. Leave it out."
            )
        return ~self._windows.apart()[None, None]  # for scores: `attend` does without

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        added: Tensor | None,
        attention_mask: Tensor | None,
        training: bool | None,
    ) -> Tensor:
        windows, prefix = self._windows, self._windows.prefix
        outside = windows.outside()
        if outside is not None:
            patches = outside.shape[1] - prefix
            rows = np.repeat(outside[:, None, None], patches, axis=2)  # ONNX has one a query
            added = ops.cast(ops.convert_to_tensor(np.where(rows, -1e9, 0)), queries.dtype)
            added = ops.tile(added, (ops.shape(queries)[0], 1, 1, 1))  # (B * windows, 1, P, keys)
        inside = windows.split(queries[:, :, prefix:])  # (B * windows, A, patches, d)
        around = windows.around(keys), windows.around(values)
        x = windows.join(super().attend(inside, *around, added, None, training))
        if not prefix:
            return x
        before = super().attend(queries[:, :, :prefix], keys, values, None, None, training)
        return ops.concatenate([before, x], axis=2)  # (B, A, T, d)

    def num_pairs(self, num_queries: int, num_tokens: int) -> int:
        return self._windows.num_pairs


class Windows:
    """Windows on a grid of patches, from its upper left corner on.

    Where windows do not divide the grid, the last ones reach beyond it: they hold zeros there.

    Args:
        grid: Patches along (height, width).
        window_size: Patches along (height, width) of a window.
        num_prefix_tokens: Tokens before the patches. They attend to everything, and every patch
            attends to them.
    """

    def __init__(self, grid: tuple[int, int], window_size: tuple[int, int], num_prefix_tokens: int):
        self.grid = grid
        self.prefix = num_prefix_tokens
        self.size = window_size
        self.counts = (-(-grid[0] // self.size[0]), -(-grid[1] // self.size[1]))
        self.padding = tuple(
            count * side - patches
            for count, side, patches in zip(self.counts, self.size, grid, strict=True)
        )

    @property
    def number(self) -> int:
        """Number of windows of an image."""
        return self.counts[0] * self.counts[1]

    @property
    def num_pairs(self) -> int:
        """Products of a query and a key that are computed for one image and head."""
        inside = self.size[0] * self.size[1]
        tokens = self.prefix + self.grid[0] * self.grid[1]
        return self.number * inside * (inside + self.prefix) + self.prefix * tokens

    def split(self, x: Tensor) -> Tensor:
        """Puts the patches into windows.

        Args:
            x: Float tensor of shape `(B, A, T, d)`, without prefix tokens.

        Returns:
            Float tensor of shape `(B * windows, A, patches of a window, d)`.
        """
        _, num_heads, _, width = x.shape
        (rows, columns), (height, side) = self.counts, self.size
        x = ops.reshape(x, (-1, *self.grid, width))  # (B * A, rows, columns, d)
        if any(self.padding):
            x = ops.pad(x, ((0, 0), (0, self.padding[0]), (0, self.padding[1]), (0, 0)))
        x = ops.reshape(x, (-1, num_heads, rows, height, columns, side * width))
        x = ops.transpose(x, (0, 2, 4, 1, 3, 5))  # (B, rows, columns, A, height, side * d)
        return ops.reshape(x, (-1, num_heads, height * side, width))

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `split`."""
        _, num_heads, _, width = x.shape
        (rows, columns), (height, side) = self.counts, self.size
        x = ops.reshape(x, (-1, rows, columns, num_heads, height, side * width))
        x = ops.transpose(x, (0, 3, 1, 4, 2, 5))  # (B, A, rows, height, columns, side * d)
        x = ops.reshape(x, (-1, num_heads, rows * height, columns * side, width))
        x = x[:, :, : self.grid[0], : self.grid[1]]
        return ops.reshape(x, (-1, num_heads, self.grid[0] * self.grid[1], width))

    def around(self, x: Tensor) -> Tensor:
        """Keys or values `(B, A, T, d)` of every window: prefix tokens, then its patches."""
        inside = self.split(x[:, :, self.prefix :])
        if not self.prefix:
            return inside
        before = ops.repeat(x[:, :, : self.prefix], self.number, axis=0)
        return ops.concatenate([before, inside], axis=2)

    def outside(self) -> np.ndarray | None:
        """Keys of every window that are beyond the grid, `(windows, prefix + patches)` booleans."""
        if not any(self.padding):
            return None
        rows, columns = (
            (np.arange(count * side) >= patches).reshape(-1, side)
            for count, side, patches in zip(self.counts, self.size, self.grid, strict=True)
        )
        beyond = rows[:, None, :, None] | columns[None, :, None, :]
        return np.pad(beyond.reshape(self.number, -1), ((0, 0), (self.prefix, 0)))

    def apart(self) -> np.ndarray:
        """Tokens that do not attend to each other, booleans of shape `(T, T)`."""
        rows, columns = np.mgrid[: self.grid[0], : self.grid[1]].reshape(2, -1)
        window = rows // self.size[0] * self.counts[1] + columns // self.size[1]
        return np.pad(window[:, None] != window[None], ((self.prefix, 0), (self.prefix, 0)))
