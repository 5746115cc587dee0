"""Multi-head self-attention, as one product for queries, keys and values."""

from __future__ import annotations

import functools
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_heads, check_positive
from keras_vit.config import take_options
from keras_vit.layers.any_size import size_of
from keras_vit.layers.attention_kernels import attend, attention_scores, merge_heads, split_heads
from keras_vit.layers.costs import Cost
from keras_vit.layers.dense import build_dense
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.layers.norm import make_norm
from keras_vit.layers.rotary import Rotation, rotate

_PARTS = ("query", "key", "value")


@keras.saving.register_keras_serializable("keras_vit")
class SelfAttention(Layer):
    """Multi-head self-attention over tokens.

    Appendix A of https://arxiv.org/abs/2010.11929. Tokens are flattened to two dimensions for the
    dense products, so that the processor's library joins product and bias.

    Args:
        num_heads: Attention heads, which divide the width.
        positions: Object that adds relative positions to the logits, a `RelativeKeys`, a
            `RelativeBias` or one with their methods, or `None`.
        **kwargs: Other fields of `keras_vit.config.BlockOptions`; those of the MLP have no effect.
            `query_chunk_size` is not used with `return_attention_scores`.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        rotation: Cosines and sines of a `RotaryTable`, two float32 tensors of shape `(T, d / 2)`,
            which the option `rope` needs.
        attention_mask: Boolean tensor that fits `(B, A, Q, T)`, best of shape `(B, 1, 1, T)` or
            `(1, 1, Q, T)`: True where a query attends to a key.
        num_queries: How many of the tokens, the first ones, attend to all `T`; `None` is all.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        Float tensor of shape `(B, Q, D)` with `Q = num_queries`; with `return_attention_scores`,
        also one of shape `(B, A, Q, T)` whose rows sum to 1.

    Raises:
        ValueError: If the heads do not divide the width, a rate is not in [0, 1),
            `query_chunk_size` or `num_queries` is not positive, or `rope` and `rotation` do not
            come together.
    """

    takes_num_queries = True  # a derived class whose `attend` needs all queries leaves it out

    def __init__(self, num_heads: int, positions: Any = None, **kwargs: Any):
        self.options, kwargs = take_options(num_heads=num_heads, **{"mlp_dim": 1, **kwargs})
        super().__init__(autocast=False, **kwargs)  # `rotation` keeps its precision
        if isinstance(positions, dict):  # of `get_config`
            positions = keras.saving.deserialize_keras_object(positions)
        self.positions = positions

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        if "causal" in config and cls is SelfAttention:  # of a file of before
            return keras.saving.get_registered_object("keras_vit>earlier_attention")(config)
        return super().from_config(config)

    def build(
        self,
        tokens_shape: Shape,
        rotation_shape: Shape | None = None,
        attention_mask_shape: Shape | None = None,
    ) -> None:
        _, num_tokens, width = tokens_shape
        if self.options.head_width is None:
            check_heads(width, self.options.num_heads)
        head_dim = self.options.head_width or width // self.options.num_heads
        inner = self.options.num_heads * head_dim
        # Xavier on each of the three (D, D) matrices, as in the official code.
        limit = (6 / (width + inner)) ** 0.5
        start = keras.initializers.RandomUniform(-limit, limit)
        with_bias = [part for part in _PARTS if part not in self.options.without_bias]
        options = {"use_bias": len(with_bias) == len(_PARTS), "kernel_initializer": start}
        self.qkv = build_dense(self, "qkv", width, 3 * inner, **options)
        self.biases = {}
        if 0 < len(with_bias) < len(_PARTS):  # else in the dense layer, or nowhere
            self.biases = {
                part: self.add_weight(name=f"{part}_bias", shape=(inner,), initializer="zeros")
                for part in with_bias
            }
        use_bias = "projection" not in self.options.without_bias
        self.output_projection = build_dense(self, "output", inner, width, use_bias=use_bias)
        self.attention_dropout = keras.layers.Dropout(
            self.options.attention_dropout_rate, dtype=self.dtype_policy
        )
        self.dropout = keras.layers.Dropout(self.options.dropout_rate, dtype=self.dtype_policy)
        if self.options.qk_norm:
            self.query_norm = self._norm("query_norm", (None, None, None, head_dim))
            self.key_norm = self._norm("key_norm", (None, None, None, head_dim))
        if self.positions is not None:
            self.positions.build(self, num_tokens, self.options.num_heads, head_dim)
        if "attention" in self.options.inner_norms:
            self.norm = self._norm("norm", (None, inner))

    def _norm(self, name: str, shape: Shape) -> keras.layers.Layer:
        kind, epsilon = self.options.norm, self.options.norm_epsilon
        center = {"center": self.options.qk_norm_bias} if name != "norm" and kind == "layer" else {}
        norm = make_norm(kind, epsilon, dtype=self.dtype_policy, name=name, **center)
        norm.build(shape)
        return norm

    def call(
        self,
        tokens: Tensor,
        rotation: Rotation | None = None,
        attention_mask: Tensor | None = None,
        *,
        num_queries: int | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        queries, keys, values = self.project(tokens, rotation)
        if num_queries is not None:
            check_positive("num_queries", num_queries)
            queries = queries[:, :, :num_queries]
        attention_mask = self.mask(queries, keys, attention_mask)
        added = None if self.positions is None else self.positions.logits(self, queries)
        if not return_attention_scores:
            x = self.attend(queries, keys, values, added, attention_mask, training)
            return self.join(x, training)
        scores = attention_scores(queries, keys, added, attention_mask)
        x = ops.matmul(self.attention_dropout(scores, training=training), values)
        return self.join(x, training), scores

    def project(
        self, tokens: Tensor, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all heads, each of shape `(B, A, T, d)`: Eq. 5."""
        num_tokens, width = size_of(tokens, 1), tokens.shape[-1]
        x = ops.cast(ops.reshape(tokens, (-1, width)), self.compute_dtype)
        x = self.qkv(x)  # (B * T, 3 D)
        if self.biases:
            zeros = ops.zeros((x.shape[-1] // len(_PARTS),), x.dtype)
            parts = [self.biases.get(part) for part in _PARTS]
            x = x + ops.concatenate([zeros if p is None else ops.cast(p, x.dtype) for p in parts])
        queries, keys, values = (
            split_heads(part, num_tokens, self.options.num_heads)
            for part in ops.split(x, 3, axis=-1)
        )
        if self.options.qk_norm:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        if (rotation is None) != (self.options.rope is None):
            raise ValueError(
                "The option `rope` and the call argument `rotation`, of a `RotaryTable`, belong "
                f"together. Received: rope={self.options.rope}, rotation={rotation}. Pass both."
            )
        if rotation is not None and self.options.rope is not None:
            interleaved = self.options.rope.interleaved
            queries, keys = (rotate(x, rotation, interleaved) for x in (queries, keys))
        return queries, keys, values

    def mask(self, queries: Tensor, keys: Tensor, attention_mask: Any) -> Any:
        """What `attention_mask` becomes, for derived classes."""
        return attention_mask

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        added: Tensor | None,
        attention_mask: Tensor | None,
        training: bool | None,
    ) -> Tensor:
        """Means of the values, `(B, A, Q, d)`, weighted by the scores: Eq. 6 and 7."""
        dropped = training and self.options.attention_dropout_rate > 0
        dropout = functools.partial(self.attention_dropout, training=True) if dropped else None
        size = self.options.query_chunk_size
        return attend(queries, keys, values, added, attention_mask, dropout, size)

    def join(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Output `(B, Q, D)` of the means of all heads, `(B, A, Q, d)`: Eq. 8."""
        num_tokens = size_of(x, 2)
        x = merge_heads(x)  # (B * Q, D)
        if "attention" in self.options.inner_norms:
            x = self.norm(x)
        x = self.output_projection(x)
        x = ops.reshape(x, (-1, num_tokens, x.shape[-1]))
        return self.dropout(x, training=training)

    def get_config(self) -> dict[str, Any]:
        positions = keras.saving.serialize_keras_object(self.positions)
        return {**super().get_config(), "positions": positions}

    def num_pairs(self, num_queries: int, num_tokens: int) -> int:
        """Products of a query and a key that are computed for one image and head."""
        return num_queries * num_tokens

    def count_costs(self, tokens_shape: Shape, *_: Shape, num_queries: int | None = None) -> Cost:
        """Cost for one image, with `num_queries` as of `call`."""
        _, T, D = tokens_shape
        options, A = self.options, self.options.num_heads
        d = options.head_width or D // A
        Q = T if num_queries is None else num_queries
        pairs, H = self.num_pairs(Q, T), A * d  # channels of all heads
        macs = 3 * T * D * H + Q * D * H + 2 * pairs * H
        if self.positions is not None:
            macs += self.positions.count_macs(Q, T, A, d)
        # Queries, keys, values and their means; weights before and after they are normalised.
        kept = (3 + 2 * options.qk_norm) * T * H + Q * H + 2 * A * pairs
        kept += Q * H * ("attention" in options.inner_norms)
        if options.dropout_rate:
            kept += 2 * Q * D  # the mask, and masked values
        if options.attention_dropout_rate:
            kept += 2 * A * pairs
        return Cost(macs, kept)
