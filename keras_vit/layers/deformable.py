"""Deformable attention: each query reads a few positions of a feature map, by one gather."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape
from keras_vit.layers.costs import Cost
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Layer, Tensor


def gather_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of each image: of `x`, `(B, S, D)`, by integers `(B, M)`; returns `(B, M, D)`."""
    count, width = x.shape[1:]
    first = ops.arange(ops.shape(x)[0], dtype="int32")[:, None] * count
    return ops.take(ops.reshape(x, (-1, width)), ops.cast(indices, "int32") + first, axis=0)


def refine_boxes(boxes: Tensor, changes: Tensor) -> Tensor:
    """Moves boxes `(..., 4)`, centre and size, by shares of their size and scales them by exp."""
    size = boxes[..., 2:]
    centre = changes[..., :2] * size + boxes[..., :2]
    return ops.concatenate([centre, ops.exp(changes[..., 2:]) * size], axis=-1)


@keras.saving.register_keras_serializable("keras_vit")
class DeformableSampling(Layer):
    """Weighted sums of values at positions around the centre of each query's box.

    https://arxiv.org/abs/2010.04159, section 4.1, of one feature map. Values between its positions
    are interpolated linearly, and 0 outside. It computes in float32.

    Args:
        num_heads: Heads `A`, which divide the width.
        num_points: Positions `P` that a head reads.

    Call arguments:
        values: Float tensor of shape `(B, rows, columns, D)`, of a known grid.
        boxes: Float tensor of shape `(B, M, 4)`: centre, width and height, as shares of the image.
        offsets: Float tensor of shape `(B, M, A * P * 2)`: x and y of each position, in units of
            half the size of the box over `P`.
        weights: Float tensor of shape `(B, M, A * P)`, before the softmax over the positions.

    Returns:
        Float tensor of shape `(B, M, D)`.
    """

    def __init__(self, num_heads: int, num_points: int, **kwargs: Any):
        super().__init__(**{"dtype": Float32Policy(), **kwargs})
        self.num_heads = num_heads
        self.num_points = num_points

    def call(self, values: Tensor, boxes: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        rows, columns, width = values.shape[1:]
        count, heads, points = boxes.shape[1], self.num_heads, self.num_points
        sides = np.array([columns, rows], "float32")
        offsets = ops.reshape(offsets, (-1, count, heads * points, 2))
        at = boxes[:, :, None, :2] + offsets / points * boxes[:, :, None, 2:] * 0.5
        at = ops.reshape(at * sides - 0.5, (-1, count * heads * points, 2))  # (B, L, 2)
        first = ops.floor(at)
        after = at - first
        shares = ops.stack([1 - after, after], axis=-1)  # (B, L, 2, 2): x and y, before and after
        cells = first[..., None] + np.array([0, 1], "float32")
        known = ops.clip(cells, 0, sides[:, None] - 1)
        shares = shares * ops.cast(ops.equal(known, cells), shares.dtype)
        cells = ops.cast(known, "int32")
        cells = cells[:, :, 1, :, None] * columns + cells[:, :, 0, None, :]  # (B, L, 2, 2)
        shares = shares[:, :, 1, :, None] * shares[:, :, 0, None, :]
        head = np.tile(np.repeat(np.arange(heads, dtype="int32"), points), count)
        cells = ops.reshape(cells * heads + head[:, None, None], (-1, count * heads * points * 4))
        values = ops.reshape(values, (-1, rows * columns * heads, width // heads))
        found = ops.reshape(gather_rows(values, cells), (-1, points * 4, width // heads))
        weights = ops.softmax(ops.reshape(weights, (-1, count, heads, points)))
        weights = ops.reshape(weights, (-1, count * heads * points, 1, 1)) * shares
        x = ops.matmul(ops.reshape(weights, (-1, 1, points * 4)), found)
        return ops.reshape(x, (-1, count, width))

    def count_costs(self, values_shape: Shape, boxes_shape: Shape, *_: Shape) -> Cost:
        """Cost for one image: the sums of values, of which all that are read are stored."""
        read = boxes_shape[1] * self.num_points * 4 * values_shape[-1]
        return Cost(read, read)
