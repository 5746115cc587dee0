"""Queries that predict masks: their product with a feature map, and masked attention."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, pair
from keras_vit.layers.any_size import grid_of, resampling
from keras_vit.layers.costs import Cost
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Layer, Tensor

MASKS, CLASSES = "masks_queries_logits", "class_queries_logits"  # outputs, as in transformers
_POWER = 0.9  # of the fall, `poly_power` in github.com/tue-mps/eomt


@keras.saving.register_keras_serializable("keras_vit")
class MaskLogits(Layer):
    """Masks of queries: the product of each query with every position of a feature map.

    https://arxiv.org/abs/2107.06278, section 3.3.

    Call arguments:
        queries: Float tensor of shape `(B, Q, D)`.
        maps: Float tensor of shape `(B, rows, columns, D)`.

    Returns:
        Float tensor of shape `(B, Q, rows, columns)`.

    Raises:
        ValueError: If queries and map have other channels.
    """

    def build(self, queries_shape: Shape, maps_shape: Shape) -> None:
        if queries_shape[-1] != maps_shape[-1]:
            raise ValueError(
                "Queries and feature map must have the same channels. Received: "
                f"{queries_shape[-1]} and {maps_shape[-1]}."
            )

    def call(self, queries: Tensor, maps: Tensor) -> Tensor:
        count, grid = queries.shape[1], grid_of(maps)
        maps = ops.reshape(maps, (-1, grid[0] * grid[1], maps.shape[-1]))
        x = ops.matmul(queries, ops.transpose(maps, (0, 2, 1)))  # (B, Q, rows * columns)
        return ops.reshape(x, (-1, count, *grid))

    def count_costs(self, queries_shape: Shape, maps_shape: Shape) -> Cost:
        """Cost for one image."""
        return Cost(queries_shape[1] * maps_shape[1] * maps_shape[2] * maps_shape[3])


@keras.saving.register_keras_serializable("keras_vit")
class QueryMask(Layer):
    """Attention mask of queries, which attend to the patches inside their predicted masks.

    Masked attention of https://arxiv.org/abs/2112.01527, and its annealing in training of
    https://arxiv.org/abs/2503.19108, section 3.3: each query is masked with a probability that
    falls from 1 to 0. The layer counts training steps.

    Args:
        num_tokens: All tokens `T`, the queries first and the patches last.
        grid: Patches along (height, width).
        annealing: Training steps of the beginning and the end of the fall; `None` always masks.

    Call arguments:
        mask_logits: Float tensor of shape `(B, Q, rows, columns)`, resized to the grid.

    Returns:
        Boolean tensor of shape `(B, 1, T, T)`, True where a token attends to another.
    """

    def __init__(
        self,
        num_tokens: int,
        grid: tuple[int, int],
        annealing: tuple[int, int] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**{"dtype": Float32Policy(), **kwargs})
        self.num_tokens = num_tokens
        self.grid = pair("grid", grid)
        self.annealing = None if annealing is None else (annealing[0], annealing[1])

    def build(self, mask_logits_shape: Shape) -> None:
        if self.annealing is not None:
            self.seed = keras.random.SeedGenerator()
            self.step = self.add_weight(
                shape=(), initializer="zeros", dtype="int32", trainable=False, name="step",
                aggregation="only_first_replica",
            )  # fmt: skip

    def call(self, mask_logits: Tensor, training: bool | None = None) -> Tensor:
        count = mask_logits.shape[1]
        rows, columns = (
            resampling(old, new, "bilinear", mask_logits.dtype)
            for old, new in zip(mask_logits.shape[2:], self.grid, strict=True)
        )
        x = ops.matmul(ops.matmul(rows, mask_logits), ops.transpose(columns))
        x = ops.reshape(x, (-1, count, self.grid[0] * self.grid[1]))  # (B, Q, N)
        if self.annealing is not None:
            drawn = keras.random.uniform((ops.shape(x)[0], count, 1), seed=self.seed)
            x = ops.where(drawn <= self.probability(), x, ops.ones_like(x))
            if training:
                self.step.assign(self.step + 1)
        others = (0, self.num_tokens - count), (self.num_tokens - x.shape[-1], 0)
        return ops.pad(x, ((0, 0), *others), constant_values=1.0)[:, None] > 0

    def probability(self) -> Tensor:
        """Share of the queries that are masked at this step, a float32 scalar."""
        begin, end = self.annealing or (0, 1)
        progress = ops.cast(self.step - begin, "float32") / (end - begin)
        return (1.0 - ops.clip(progress, 0.0, 1.0)) ** _POWER

    def compute_output_spec(self, mask_logits: Tensor, training: bool | None = None) -> Tensor:
        return keras.KerasTensor((mask_logits.shape[0], 1, *2 * (self.num_tokens,)), dtype="bool")

    def count_costs(self, mask_logits_shape: Shape) -> Cost:
        """Cost for one image: products with constant matrices."""
        _, queries, height, width = mask_logits_shape
        macs = queries * self.grid[0] * width * (height + self.grid[1])
        return Cost(macs, constant_macs=macs)
