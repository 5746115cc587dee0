"""Self-attention by relative positions on a grid, of Cordonnier et al."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape, check_choice, check_positive, check_rate, pair
from keras_vit.config import GRID_ATTENTIONS
from keras_vit.layers.attention_kernels import merge_heads, split_heads
from keras_vit.layers.costs import Cost
from keras_vit.layers.dense import build_dense
from keras_vit.layers.layer import Layer, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class GridAttention(Layer):
    """Multi-head self-attention whose weights come from rows and columns between two patches.

    Section 4 of https://arxiv.org/abs/1911.03584 and the code published with it. Every head takes
    means of the whole tokens; one product of all heads comes after, and a second one of the output.

    Args:
        num_heads: Attention heads.
        grid: Patches along (height, width).
        kind: `"quadratic"` (each head attends around a learned offset, with a learned spread),
            `"offsets"` (learned embeddings of the rows and of the columns between two patches, and
            a score of each for every head), or `"relative_2d"` (queries meet such embeddings, half
            of them for rows and half for columns, and keys).
        head_dim: Dimension of queries and keys, for `"relative_2d"`; `None` takes the width.
        dropout_rate: Dropout after the output product, in [0, 1).
        attention_dropout_rate: Dropout on the attention weights, in [0, 1).

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`, the patches row by row.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        Float tensor of shape `(B, T, D)`; with `return_attention_scores`, also one of shape
        `(B, A, T, T)` whose rows sum to 1.
    """

    def __init__(
        self,
        num_heads: int,
        grid: tuple[int, int],
        kind: str = "relative_2d",
        head_dim: int | None = None,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("num_heads", num_heads)
        check_choice("kind", kind, GRID_ATTENTIONS)
        check_rate("dropout_rate", dropout_rate)
        check_rate("attention_dropout_rate", attention_dropout_rate)
        self.num_heads = num_heads
        self.grid = pair("grid", grid)
        self.kind = kind
        self.head_dim = head_dim
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate

    def build(self, tokens_shape: Shape) -> None:
        _, num_tokens, width = tokens_shape
        rows, columns = self.grid
        if num_tokens != rows * columns:
            raise ValueError(
                f"A grid of {rows} x {columns} patches makes {rows * columns} tokens. Received: "
                f"{num_tokens} tokens. Leave class tokens out, or set `grid` to what comes in."
            )
        heads, size = self.num_heads, width
        normal = keras.initializers.RandomNormal(stddev=1.0)  # PyTorch's start of embeddings
        if self.kind == "quadratic":
            centers = keras.initializers.RandomNormal(stddev=2.0)  # as in the published code
            self.centers = self.add_weight(name="centers", shape=(heads, 2), initializer=centers)
            spreads = keras.initializers.RandomNormal(mean=1.0, stddev=0.01)
            self.spreads = self.add_weight(name="spreads", shape=(heads,), initializer=spreads)
        if self.kind == "relative_2d":
            size = self.head_dim or width
            self.queries_keys = build_dense(self, "queries_keys", width, 2 * heads * size)
            size //= 2
        if self.kind != "quadratic":
            for name, count in (("rows", rows), ("columns", columns)):
                shape = (2 * count - 1, size)
                setattr(self, name, self.add_weight(name=name, shape=shape, initializer=normal))
        if self.kind == "offsets":
            self.row_scores = self.add_weight(name="row_scores", shape=(size, heads))
            self.column_scores = self.add_weight(name="column_scores", shape=(size, heads))
        self.value = build_dense(self, "value", heads * width, width)
        self.output_projection = build_dense(self, "output", width, width)
        policy = self.dtype_policy
        self.attention_dropout = keras.layers.Dropout(self.attention_dropout_rate, dtype=policy)
        self.dropout = keras.layers.Dropout(self.dropout_rate, dtype=policy)
        # From patch to patch: rows and columns between them.
        place = np.stack(np.divmod(np.arange(num_tokens), columns), axis=-1)  # (T, 2)
        self._offsets = place[None] - place[:, None]  # (T, T, 2)

    def call(
        self, tokens: Tensor, return_attention_scores: bool = False, training: bool | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        _, num_tokens, width = tokens.shape
        logits = ops.cast(self._logits(tokens), "float32")  # (B or 1, A, T, T)
        scores = ops.cast(ops.softmax(logits, axis=-1), tokens.dtype)
        weights = self.attention_dropout(scores, training=training)
        x = merge_heads(ops.matmul(weights, tokens[:, None]))  # (B * T, A * D)
        x = self.output_projection(self.value(x))
        x = self.dropout(ops.reshape(x, (-1, num_tokens, width)), training=training)
        if not return_attention_scores:
            return x
        shape = (ops.shape(tokens)[0], self.num_heads, num_tokens, num_tokens)
        return x, ops.broadcast_to(scores, shape)

    def _logits(self, tokens: Tensor) -> Tensor:
        if self.kind == "quadratic":
            away = self._offsets.astype("float32") - self.centers[:, None, None]  # (A, T, T, 2)
            square = ops.sum(ops.square(away), axis=-1)
            return (-0.5 * ops.square(self.spreads)[:, None, None] * square)[None]
        # Reshaped to what they are, variables get dense gradients.
        tables = [
            ops.cast(ops.reshape(x, x.shape), tokens.dtype) for x in (self.rows, self.columns)
        ]
        if self.kind == "offsets":
            kernels = (ops.cast(x, tokens.dtype) for x in (self.row_scores, self.column_scores))
            scores = [ops.matmul(x, kernel) for x, kernel in zip(tables, kernels, strict=True)]
            logits = sum(ops.take(scores[i], self._indices(i), axis=0) for i in range(2))
            return ops.transpose(logits, (2, 0, 1))[None]  # (1, A, T, T)
        _, num_tokens, width = tokens.shape
        x = self.queries_keys(ops.reshape(tokens, (-1, width)))
        queries, keys = (split_heads(p, num_tokens, self.num_heads) for p in ops.split(x, 2, -1))
        queries = queries * queries.shape[-1] ** -0.5  # (B, A, T, d)
        logits = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2)))
        half, columns = tables[0].shape[-1], self.grid[1]
        sides = (slice(None, None, columns), slice(columns))  # a patch of each row, and column
        for i, part in enumerate((queries[..., :half], queries[..., half:])):
            between = self._indices(i)[:, sides[i]]
            near = ops.take(tables[i], between, axis=0)  # (T, rows or columns, d / 2)
            # For each patch the product of its queries, of all images and heads, with its rows.
            part = ops.reshape(ops.transpose(part, (2, 0, 1, 3)), (num_tokens, -1, half))
            products = ops.matmul(part, ops.transpose(near, (0, 2, 1)))  # (T, B * A, k)
            products = ops.reshape(products, (num_tokens, -1, self.num_heads, near.shape[1]))
            products = ops.transpose(products, (1, 2, 0, 3))  # (B, A, T, k)
            products = ops.repeat(products, columns, axis=-1) if i == 0 else ops.tile(
                products, (1, 1, 1, self.grid[0]))  # fmt: skip
            logits = logits + products
        return logits

    def _indices(self, axis: int) -> np.ndarray:
        """Row of the table of an axis, for every two patches: integers of shape `(T, T)`."""
        return self._offsets[..., axis] + self.grid[axis] - 1

    def count_costs(self, tokens_shape: Shape) -> Cost:
        """Cost for one image."""
        _, T, D = tokens_shape
        A, sides = self.num_heads, sum(self.grid)
        macs = A * T * T * D + T * A * D * D + T * D * D
        if self.kind == "offsets":
            macs += (2 * sides - 2) * D * A
        if self.kind == "relative_2d":
            d = self.head_dim or D
            macs += 2 * T * D * A * d + A * T * T * d + A * T * sides * d // 2
        kept = 4 * T * A * (self.head_dim or D // A) + A * T * D + 2 * A * T * T
        if self.dropout_rate:
            kept += 2 * T * D  # the mask, and masked values
        if self.attention_dropout_rate:
            kept += 2 * A * T * T
        return Cost(macs, kept)
