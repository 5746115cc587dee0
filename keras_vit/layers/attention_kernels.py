"""Means of values by attention: all scores at once, for chunks of queries, or by a fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_vit.layers.fused_attention import fused_attention, fusion_pays
from keras_vit.layers.layer import Tensor
from keras_vit.runtime.distributed import depend_on

_LEFT_OUT = -1e9  # logit of a key that is not attended to: finite, so that a row of them has a mean
Dropout = Callable[[Tensor], Tensor]


def split_heads(x: Tensor, num_tokens: int, num_heads: int) -> Tensor:
    """Features of flattened tokens by head: `(B * T, A * d)` becomes `(B, A, T, d)`."""
    head_dim = x.shape[-1] // num_heads
    x = ops.reshape(x, (-1, num_tokens, num_heads, head_dim))
    return ops.transpose(x, (0, 2, 1, 3))


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`: `(B, A, T, d)` becomes `(B * T, A * d)`."""
    _, num_heads, _, head_dim = x.shape
    x = ops.transpose(x, (0, 2, 1, 3))  # (B, T, A, d)
    return ops.reshape(x, (-1, num_heads * head_dim))


def attention_scores(
    queries: Tensor, keys: Tensor, added: Tensor | None = None, attention_mask: Tensor | None = None
) -> Tensor:
    """Softmax over keys of the scaled products of queries and keys, in float32.

    Eq. 6 in https://arxiv.org/abs/2010.11929.

    Args:
        queries: Float tensor of shape `(B, A, Q, d)`.
        keys: Float tensor of shape `(B, A, T, d)`.
        added: Optional float tensor that fits `(B, A, Q, T)`, added before the softmax.
        attention_mask: Optional boolean tensor that fits `(B, A, Q, T)`, True where a key is
            attended to. A row of False alone gives equal scores.

    Returns:
        Tensor of shape `(B, A, Q, T)` and the type of `queries`; rows sum to 1.
    """
    queries = queries * queries.shape[-1] ** -0.5  # before the product, as in the official code
    logits = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2)))  # (B, A, Q, T)
    if added is not None:
        logits = logits + added
    logits = ops.cast(logits, "float32")
    if attention_mask is not None:
        logits = ops.where(attention_mask, logits, _LEFT_OUT)
    return ops.cast(ops.softmax(logits, axis=-1), queries.dtype)


def size_logits(sizes: Tensor, dtype: str) -> Tensor:
    """Logits of keys that stand for several tokens: the logarithm of their number.

    Proportional attention, Section 3 of https://arxiv.org/abs/2210.09461: the softmax then is as if
    each key were there as often.

    Args:
        sizes: Integer tensor of shape `(B, T)`.
        dtype: Type of the result.

    Returns:
        Float tensor of shape `(B, 1, 1, T)`.
    """
    added = ops.cast(ops.log(ops.cast(sizes, "float32")), dtype)
    return ops.reshape(added, (-1, 1, 1, sizes.shape[1]))


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    added: Tensor | None,
    attention_mask: Tensor | None,
    dropout: Dropout | None,
    chunk_size: int | None = None,
) -> Tensor:
    """Means of the values, Eq. 7.

    Args:
        queries: Float tensor of shape `(B, A, Q, d)`.
        keys: Float tensor of shape `(B, A, T, d)`.
        values: Float tensor of shape `(B, A, T, d)`.
        added: As for `attention_scores`.
        attention_mask: As for `attention_scores`.
        dropout: What is done to the scores in training, or `None`.
        chunk_size: Queries whose scores are computed at a time. `None` is all, by a kernel of the
            backend where it has one.

    Returns:
        Float tensor of shape `(B, A, Q, d)`.
    """
    count = queries.shape[2]
    plain = added is None and attention_mask is None and dropout is None and chunk_size is None
    if plain and count == keys.shape[2] and fusion_pays(queries):
        return fused_attention(queries, keys, values)

    def attend_to(queries: Tensor, *rows: Tensor | None) -> Any:
        scores = attention_scores(queries, keys, *rows)
        return ops.matmul(scores if dropout is None else dropout(scores), values)

    if chunk_size is None or chunk_size >= count:
        return attend_to(queries, added, attention_mask)
    parts: list[Tensor] = []
    for start in range(0, count, chunk_size):
        chunk = slice(start, start + chunk_size)
        rows = (x if x is None or x.shape[2] == 1 else x[:, :, chunk]
                for x in (added, attention_mask))  # fmt: skip
        with depend_on(parts[-1:]):  # else TensorFlow computes all chunks at once
            parts.append(attend_to(queries[:, :, chunk], *rows))
    return ops.concatenate(parts, axis=2)
