"""Resizing of feature maps by two matrices, which run under XLA and in every export."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_choice, pair
from keras_vit.layers.any_size import grid_of, resampling
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer, Tensor

_METHODS = ("bilinear", "align_corners", "adaptive_mean")


@keras.saving.register_keras_serializable("keras_vit")
class ResizeMaps(Layer):
    """Resizes feature maps linearly along each axis.

    Args:
        size: Positions along (height, width) of the result; `None` takes `factor`.
        method: `"bilinear"` between the centres of positions, as `tf.image.resize` and PyTorch's
            `interpolate`, without antialiasing; `"align_corners"` if the corners coincide;
            `"adaptive_mean"`, the means of as many parts, as PyTorch's `adaptive_avg_pool2d`, of
            maps of known size.
        factor: Multiple of the size of `like`, if there is no `size`.

    Call arguments:
        maps: Float tensor of shape `(B, rows, columns, D)`.
        like: Tensor `(B, rows, columns, ...)` of the wanted size over `factor`; `None` takes
            `maps`.

    Returns:
        Float tensor of shape `(B, *size, D)`.

    Raises:
        ValueError: If `method` is unknown.
    """

    def __init__(
        self,
        size: int | tuple[int, int] | None = None,
        method: str = "bilinear",
        factor: int = 1,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_choice("method", method, _METHODS)
        self.size = None if size is None else pair("size", size)
        self.method = method
        self.factor = factor

    def call(self, maps: Tensor, like: Tensor | None = None) -> Tensor:
        old, channels = grid_of(maps), maps.shape[-1]
        new = self._new_size(grid_of(maps if like is None else like))
        along_rows, along_columns = (
            resampling(*each, self.method, maps.dtype) for each in zip(old, new, strict=True)
        )
        x = ops.reshape(maps, (-1, old[0], old[1] * channels))
        x = ops.matmul(along_rows, x)  # (B, height, columns * D)
        x = ops.reshape(x, (-1, old[1], channels))  # (B * height, columns, D)
        x = ops.matmul(along_columns, x)  # (B * height, width, D)
        return ops.reshape(x, (-1, *new, channels))

    def _new_size(self, size: tuple[Any, Any]) -> tuple[Any, Any]:
        if self.size is not None:
            return self.size
        rows, columns = (None if each is None else self.factor * each for each in size)
        return rows, columns

    def compute_output_shape(self, maps_shape: Shape, like_shape: Shape | None = None) -> Shape:
        size = self._new_size(tuple((like_shape or maps_shape)[1:3]))
        return (maps_shape[0], *size, maps_shape[-1])

    def count_costs(self, maps_shape: Shape, like_shape: Shape | None = None) -> Cost:
        """Cost for one image: products with constant matrices."""
        _, rows, columns, channels = maps_shape
        height, width = self._new_size(tuple((like_shape or maps_shape)[1:3]))
        macs = height * columns * channels * (rows + width)
        return Cost(macs, constant_macs=macs)
