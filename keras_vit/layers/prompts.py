"""Layers of a decoder that is asked by points, boxes and masks."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape, check_heads, pair
from keras_vit.layers.any_size import size_of
from keras_vit.layers.attention_kernels import attention_scores, merge_heads, split_heads
from keras_vit.layers.dense import build_dense
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Layer, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class FourierPositions(Layer):
    """Encodes places in an image by sines and cosines of random frequencies.

    https://arxiv.org/abs/2006.10739, as in Segment Anything (https://arxiv.org/abs/2304.02643).
    The frequencies are fixed.

    Args:
        image_size: Pixels along (height, width).
        grid: Patches along (height, width).
        num_frequencies: Half of the channels `D`.

    Call arguments:
        points: Float tensor of shape `(B, P, 2)`: x and y in pixels, whose centres are at 0.5.
        labels: Integer tensor of shape `(B, P)`. A negative one is no point: its encoding is 0.

    Returns:
        Float tensor of shape `(B, P, D)`, and one of shape `(1, N, D)` of the centres of patches.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        grid: tuple[int, int],
        num_frequencies: int,
        **kwargs: Any,
    ):
        super().__init__(**{"dtype": Float32Policy(), **kwargs})
        self.image_size = pair("image_size", image_size)
        self.grid = pair("grid", grid)
        self.num_frequencies = num_frequencies

    def build(self, points_shape: Shape, labels_shape: Shape | None = None) -> None:
        shape, normal = (2, self.num_frequencies), keras.initializers.RandomNormal(stddev=1.0)
        self.frequencies = self.add_weight(shape, normal, trainable=False, name="frequencies")

    def call(self, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self._encode((points + 0.5) / np.array(self.image_size[::-1], "float32"))
        x = ops.where(labels[..., None] < 0, 0.0, x)
        rows, columns = ((np.arange(side, dtype="float32") + 0.5) / side for side in self.grid)
        centres = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(1, -1, 2)
        return x, self._encode(ops.convert_to_tensor(centres))

    def _encode(self, places: Tensor) -> Tensor:
        """Encodings `(..., D)` of x and y in [0, 1]."""
        x = 2 * math.pi * ops.matmul(2 * places - 1, self.frequencies)
        return ops.concatenate([ops.sin(x), ops.cos(x)], axis=-1)


@keras.saving.register_keras_serializable("keras_vit")
class CrossAttention(Layer):
    """Multi-head attention of some tokens to others, in fewer channels.

    Args:
        num_heads: Attention heads.
        inner: Channels of all heads, which they divide.

    Call arguments:
        queries: Float tensor of shape `(B, Q, D)`.
        keys: Float tensor of shape `(B, T, D)`.
        values: Float tensor of shape `(B, T, D)`.

    Returns:
        Float tensor of shape `(B, Q, D)`.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    def __init__(self, num_heads: int, inner: int, **kwargs: Any):
        super().__init__(**{"dtype": Float32Policy(), **kwargs})
        check_heads(inner, num_heads)
        self.num_heads = num_heads
        self.inner = inner

    def build(self, queries_shape: Shape, keys_shape: Shape, values_shape: Shape) -> None:
        shapes = {"query": queries_shape, "key": keys_shape, "value": values_shape}
        self.projections = [
            build_dense(self, name, shape[-1], self.inner) for name, shape in shapes.items()
        ]
        self.output_projection = build_dense(self, "output", self.inner, queries_shape[-1])

    def call(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = (self.project(*each) for each in enumerate((queries, keys, values)))
        x = merge_heads(ops.matmul(attention_scores(q, k), v))  # (B * Q, inner)
        return ops.reshape(self.output_projection(x), (-1, size_of(queries, 1), queries.shape[-1]))

    def project(self, index: int, x: Tensor) -> Tensor:
        """Queries, keys or values of every head, `(B, A, T, d)`."""
        flat = ops.reshape(x, (-1, x.shape[-1]))  # (B * T, D)
        return split_heads(self.projections[index](flat), size_of(x, 1), self.num_heads)

    def kernel_of(self, dense: keras.layers.Dense) -> Tensor:
        """The kernel of a projection into heads, `(A, D, d)`."""
        return split_heads(dense.kernel, dense.kernel.shape[0], self.num_heads)[0]


@keras.saving.register_keras_serializable("keras_vit")
class FewQueries(CrossAttention):
    """`CrossAttention` of a few tokens to many, such as points to patches.

    The keys and values of many tokens are not computed: kernels multiply the queries, and the means
    of tokens, which is the same. Kernels that Keras quantised multiply all tokens.
    """

    def call(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if any(x.quantization_mode for x in (*self.projections, self.output_projection)):
            return super().call(queries, keys, values)
        count, width = size_of(queries, 1), keys.shape[-1]
        key, value = map(self.kernel_of, self.projections[1:])
        x = self.project(0, queries) * (self.inner // self.num_heads) ** -0.5
        x = ops.matmul(x, ops.transpose(key, (0, 2, 1)))  # (B, A, Q, D)
        x = ops.reshape(x, (-1, self.num_heads * count, width))
        x = ops.softmax(ops.matmul(x, ops.transpose(keys, (0, 2, 1))))  # (B, A * Q, T)
        x = ops.reshape(ops.matmul(x, values), (-1, self.num_heads, count, width))
        # The bias of keys changes nothing; without a gradient of 0, Keras would warn.
        bias = self.projections[2].bias + 0 * self.projections[1].bias
        x = merge_heads(ops.matmul(x, value)) + bias
        return ops.reshape(self.output_projection(x), (-1, count, queries.shape[-1]))


@keras.saving.register_keras_serializable("keras_vit")
class FewKeys(CrossAttention):
    """`CrossAttention` of many tokens to a few: see `FewQueries`."""

    def call(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if any(x.quantization_mode for x in (*self.projections, self.output_projection)):
            return super().call(queries, keys, values)
        count, width = size_of(keys, 1), queries.shape[-1]
        shape = (-1, self.num_heads * count, width)
        k = self.project(1, keys) * (self.inner // self.num_heads) ** -0.5
        bias = ops.matmul(k, ops.reshape(self.projections[0].bias, (self.num_heads, -1, 1)))
        x = ops.matmul(k, ops.transpose(self.kernel_of(self.projections[0]), (0, 2, 1)))
        x = ops.matmul(ops.reshape(x, shape), ops.transpose(queries, (0, 2, 1)))
        x = ops.reshape(x, (-1, self.num_heads, count, size_of(queries, 1))) + bias
        x = ops.reshape(ops.softmax(x, axis=2), (-1, self.num_heads * count, size_of(queries, 1)))
        kernel = ops.reshape(self.output_projection.kernel, (self.num_heads, -1, width))
        v = ops.reshape(ops.matmul(self.project(2, values), kernel), shape)
        return ops.matmul(ops.transpose(x, (0, 2, 1)), v) + self.output_projection.bias
