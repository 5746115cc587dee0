"""Blocks with norms after the sums, as in the first transformer."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.layer import Tensor
from keras_vit.layers.saved_as import saved_as


@saved_as("TransformerBlock")
@keras.saving.register_keras_serializable("keras_vit", "PostNormBlock")
class PostNormBlock(TransformerBlock):
    """`TransformerBlock` whose norms follow the sums (https://arxiv.org/abs/1706.03762)."""

    takes_num_queries = TransformerBlock.takes_num_queries  # as `pooled_tokens` asks

    def before(self, branch: str, tokens: Tensor) -> Tensor:
        return tokens

    def add(self, branch: str, tokens: Tensor, x: Tensor, training: bool | None) -> Tensor:
        tokens = super().add(branch, tokens, x, training)
        return ops.cast(getattr(self, f"{branch}_norm")(tokens), tokens.dtype)
