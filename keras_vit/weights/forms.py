"""How an array of ours and the arrays of a file hold the same numbers: pairs of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Arrays = list[np.ndarray]


class Form(NamedTuple):
    """One way of writing an array, in both directions.

    Args:
        to_ours: From the file's arrays to ours.
        to_file: From our array, the number of arrays in the file and the number of attention
            heads to the file's arrays.
    """

    to_ours: Callable[[Arrays], np.ndarray]
    to_file: Callable[[np.ndarray, int, int], Arrays]


def _split(array: np.ndarray, parts: int, axis: int) -> Arrays:
    return list(np.split(array, parts, axis=axis))


def _join(arrays: Arrays, axis: int) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=axis)


# The same array, one after the other on the last axis where the file has several.
SAME = Form(
    lambda arrays: _join(arrays, -1),
    lambda array, parts, heads: _split(array, parts, -1),
)
# Flax's attention: kernels (D, heads, head_dim) of queries, keys and values, their biases, and
# the output kernel (heads, head_dim, D).
HEADS_KERNEL = Form(
    lambda arrays: _join([a.reshape(a.shape[0], -1) for a in arrays], 1),
    lambda array, parts, heads: [a.reshape(a.shape[0], heads, -1) for a in _split(array, parts, 1)],
)
HEADS_BIAS = Form(
    lambda arrays: _join([a.reshape(-1) for a in arrays], 0),
    lambda array, parts, heads: [a.reshape(heads, -1) for a in _split(array, parts, 0)],
)
HEADS_OUTPUT = Form(
    lambda arrays: arrays[0].reshape(-1, arrays[0].shape[-1]),
    lambda array, parts, heads: [array.reshape(heads, -1, array.shape[-1])],
)
# Vectors of the official group norms, (1, 1, 1, C), and their dense layers as 1 x 1 convolutions.
CHANNELS = Form(
    lambda arrays: arrays[0].reshape(-1),
    lambda array, parts, heads: [array.reshape(1, 1, 1, -1)],
)
POINTWISE = Form(
    lambda arrays: arrays[0].reshape(arrays[0].shape[-2:]),
    lambda array, parts, heads: [array[None, None]],
)
# PyTorch: linear layers (out, in), convolutions (out, in, height, width).
LINEAR = Form(
    lambda arrays: _join(arrays, 0).T,
    lambda array, parts, heads: _split(array.T, parts, 0),
)
CONVOLUTION = Form(
    lambda arrays: arrays[0].transpose(2, 3, 1, 0),
    lambda array, parts, heads: [array.transpose(3, 2, 0, 1)],
)
POINTWISE_CONVOLUTION = Form(
    lambda arrays: arrays[0].reshape(arrays[0].shape[:2]).T,
    lambda array, parts, heads: [array.T[:, :, None, None]],
)
# A table without the leading axis of one, and such a vector.
TABLE = Form(
    lambda arrays: arrays[0][None],
    lambda array, parts, heads: [array[0]],
)
