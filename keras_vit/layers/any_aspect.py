"""Images of any aspect ratio in one shape: which tokens are patches, and where their places are.

The NaFlex models of SigLIP 2, https://arxiv.org/abs/2502.14786. Every image has its own number of
rows and columns of patches, and padding fills the sequence. Shapes stay static, and what depends on
the image is a product with the table of positions, so that XLA and exports need nothing else.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_positive
from keras_vit.layers.layer import Layer, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class PaddingMask(Layer):
    """Tells patches from padding, which attention and pooling leave out.

    Args:
        num_tokens: Tokens of an image, patches and padding.

    Call arguments:
        image_grids: Integer tensor of shape `(B, 2)`, rows and columns of patches of each image.

    Returns:
        Boolean tensor of shape `(B, num_tokens)`, False for padding.
    """

    def __init__(self, num_tokens: int, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        check_positive("num_tokens", num_tokens)
        self.num_tokens = num_tokens

    def call(self, image_grids: Tensor) -> Tensor:
        grids = ops.cast(image_grids, "int32")
        index = ops.arange(self.num_tokens, dtype="int32")[None]  # (1, T)
        return index < grids[:, :1] * grids[:, 1:]

    def compute_output_spec(self, image_grids: Tensor) -> Tensor:
        return keras.KerasTensor((image_grids.shape[0], self.num_tokens), dtype="bool")

    def compute_output_shape(self, image_grids_shape: Shape) -> Shape:
        return (image_grids_shape[0], self.num_tokens)


def resampled_positions(
    table: Tensor, grid: tuple[int, int], image_grids: Tensor, num_tokens: int
) -> Tensor:
    """Resamples a table of positions to the grid of each image: bilinear with antialiasing.

    As transformers, big_vision and timm do it for SigLIP 2; timm's other NaFlex models use another
    kernel, bicubic. Padding has the position of some patch.

    Args:
        table: Float tensor of shape `(1, N, D)`.
        grid: Rows and columns of the table.
        image_grids: Integer tensor of shape `(B, 2)`, rows and columns of each image.
        num_tokens: Tokens of an image, patches and padding.

    Returns:
        float32 tensor of shape `(B, num_tokens, D)`.
    """
    grids = ops.maximum(ops.cast(image_grids, "int32"), 1)
    rows, columns = grids[:, :1], grids[:, 1:]  # (B, 1)
    index = ops.arange(num_tokens, dtype="int32")[None]  # (1, T)
    row = ops.minimum(ops.floor_divide(index, columns), rows - 1)
    column = index - ops.floor_divide(index, columns) * columns
    by_row = _triangle_weights(row, rows, grid[0])[:, :, :, None]  # (B, T, rows of the table, 1)
    by_column = _triangle_weights(column, columns, grid[1])[:, :, None]
    weights = ops.reshape(by_row * by_column, (-1, num_tokens, grid[0] * grid[1]))
    return ops.matmul(weights, ops.cast(table[0], "float32"))


def _triangle_weights(place: Tensor, size: Tensor, source: int) -> Tensor:
    """Weights of `source` values for `place` of `size`, `(B, T, source)`, as PyTorch has them."""
    scale = source / ops.cast(size, "float32")  # (B, 1)
    centre = (ops.cast(place, "float32") + 0.5) * scale  # (B, T)
    distance = ops.arange(source, dtype="float32") + 0.5 - centre[:, :, None]
    support = ops.maximum(scale, 1.0)[:, :, None]  # wider where the table shrinks
    weights = ops.relu(1.0 - ops.abs(distance) / support)
    return weights / ops.sum(weights, axis=-1, keepdims=True)
