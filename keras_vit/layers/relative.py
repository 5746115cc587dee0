"""Relative positions of two tokens, which attention adds to its logits."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import pair
from keras_vit.layers.layer import Tensor
from keras_vit.resize import num_biases


@dataclasses.dataclass(frozen=True)
class Positions:
    """Objects that Keras saves by their fields."""

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**config)


@dataclasses.dataclass(frozen=True)
@keras.saving.register_keras_serializable("keras_vit")
class RelativeKeys(Positions):
    """Learned embeddings of the distance between two tokens, added to the keys.

    Appendix D.4 of https://arxiv.org/abs/2010.11929. An object for `positions` of `SelfAttention`,
    which calls its three methods. It has no state: the weights are those of the layer.
    """

    def build(self, attention: Any, num_tokens: int, num_heads: int, d: int) -> None:
        """Adds the weights to an attention layer for `num_tokens` and heads of `d` channels."""
        del num_heads
        shape, normal = (d, 2 * num_tokens - 1), keras.initializers.RandomNormal(stddev=0.02)
        attention.relative_keys = attention.add_weight(shape, normal, name="relative_keys")

    def logits(self, attention: Any, queries: Tensor) -> Tensor:
        """Products `(B, A, Q, T)` of the first queries `(B, A, Q, d)` with the embeddings."""
        _, num_heads, num_queries, head_dim = queries.shape
        keys = ops.cast(attention.relative_keys, queries.dtype) * head_dim**-0.5
        x = ops.matmul(ops.reshape(queries, (-1, head_dim)), keys)
        return _shift_rows(ops.reshape(x, (-1, num_heads, num_queries, keys.shape[1])))

    def count_macs(self, num_queries: int, num_tokens: int, num_heads: int, d: int) -> int:
        """Multiply-accumulates of `logits` for one image."""
        return num_queries * num_heads * d * (2 * num_tokens - 1)


@dataclasses.dataclass(frozen=True)
@keras.saving.register_keras_serializable("keras_vit")
class RelativeBias(Positions):
    """Learned biases of every head by the rows and columns between two patches, as in BEiT.

    https://arxiv.org/abs/2106.08254. An object for `positions` of `SelfAttention`.

    Args:
        grid: Patches along (height, width).
        class_token: Whether one token precedes the patches.
    """

    grid: tuple[int, int]
    class_token: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", pair("grid", self.grid))

    def build(self, attention: Any, num_tokens: int, num_heads: int, d: int) -> None:
        """Adds the weights to an attention layer: see `RelativeKeys.build`.

        Raises:
            ValueError: If the number of tokens is not that of the grid.
        """
        del d
        expected = self.grid[0] * self.grid[1] + self.class_token
        if num_tokens != expected:
            raise ValueError(
                f"Position biases of a grid of {self.grid} need {expected} tokens, with "
                f"class_token={self.class_token}. Received: {num_tokens} tokens. Set `grid` and "
                "`class_token` to what comes in."
            )
        shape = (num_biases(self.grid, self.class_token), num_heads)
        attention.bias_table = attention.add_weight(  # zeros as in BEiT
            shape, "zeros", autocast=False, name="position_bias"
        )

    def logits(self, attention: Any, queries: Tensor) -> Tensor:
        """Biases `(1, A, Q, T)` for the first queries `(B, A, Q, d)`."""
        # Reshaped to what it is, a variable gets a dense gradient; it is a sum in float32.
        table = ops.reshape(attention.bias_table, attention.bias_table.shape)
        index = bias_index(self.grid, self.class_token)[: queries.shape[2]]
        biases = ops.transpose(ops.take(table, index, axis=0), (2, 0, 1))
        return ops.cast(biases[None], queries.dtype)

    def count_macs(self, num_queries: int, num_tokens: int, num_heads: int, d: int) -> int:
        """Multiply-accumulates of `logits`."""
        return 0


@lru_cache(maxsize=64)
def bias_index(grid: tuple[int, int], class_token: bool) -> np.ndarray:
    """Row of the table of position biases for every query and key, as in BEiT.

    Args:
        grid: Patches along (height, width).
        class_token: Whether a token precedes the patches.

    Returns:
        int32 array of shape `(T, T)`. With a class token the last three rows of the table are for
        its queries, for its keys, and for itself.
    """
    rows, columns = np.mgrid[: grid[0], : grid[1]].reshape(2, -1)
    away = [axis[:, None] - axis[None] for axis in (rows, columns)]  # (N, N) each
    index = (away[0] + grid[0] - 1) * (2 * grid[1] - 1) + away[1] + grid[1] - 1
    if class_token:
        count = num_biases(grid, class_token)
        index = np.pad(index, ((1, 0), (1, 0)))
        index[0], index[:, 0], index[0, 0] = count - 3, count - 2, count - 1
    return index.astype("int32")


def _shift_rows(x: Tensor) -> Tensor:
    """From distance to key: element `(q, k)` of the result is `x[q, k - q + T - 1]`.

    Laid out flat with one column more, row `q` begins where it is needed in rows of `2 T - 1`.
    """
    _, num_heads, num_queries, distances = x.shape
    num_tokens = (distances + 1) // 2
    x = ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, 1)))  # (B, A, Q, 2 T)
    x = ops.reshape(x, (-1, num_heads, num_queries * (distances + 1)))
    x = ops.pad(x, ((0, 0), (0, 0), (0, distances - num_queries)))
    x = ops.reshape(x, (-1, num_heads, num_queries + 1, distances))
    return x[:, :, :num_queries, num_tokens - 1 :]  # (B, A, Q, T)
