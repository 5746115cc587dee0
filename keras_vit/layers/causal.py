"""Attention of a token to itself and those before it, for models that write one after another."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.any_size import size_of
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.attention_kernels import attention_scores
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.layer import Tensor
from keras_vit.layers.saved_as import saved_as


@saved_as("SelfAttention")
@keras.saving.register_keras_serializable("keras_vit", "CausalAttention")
class CausalAttention(SelfAttention):
    """`SelfAttention` in which no token attends to one after it. Arguments are the same."""

    takes_num_queries = True

    def mask(self, queries: Tensor, keys: Tensor, attention_mask: Any) -> Any:
        places = ops.arange(size_of(keys, 2))
        mask = (places[None] <= places[: queries.shape[2], None])[None, None]  # (1, 1, Q, T)
        return mask if attention_mask is None else ops.logical_and(mask, attention_mask)

    def step(
        self, token: Tensor, cache: tuple[Tensor, Tensor], index: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attention of one token, from the keys and values of those before it.

        Args:
            token: Float tensor of shape `(B, 1, D)`.
            cache: Keys and values, each of shape `(B, A, T, d)`.
            index: Which of the `T` tokens it is, an integer tensor.

        Returns:
            Float tensor of shape `(B, 1, D)`, and the keys and values with those of the token.

        Raises:
            ValueError: If the layer adds positions.
        """
        if self.positions is not None or self.options.rope is not None:
            raise ValueError(
                "Tokens are added one by one to causal attention without positions of its own. "
                f"Received: positions={self.positions!r}, rope={self.options.rope}. Call the layer "
                "with all tokens."
            )
        queries, key, value = self.project(token)  # (B, A, 1, d) each
        keys = ops.slice_update(cache[0], (0, 0, index, 0), key)
        values = ops.slice_update(cache[1], (0, 0, index, 0), value)
        known = (ops.arange(keys.shape[2]) <= index)[None, None, None]  # (1, 1, 1, T)
        x = ops.matmul(attention_scores(queries, keys, attention_mask=known), values)
        return self.join(x), (keys, values)


@saved_as("TransformerBlock")
@keras.saving.register_keras_serializable("keras_vit", "CausalBlock")
class CausalBlock(TransformerBlock):
    """`TransformerBlock` with `CausalAttention`, to which tokens can be added one by one."""

    attention_class = CausalAttention

    def step(
        self, token: Tensor, cache: tuple[Tensor, Tensor], index: Tensor
    ) -> tuple[Tensor, Any]:
        """One more token through the block: as `CausalAttention.step`, with its arguments."""
        x, cache = self.attention.step(self.attention_norm(token), cache, index)
        token = self.add("attention", token, x, training=False)  # (B, 1, D)
        return self.add("mlp", token, self.mlp(self.mlp_norm(token)), training=False), cache
