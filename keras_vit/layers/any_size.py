"""Grids of patches that only the images tell: positions, padding and feature maps of any size.

Sizes are integers wherever they are known, so that the graph of one size holds constants. They are
tensors in a graph of TensorFlow for images of unknown size.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.layer import Layer, Tensor
from keras_vit.resize import resize_matrix


def size_of(x: Tensor, axis: int) -> Any:
    """Size of an axis of a tensor: an integer if it is known, else a tensor."""
    known = x.shape[axis]
    return ops.shape(x)[axis] if known is None else known


def grid_of(maps: Tensor) -> tuple[Any, Any]:
    """Rows and columns of feature maps `(B, rows, columns, ...)`."""
    return size_of(maps, 1), size_of(maps, 2)


def is_known(grid: tuple[Any, Any]) -> bool:
    """Whether sizes are integers."""
    return all(isinstance(size, int) for size in grid)


def resampling(old: Any, new: Any, method: str, dtype: str) -> Tensor:
    """The matrix of `resize_matrix` as a tensor, where sizes may be tensors."""
    xp = np if is_known((old, new)) else ops
    return ops.cast(resize_matrix(old, new, method, xp), dtype)


def pad_to_patches(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Adds zeros at the bottom and at the right of images, to a whole number of patches."""
    height, width = (
        -size_of(images, axis) % patch for axis, patch in zip((1, 2), patch_size, strict=True)
    )
    if is_known((height, width)) and not height and not width:
        return images
    return ops.pad(images, ((0, 0), (0, height), (0, width), (0, 0)))


@keras.saving.register_keras_serializable("keras_vit")
class TokensToMaps(Layer):
    """Patch tokens as feature maps of the grid of other maps, for images of any size.

    Args:
        num_prefix_tokens: Tokens before the patches, which are left out.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        maps: Tensor of shape `(B, rows, columns, ...)`, with `rows * columns` patches.

    Returns:
        Float tensor of shape `(B, rows, columns, D)`.
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def call(self, tokens: Tensor, maps: Tensor) -> Tensor:
        patches = tokens[:, self.num_prefix_tokens :]
        return ops.reshape(patches, (-1, *grid_of(maps), tokens.shape[-1]))

    def compute_output_spec(self, tokens: Tensor, maps: Tensor) -> Tensor:
        return keras.KerasTensor((*maps.shape[:3], tokens.shape[-1]), dtype=tokens.dtype)
