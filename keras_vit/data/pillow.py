"""Pillow's resampling of 8-bit images, to the same integers, in TensorFlow operations.

timm and transformers resize with Pillow, which widens the kernel when it shrinks an image, rounds
weights to 22 bits, and pixels to integers after each of its two passes:
https://github.com/python-pillow/Pillow/blob/main/src/libImaging/Resample.c. The order of the passes
is that of Pillow 13. Before, the width always came first: docs/data.md has the difference.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_PRECISION_BITS = 22


def resample(image: Any, size: Any, begin: Any, window: Any, interpolation: str) -> Any:
    """Resizes an image as `PIL.Image.resize`, and computes one window of the result.

    The sizes may be tensors: the function also runs in `tf.data` and in exported signatures.

    Args:
        image: Tensor of shape `(h, w, C)`, values in [0, 255]; others than uint8 are rounded.
        size: Pixels along (height, width) of the whole result.
        begin: Top and left of the window.
        window: Height and width of the window.
        interpolation: `"bilinear"` or `"bicubic"`.

    Returns:
        float32 tensor of shape `(*window, C)`, integers in [0, 255].
    """
    if image.dtype != tf.uint8:
        image = tf.cast(tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8)
    source, channels = tf.shape(image), image.shape[-1]
    top, below, rows = _kernel_weights(source[0], size[0], begin[0], window[0], interpolation)
    left, right, columns = _kernel_weights(source[1], size[1], begin[1], window[1], interpolation)
    image = image[top:below, left:right]  # the pixels that the window needs

    def rows_first() -> Any:
        x = _weighted_sums(rows, image)  # (H, w, C)
        x = _weighted_sums(columns, tf.transpose(x, (1, 0, 2)))  # (W, H, C)
        return tf.transpose(x, (1, 0, 2))

    def columns_first() -> Any:
        x = _weighted_sums(columns, tf.transpose(image, (1, 0, 2)))  # (W, h, C)
        return _weighted_sums(rows, tf.transpose(x, (1, 0, 2)))  # (H, W, C)

    fewer, narrower = source[0] - size[0], source[1] - size[1]
    pixels = tf.cond((fewer > 0) & (fewer > 2 * narrower), rows_first, columns_first)
    return tf.reshape(tf.cast(pixels, tf.float32), (window[0], window[1], channels))


def _kernel_weights(
    source: Any, size: Any, begin: Any, count: Any, interpolation: str
) -> tuple[Any, Any, Any]:
    """Computes the kernel's weights along one axis: first pixel, end, sparse weights."""
    radius, kernel = _KERNELS[interpolation]
    source_side, scale = tf.cast(source, tf.float64), tf.cast(source / size, tf.float64)
    stretch = tf.maximum(scale, 1.0)
    support = radius * stretch
    centre = (tf.cast(begin + tf.range(count), tf.float64) + 0.5) * scale  # (count,)
    first = tf.maximum(tf.floor(centre - support + 0.5), 0.0)
    end = tf.minimum(tf.floor(centre + support + 0.5), source_side)
    num_weights = tf.cast(tf.math.ceil(support), tf.int32) * 2 + 1
    pixel = first[:, None] + tf.cast(tf.range(num_weights), tf.float64)  # (count, num_weights)
    weight = kernel(tf.abs((pixel - centre[:, None] + 0.5) * (1.0 / stretch)))
    weight = tf.where(pixel < end[:, None], weight, 0.0)
    weight /= tf.reduce_sum(weight, -1, keepdims=True)
    half = tf.where(weight < 0, tf.constant(-0.5, tf.float64), 0.5)
    fixed = tf.cast(weight * (1 << _PRECISION_BITS) + half, tf.int32)  # cut off, as in C
    begins, ends = tf.cast(first[0], tf.int32), tf.cast(end[-1], tf.int32)
    column = tf.minimum(tf.cast(pixel, tf.int32), ends - 1) - begins
    row = tf.broadcast_to(tf.range(count)[:, None], tf.shape(column))
    indices = tf.cast(tf.reshape(tf.stack((row, column), -1), (-1, 2)), tf.int64)
    shape = tf.cast((count, ends - begins), tf.int64)
    return begins, ends, tf.SparseTensor(indices, tf.reshape(fixed, (-1,)), shape)


def _weighted_sums(weights: Any, pixels: Any) -> Any:
    """Weighted sums over the first axis of `(n, k, C)`, rounded to integers in [0, 255]."""
    shape = tf.shape(pixels)
    pixels = tf.cast(tf.reshape(pixels, (shape[0], -1)), tf.int32)
    sums = tf.sparse.sparse_dense_matmul(weights, pixels)
    sums = tf.bitwise.right_shift(sums + (1 << (_PRECISION_BITS - 1)), _PRECISION_BITS)
    return tf.reshape(tf.clip_by_value(sums, 0, 255), (-1, shape[1], shape[2]))


def _triangle(x: Any) -> Any:
    return tf.maximum(1.0 - x, 0.0)


def _cubic(x: Any) -> Any:
    """Keys's cubic with a = -0.5, in Pillow's order of operations."""
    a = -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return tf.where(x < 1.0, near, tf.where(x < 2.0, far, 0.0))


# Radius and values of a kernel.
_KERNELS = {"bilinear": (1.0, _triangle), "bicubic": (2.0, _cubic)}
