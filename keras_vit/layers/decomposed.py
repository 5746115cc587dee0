"""Attention of Segment Anything: relative positions by row and by column, and padded windows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape, pair
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Tensor
from keras_vit.layers.relative import Positions
from keras_vit.layers.windows import Windows


@dataclasses.dataclass(frozen=True)
@keras.saving.register_keras_serializable("keras_vit")
class DecomposedPositions(Positions):
    """Learned embeddings of the rows and of the columns between two patches, times the query.

    Eq. 4 and 5 in https://arxiv.org/abs/2112.01526, as ViTDet and Segment Anything use them. An
    object for `positions` of `SelfAttention`, whose tokens are the patches of a grid.

    Args:
        grid: Patches along (height, width).
    """

    grid: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", pair("grid", self.grid))

    def build(self, attention: Any, num_tokens: int, num_heads: int, d: int) -> None:
        """Adds the weights to an attention layer: see `RelativeKeys.build`.

        Raises:
            ValueError: If the number of tokens is not that of the grid.
        """
        del num_heads
        if num_tokens != math.prod(self.grid):
            raise ValueError(
                f"Positions of a grid of {self.grid} need {math.prod(self.grid)} tokens. Received: "
                f"{num_tokens} tokens. Set `grid` to what comes in."
            )
        for name, side in zip(("row_positions", "column_positions"), self.grid, strict=True):
            weight = attention.add_weight(name=name, shape=(2 * side - 1, d), initializer="zeros")
            setattr(attention, name, weight)

    def logits(self, attention: Any, queries: Tensor) -> Tensor:
        """Products `(B, A, T, T)` of the queries `(B, A, T, d)` with both embeddings, summed."""
        (rows, columns), (_, num_heads, num_tokens, d) = self.grid, queries.shape
        x = ops.reshape(queries, (-1, rows, columns, d))  # (B * A, rows, columns, d)
        by_row = ops.matmul(x, _by_distance(attention.row_positions, rows, x.dtype))
        x = ops.transpose(x, (0, 2, 1, 3))
        by_column = ops.matmul(x, _by_distance(attention.column_positions, columns, x.dtype))
        by_column = ops.transpose(by_column, (0, 2, 1, 3))  # (B * A, rows, columns, columns)
        x = ops.reshape(by_row, (-1, num_tokens, rows, 1)) + ops.reshape(
            by_column, (-1, num_tokens, 1, columns)
        )
        return ops.reshape(x, (-1, num_heads, num_tokens, num_tokens))

    def count_macs(self, num_queries: int, num_tokens: int, num_heads: int, d: int) -> int:
        """Multiply-accumulates of `logits` for one image."""
        return num_queries * num_heads * d * sum(self.grid)


def _by_distance(table: Tensor, side: int, dtype: str) -> Tensor:
    """Embeddings of shape `(side, d, side)`: for every query the matrix of all keys."""
    index = np.arange(side)[:, None] - np.arange(side) + side - 1
    return ops.transpose(ops.take(ops.cast(table, dtype), index, axis=0), (0, 2, 1))


@keras.saving.register_keras_serializable("keras_vit")
class PaddedWindowAttention(SelfAttention):
    """`SelfAttention` in windows of a grid of patches that is filled up with zeros.

    As in ViTDet and Segment Anything (https://arxiv.org/abs/2304.02643), and other than in
    `WindowAttention`, patches attend to the zeros in their window, whose keys and values are the
    biases, and a window may be larger than the grid.

    Args:
        num_heads: Attention heads, which divide the width.
        grid: Patches along (height, width).
        window_size: Patches along (height, width) of a window.
        **kwargs: As for `SelfAttention`; `positions` are those in a window.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`, the patches row by row.
        training: Whether dropout is on.

    Returns:
        Float tensor of shape `(B, T, D)`.

    Raises:
        ValueError: As for `SelfAttention`; if the tokens do not fit the grid; for other
            call arguments of `SelfAttention`: zeros have a part in the attention weights.
    """

    def __init__(
        self,
        num_heads: int,
        grid: tuple[int, int],
        window_size: int | tuple[int, int],
        **kwargs: Any,
    ):
        super().__init__(num_heads, **kwargs)
        self.grid = pair("grid", grid)
        self.window_size = pair("window_size", window_size)
        self._windows = Windows(self.grid, self.window_size, 0)

    def build(self, tokens_shape: Shape, *_: Any, **__: Any) -> None:
        if tokens_shape[1] != math.prod(self.grid):
            raise ValueError(
                f"Windows need the grid of the patches. Received: {tokens_shape[1]} tokens, "
                f"grid={self.grid}. Set `grid` to what comes in."
            )
        super().build((None, math.prod(self.window_size), tokens_shape[-1]))

    def call(self, tokens: Tensor, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        if kwargs.pop("return_attention_scores", False) or args or kwargs:
            raise ValueError(
                "Windows that are filled up with zeros have no attention weights between patches "
                f"alone, rotations or masks. Received: a grid of {self.grid} in windows of "
                f"{self.window_size}. Look at a block without windows."
            )
        x = self._windows.split(ops.expand_dims(tokens, 1))  # (B * windows, 1, patches, D)
        x = super().call(ops.squeeze(x, 1), training=training)
        return ops.squeeze(self._windows.join(ops.expand_dims(x, 1)), 1)

    def count_costs(self, tokens_shape: Shape, *_: Shape, num_queries: int | None = None) -> Cost:
        """Cost for one image: that of all windows."""
        one = super().count_costs((None, math.prod(self.window_size), tokens_shape[-1]))
        return Cost(self._windows.number * one.macs, self._windows.number * one.activations)
