"""Attention by kernels of the backend, where it has some."""

from __future__ import annotations

import functools
from typing import Any

import keras
from keras import ops

from keras_vit.layers.layer import Tensor


def fused_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention by a kernel that computes it as a whole, and may keep no scores.

    Args:
        queries: Float tensor of shape `(B, A, T, d)`.
        keys: Float tensor of that shape.
        values: Float tensor of that shape.

    Returns:
        Float tensor of that shape.
    """
    parts = [ops.transpose(part, (0, 2, 1, 3)) for part in (queries, keys, values)]
    on_gpu = keras.backend.backend() == "jax" and _jax_platform() == "gpu"
    x = _cudnn_attention(*parts) if on_gpu else ops.dot_product_attention(*parts)  # (B, T, A, d)
    return ops.transpose(x, (0, 2, 1, 3))


def _cudnn_attention(queries: Any, keys: Any, values: Any) -> Any:
    """Attention of `(B, T, A, d)` by cuDNN, through JAX.

    For gradients, JAX takes an even number of tokens alone, and Keras then computes all scores: an
    odd number gets one more, which no other attends to.
    """
    import jax

    batch, num_tokens, _, _ = queries.shape
    lengths = None
    if num_tokens % 2:
        lengths = jax.numpy.full((batch,), num_tokens, "int32")
        one_token = ((0, 0), (0, 1), (0, 0), (0, 0))
        queries, keys, values = (jax.numpy.pad(x, one_token) for x in (queries, keys, values))
    known: dict[str, Any] = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    x = jax.nn.dot_product_attention(queries, keys, values, implementation="cudnn", **known)
    return x[:, :num_tokens]


def _jax_platform() -> str:
    import jax

    return jax.default_backend()


@functools.cache
def _cudnn_takes(num_tokens: int, num_heads: int, head_dim: int, dtype: str) -> bool:
    """Tells whether JAX accepts such attention, and its gradient, for cuDNN on this GPU."""
    import jax

    def total(*parts: Any) -> Any:
        return _cudnn_attention(*parts).astype("float32").sum()

    part = jax.ShapeDtypeStruct((1, num_tokens, num_heads, head_dim), dtype)
    try:
        jax.eval_shape(jax.grad(total, argnums=(0, 1, 2)), part, part, part)
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def fusion_pays(queries: Tensor) -> bool:
    """Tells whether Keras's backend has a kernel for attention as a whole, for these queries.

    PyTorch has, JAX on TPUs, and on GPUs in half precision. In TensorFlow, and elsewhere in JAX,
    `keras.ops.dot_product_attention` computes all scores too.

    Args:
        queries: Float tensor of shape `(B, A, T, d)`.

    Returns:
        Whether `fused_attention` is to be preferred.
    """
    if keras.backend.backend() != "jax":
        return keras.backend.backend() == "torch"
    if _jax_platform() != "gpu":
        return _jax_platform() != "cpu"
    _, num_heads, num_tokens, head_dim = queries.shape
    dtype = keras.backend.standardize_dtype(queries.dtype)
    return _cudnn_takes(num_tokens, num_heads, head_dim, dtype)
