"""Boxes that patches predict."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape
from keras_vit.layers.layer import Layer, Tensor

_SMALL = 1e-4  # of the logits of 0 and 1, as in github.com/google-research/scenic


@keras.saving.register_keras_serializable("keras_vit")
class PatchBoxes(Layer):
    """Makes boxes of what each patch predicts: without it, a box is its patch.

    The bias of boxes of https://arxiv.org/abs/2205.06230, appendix A.1.2: the logit of the lower
    right corner of the patch for the centre of its box, and of the size of a patch for its sides.

    Args:
        grid: Patches along (height, width).

    Call arguments:
        predicted: Float tensor of shape `(B, N, 4)`.

    Returns:
        Float tensor of shape `(B, N, 4)`: x and y of the centre, width and height, as shares of the
        image.

    Raises:
        ValueError: If `N` does not fit the grid.
    """

    def __init__(self, grid: tuple[int, int], **kwargs: object):
        super().__init__(**kwargs)
        self.grid = tuple(grid)

    def build(self, predicted_shape: Shape) -> None:
        rows, columns = self.grid
        if tuple(predicted_shape[1:]) != (rows * columns, 4):
            raise ValueError(
                f"A grid of {rows} x {columns} patches predicts boxes of shape (B, "
                f"{rows * columns}, 4). Received: shape {predicted_shape}."
            )
        sides = np.array([columns, rows], "float32")
        places = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1) + 1  # (y, x, 2)
        corners = places.reshape(-1, 2).astype("float32") / sides
        shares = np.hstack([corners, np.broadcast_to(1 / sides, corners.shape)])  # (N, 4)
        # In float32, as in transformers: the logit of 1 is inexact, and the same.
        small = np.float32(_SMALL)
        self._bias = np.log(shares + small) - np.log1p(small - shares)

    def call(self, predicted: Tensor) -> Tensor:
        return ops.sigmoid(predicted + ops.cast(self._bias, predicted.dtype))
