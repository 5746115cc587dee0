"""Resizing of feature maps by two constant matrices, which run under XLA and in every export."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_choice, pair
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.resize import resize_matrix

_METHODS = ("bilinear", "align_corners")


@keras.saving.register_keras_serializable("keras_vit")
class ResizeMaps(Layer):
    """Resizes feature maps linearly along each axis.

    Args:
        size: Positions along (height, width) of the result.
        method: `"bilinear"` between the centres of positions, as `tf.image.resize` and PyTorch's
            `interpolate`, without antialiasing; `"align_corners"` if the corners coincide.

    Call arguments:
        maps: Float tensor of shape `(B, rows, columns, D)`.

    Returns:
        Float tensor of shape `(B, *size, D)`.

    Raises:
        ValueError: If `method` is unknown, or the size of the maps is.
    """

    def __init__(self, size: int | tuple[int, int], method: str = "bilinear", **kwargs: Any):
        super().__init__(**kwargs)
        check_choice("method", method, _METHODS)
        self.size = pair("size", size)
        self.method = method

    def build(self, maps_shape: Shape) -> None:
        if len(maps_shape) != 4 or None in maps_shape[1:]:
            raise ValueError(
                "ResizeMaps needs maps of shape (batch, rows, columns, channels), all but the "
                f"batch known. Received: shape {tuple(maps_shape)}."
            )
        self._matrices = tuple(
            resize_matrix(old, new, self.method).astype("float32")
            for old, new in zip(maps_shape[1:3], self.size, strict=True)
        )

    def call(self, maps: Tensor) -> Tensor:
        rows, columns, channels = maps.shape[1:]
        along_rows, along_columns = (ops.cast(each, maps.dtype) for each in self._matrices)
        x = ops.reshape(maps, (-1, rows, columns * channels))
        x = ops.matmul(along_rows, x)  # (B, height, columns * D)
        x = ops.reshape(x, (-1, columns, channels))  # (B * height, columns, D)
        x = ops.matmul(along_columns, x)  # (B * height, width, D)
        return ops.reshape(x, (-1, *self.size, channels))

    def compute_output_shape(self, maps_shape: Shape) -> Shape:
        return (maps_shape[0], *self.size, maps_shape[-1])

    def count_costs(self, maps_shape: Shape) -> Cost:
        """Cost for one image: products with constant matrices."""
        _, rows, columns, channels = maps_shape
        macs = self.size[0] * columns * channels * (rows + self.size[1])
        return Cost(macs, constant_macs=macs)
