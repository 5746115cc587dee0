"""Windows of patches that attention stays in, for large images."""

from __future__ import annotations

from functools import lru_cache

import keras
import numpy as np
from keras import ops


class Windows:
    """Windows on a grid of patches, from its upper left corner on.

    Where windows do not divide the grid, the last ones reach beyond it: what they hold there is not
    attended to. A window that is larger than the grid has the size of the grid.

    Args:
        grid: Patches along (height, width).
        window_size: Patches along (height, width) of a window.
        num_prefix_tokens: Tokens before the patches. They attend to everything, and every patch
            attends to them.
    """

    def __init__(self, grid: tuple[int, int], window_size: tuple[int, int], num_prefix_tokens: int):
        self.grid = grid
        self.prefix = num_prefix_tokens
        self.size = (min(window_size[0], grid[0]), min(window_size[1], grid[1]))
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

    def split(self, x: keras.KerasTensor) -> keras.KerasTensor:
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

    def join(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """The inverse of `split`."""
        _, num_heads, _, width = x.shape
        (rows, columns), (height, side) = self.counts, self.size
        x = ops.reshape(x, (-1, rows, columns, num_heads, height, side * width))
        x = ops.transpose(x, (0, 3, 1, 4, 2, 5))  # (B, A, rows, height, columns, side * d)
        x = ops.reshape(x, (-1, num_heads, rows * height, columns * side, width))
        x = x[:, :, : self.grid[0], : self.grid[1]]
        return ops.reshape(x, (-1, num_heads, self.grid[0] * self.grid[1], width))

    def around(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Keys or values `(B, A, T, d)` of every window: prefix tokens, then its patches."""
        inside = self.split(x[:, :, self.prefix :])
        if not self.prefix:
            return inside
        before = ops.repeat(x[:, :, : self.prefix], self.number, axis=0)
        return ops.concatenate([before, inside], axis=2)

    def outside(self) -> np.ndarray | None:
        """Keys of every window that are beyond the grid, `(windows, prefix + patches)` booleans."""
        return _outside(self.grid, self.size, self.prefix) if any(self.padding) else None

    def apart(self) -> np.ndarray:
        """Tokens that do not attend to each other, booleans of shape `(T, T)`."""
        rows, columns = np.mgrid[: self.grid[0], : self.grid[1]].reshape(2, -1)
        window = rows // self.size[0] * self.counts[1] + columns // self.size[1]
        return np.pad(window[:, None] != window[None], ((self.prefix, 0), (self.prefix, 0)))


@lru_cache(maxsize=64)
def _outside(grid: tuple[int, int], size: tuple[int, int], prefix: int) -> np.ndarray:
    rows, columns = (
        (np.arange(-(-patches // side) * side) >= patches).reshape(-1, side)
        for patches, side in zip(grid, size, strict=True)
    )
    beyond = rows[:, None, :, None] | columns[None, :, None, :]
    beyond = beyond.reshape(-1, size[0] * size[1])
    return np.pad(beyond, ((0, 0), (prefix, 0)))
