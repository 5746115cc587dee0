"""From tokens to one vector an image."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_heads
from keras_vit.layers.any_size import size_of
from keras_vit.layers.attention_kernels import (
    attention_scores,
    merge_heads,
    size_logits,
    split_heads,
)
from keras_vit.layers.costs import Cost
from keras_vit.layers.dense import Dense, build_dense, quantized_policies
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.layers.mlp import MLP
from keras_vit.layers.norm import make_norm


@keras.saving.register_keras_serializable("keras_vit")
class TokenPooling(Layer):
    """Takes one token of each image, the class token by default.

    Eq. 4 in https://arxiv.org/abs/2010.11929.

    Args:
        index: Which token.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.

    Returns:
        Float tensor of shape `(B, D)`.
    """

    def __init__(self, index: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.index = index

    def call(self, tokens: Tensor) -> Tensor:
        return tokens[:, self.index]

    @property
    def num_tokens_read(self) -> int | None:
        """Number of first tokens on which the output depends; `None` is all."""
        return self.index + 1 if self.index >= 0 else None


@keras.saving.register_keras_serializable("keras_vit")
class MeanPooling(Layer):
    """The mean of the patch tokens of each image, Appendix D.3 of the paper's `gap`.

    Args:
        num_prefix_tokens: Tokens before the patches, which do not count.

    Call arguments:
        tokens: Float tensor of shape `(B, num_prefix_tokens + N, D)`.
        sizes: Optional integer tensor of shape `(B, num_prefix_tokens + N)`, how many patches each
            token stands for, by which they count; or a boolean tensor, False for padding.

    Returns:
        Float tensor of shape `(B, D)`.
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def call(self, tokens: Tensor, sizes: Tensor | None = None) -> Tensor:
        tokens = tokens[:, self.num_prefix_tokens :]
        if sizes is None:
            return ops.mean(tokens, axis=1)
        sizes = ops.cast(sizes[:, self.num_prefix_tokens :], "float32")
        shares = sizes / ops.sum(sizes, axis=1, keepdims=True)  # (B, N)
        shares = ops.expand_dims(ops.cast(shares, tokens.dtype), 2)
        return ops.sum(tokens * shares, axis=1)


@keras.saving.register_keras_serializable("keras_vit")
class AttentionPooling(Layer):
    """Attention of one learned query over all tokens, then an MLP: the `map` head.

    As in https://arxiv.org/abs/2106.04560 and SigLIP: no residual around the attention, one
    around the MLP. Without MLP, as in AIM (https://arxiv.org/abs/2401.08541): the learned query is
    compared as it is, and keys and values have no bias.

    Args:
        num_heads: Attention heads, which divide the width.
        mlp_dim: Hidden dimension of the MLP; `None` for none.
        gelu: `"tanh"`, `"exact"`, `"quick"` or `"relu"`.
        norm_epsilon: Added to the variance in the layer norm.
        num_prefix_tokens: Tokens before the patches that the query does not attend to.
        norm: `"layer"` or `"rms"`.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        return_attention_scores: Whether to return the attention weights too.
        sizes: Optional integer tensor of shape `(B, T)`, how many patches each token stands for;
            it is attended to as often as those; or a boolean tensor, False for padding, which is
            not attended to.

    Returns:
        Float tensor of shape `(B, D)`; with `return_attention_scores`, also one of shape
        `(B, A, 1, T)` whose rows sum to 1, with zeros for tokens that are left out.

    Raises:
        ValueError: If the heads do not divide the width.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int | None,
        gelu: str = "tanh",
        norm_epsilon: float = 1e-6,
        num_prefix_tokens: int = 0,
        norm: str = "layer",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.gelu = gelu
        self.norm_epsilon = norm_epsilon
        self.num_prefix_tokens = num_prefix_tokens
        self.norm_kind = norm

    def build(self, tokens_shape: Shape, sizes_shape: Shape | None = None) -> None:
        width = tokens_shape[-1]
        check_heads(width, self.num_heads)
        limit = (6 / (1 + width)) ** 0.5  # Xavier with fans 1 and D, as in the official code
        start = keras.initializers.RandomUniform(-limit, limit)
        self.probe = self.add_weight((1, 1, width), start, name="probe")
        limit = (6 / (2 * width)) ** 0.5  # Xavier on each (D, D) matrix

        def dense(name: str, units: int, **options: Any) -> Dense:
            start = keras.initializers.RandomUniform(-limit, limit)
            return build_dense(self, name, width, units, kernel_initializer=start, **options)

        has_mlp = self.mlp_dim is not None
        if has_mlp:
            self.query = dense("query", width)
        self.key_value = dense("key_value", 2 * width, use_bias=has_mlp)
        self.output_projection = dense("output", width)
        if self.mlp_dim is None:
            return
        policy = self.dtype_policy
        self.norm = make_norm(self.norm_kind, self.norm_epsilon, dtype=policy, name="norm")
        self.norm.build((None, 1, width))
        self.mlp = MLP(self.mlp_dim, gelu=self.gelu, dtype=policy, name="mlp")
        self.mlp.build((None, 1, width))

    def call(
        self, tokens: Tensor, return_attention_scores: bool = False, sizes: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        if self.num_prefix_tokens:
            tokens = tokens[:, self.num_prefix_tokens :]
            sizes = None if sizes is None else sizes[:, self.num_prefix_tokens :]
        num_tokens, width = size_of(tokens, 1), tokens.shape[-1]
        pairs = self.key_value(ops.reshape(tokens, (-1, width)))  # (B * T, 2 D)
        parts = ops.split(pairs, 2, axis=-1)
        query = ops.reshape(ops.cast(self.probe, tokens.dtype), (1, width))
        if self.mlp_dim is not None:
            query = self.query(query)
        queries = split_heads(query, 1, self.num_heads)  # (1, A, 1, d)
        keys, values = (split_heads(part, num_tokens, self.num_heads) for part in parts)
        added = mask = None
        if sizes is not None and keras.backend.standardize_dtype(sizes.dtype) == "bool":
            mask = sizes[:, None, None]
        elif sizes is not None:
            added = size_logits(sizes, keys.dtype)
        scores = attention_scores(queries, keys, added, mask)  # (B, A, 1, T)
        x = self.output_projection(merge_heads(ops.matmul(scores, values)))  # (B, D)
        if self.mlp_dim is not None:
            x = ops.reshape(x, (-1, 1, width))
            x = ops.reshape(x + self.mlp(self.norm(x)), (-1, width))  # (B, D)
        if not return_attention_scores:
            return x
        if self.num_prefix_tokens:
            scores = ops.pad(scores, [(0, 0), (0, 0), (0, 0), (self.num_prefix_tokens, 0)])
        return x, scores

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "norm": self.norm_kind}
        return {**config, **quantized_policies(self)}

    def count_costs(self, tokens_shape: Shape, *_: Shape) -> Cost:
        """Cost for one image."""
        _, T, D = tokens_shape
        T, M = T - self.num_prefix_tokens, self.mlp_dim or 0
        squares = 1 + (self.mlp_dim is not None)  # output, and query
        macs = 2 * T * D * D + 2 * T * D + squares * D * D + 2 * D * M
        return Cost(macs, 3 * T * D + self.num_heads * T + 4 * D + 2 * M)
