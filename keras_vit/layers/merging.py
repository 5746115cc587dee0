"""Fewer tokens: those that are most alike become one (https://arxiv.org/abs/2210.09461)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_positive
from keras_vit.config import merged_of
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.attention_kernels import attention_scores, size_logits
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.costs import Cost, cost_of
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.layers.saved_as import saved_as


@keras.saving.register_keras_serializable("keras_vit")
class TokenMerging(Layer):
    """Merges a fixed number of patch tokens into those that are most like them.

    Bipartite soft matching of https://arxiv.org/abs/2210.09461: every other token seeks the most
    similar of the rest, by the cosine of their keys, and the most similar pairs become their mean,
    weighted by the number of patches that each stands for. The number is fixed, so shapes are
    static, and the layer has no weights. Tokens that are not merged stay in order, before those
    that others may have joined.

    Args:
        num_merged_tokens: Tokens to merge; at most half of the patch tokens are.
        num_prefix_tokens: Tokens before the patches, which are not merged.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        keys: Float tensor of shape `(B, A, T, d)`, the keys of attention over these tokens.
        sizes: Integer tensor of shape `(B, T)`, how many patches each token stands for; `None` for
            one each.

    Returns:
        Float tensor of shape `(B, T - num_merged_tokens, D)`, and an int32 tensor of shape
        `(B, T - num_merged_tokens)` with their sizes.

    Raises:
        ValueError: If `num_merged_tokens` is not positive.
    """

    def __init__(self, num_merged_tokens: int, num_prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        check_positive("num_merged_tokens", num_merged_tokens)
        self.num_merged_tokens = num_merged_tokens
        self.num_prefix_tokens = num_prefix_tokens

    def build(
        self, tokens_shape: Shape, keys_shape: Shape, sizes_shape: Shape | None = None
    ) -> None:
        self.built = True  # Keras asks for a `build` with the names of several arguments

    def call(
        self, tokens: Tensor, keys: Tensor, sizes: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        num_tokens, prefix = tokens.shape[1], self.num_prefix_tokens
        merged = merged_of(num_tokens - prefix, self.num_merged_tokens)
        if sizes is None:
            sizes = ops.ones(ops.shape(tokens)[:2], "int32")
        if not merged:
            return tokens, sizes
        # Even places of the whole sequence seek, odd ones are found, as in the authors' code.
        seekers = slice(prefix + prefix % 2, None, 2)
        others = slice(prefix + 1 - prefix % 2, None, 2)
        order, partners = _match(keys, seekers, others, merged)  # (B, S), (B, merged)
        places = order * 2 + seekers.start
        seeking, seeking_sizes = _take(tokens, places), _take(sizes, places)  # (B, S, D), (B, S)
        kept = places.shape[1] - merged
        joining = (seeking[:, kept:], seeking_sizes[:, kept:], partners)
        found, found_sizes = _join(tokens[:, others], sizes[:, others], *joining)
        return (
            _concatenate([tokens[:, :prefix], seeking[:, :kept], found]),
            _concatenate([sizes[:, :prefix], seeking_sizes[:, :kept], found_sizes]),
        )

    def count_costs(self, tokens_shape: Shape, head_dim: int) -> Cost:
        """Cost for one image: similarities of the two halves of the patches, and merged sums.

        The choice of the tokens to merge has no gradient; the merged tokens have one.
        """
        _, T, D = tokens_shape
        prefix = self.num_prefix_tokens
        sources = (T - prefix + (prefix + 1) % 2) // 2
        targets = T - prefix - sources
        match = sources * targets * head_dim
        join = merged_of(T - prefix, self.num_merged_tokens) * targets * D
        return Cost(match + join, constant_macs=2 * match + join)


class MergingAttention(SelfAttention):
    """`SelfAttention` to tokens of several sizes, which hands on its keys to `TokenMerging`."""

    def attend_to_sizes(
        self,
        tokens: Tensor,
        sizes: Tensor | None,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, ...]:
        """Output, keys `(B, A, T, d)`, and with `return_attention_scores` the scores."""
        queries, keys, values = self.project(tokens)
        added = None if sizes is None else size_logits(sizes, queries.dtype)
        if not return_attention_scores:
            x = self.attend(queries, keys, values, added, None, training)
            return self.join(x, training), keys
        scores = attention_scores(queries, keys, added)
        x = ops.matmul(self.attention_dropout(scores, training=training), values)
        return self.join(x, training), keys, scores


@saved_as("TransformerBlock")
@keras.saving.register_keras_serializable("keras_vit", "MergingBlock")
class MergingBlock(TransformerBlock):
    """`TransformerBlock` that merges tokens between attention and MLP.

    Args:
        num_heads: As for `TransformerBlock`.
        mlp_dim: As for `TransformerBlock`.
        num_merged_tokens: As for `TokenMerging`.
        num_prefix_tokens: As for `TokenMerging`.
        **kwargs: Other arguments of `TransformerBlock`, without `attention`, `rope` and
            `rematerialize`.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        sizes: Integer tensor of shape `(B, T)`, how many patches each token stands for, as the
            block before returned it; `None` for one each.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout and stochastic depth are on.

    Returns:
        Float tensor of shape `(B, T - num_merged_tokens, D)` and an integer tensor of their sizes;
        with `return_attention_scores`, last also one of shape `(B, A, T, T)` whose rows sum to 1.
    """

    attention_class = MergingAttention

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        num_merged_tokens: int,
        num_prefix_tokens: int = 0,
        **kwargs: Any,
    ):
        super().__init__(num_heads, mlp_dim, **kwargs)
        check_positive("num_merged_tokens", num_merged_tokens)
        options = self.options
        if options.rematerialize or options.rope is not None or kwargs.get("attention"):
            raise ValueError(
                "A block that merges tokens hands on their sizes, has no rotary positions and no "
                f"attention of its own. Received: rematerialize={options.rematerialize}, rope="
                f"{options.rope}, attention={kwargs.get('attention')}. Leave them out."
            )
        self.num_merged_tokens = num_merged_tokens
        self.num_prefix_tokens = num_prefix_tokens

    def build(  # type: ignore[override]
        self, tokens_shape: Shape, sizes_shape: Shape | None = None
    ) -> None:
        super().build(tokens_shape)
        self.merging = TokenMerging(
            self.num_merged_tokens, self.num_prefix_tokens, dtype=self.variable_dtype
        )

    def call(  # type: ignore[override]
        self,
        tokens: Tensor,
        sizes: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Tensor, ...]:
        tokens = ops.cast(tokens, self.variable_dtype)
        x, keys, *scores = self.attention.attend_to_sizes(
            self.before("attention", tokens), sizes, return_attention_scores, training
        )
        tokens = self.add("attention", tokens, x, training)  # (B, T, D)
        tokens, sizes = self.merging(tokens, keys, sizes)  # (B, T - merged, D)
        x = self.mlp(self.before("mlp", tokens), training=training)
        return (self.add("mlp", tokens, x, training), sizes, *scores)

    def compute_output_spec(self, tokens: Tensor, *_: Any, **options: Any) -> Any:
        batch, num_tokens, _ = tokens.shape
        kept = num_tokens - self.count_merged(num_tokens)
        sizes = keras.KerasTensor((batch, kept), dtype="int32")
        outputs = super().compute_output_spec(tokens, **{**options, "num_queries": kept})
        if not options.get("return_attention_scores"):
            return outputs, sizes
        shape = (batch, self.options.num_heads, num_tokens, num_tokens)
        return outputs[0], sizes, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def count_merged(self, num_tokens: int) -> int:
        """How many of so many tokens are merged."""
        return merged_of(num_tokens - self.num_prefix_tokens, self.num_merged_tokens)

    def count_costs(self, tokens_shape: Shape, *_: Shape, num_queries: int | None = None) -> Cost:
        """Cost for one image."""
        _, T, D = tokens_shape
        head_dim = self.options.head_width or D // self.options.num_heads
        cost = cost_of(self.attention, tokens_shape)
        cost += self.merging.count_costs(tokens_shape, head_dim)
        return self.add_costs(cost, tokens_shape, T, T - self.count_merged(T))


def _match(keys: Tensor, seekers: slice, others: slice, merged: int) -> tuple[Tensor, Tensor]:
    """Chooses the tokens that are merged, and a partner for each.

    Returns:
        Seekers in the order they come out, int32 of shape `(B, S)`: those that stay as they stood,
        then those that are merged, the most similar first; and for each of these the place of its
        partner among the others, int32 of shape `(B, merged)`.
    """
    keys = ops.mean(ops.cast(ops.stop_gradient(keys), "float32"), axis=1)  # (B, T, d)
    keys = keys / ops.sqrt(ops.sum(ops.square(keys), axis=-1, keepdims=True) + 1e-12)
    similarity = ops.matmul(keys[:, seekers], ops.transpose(keys[:, others], (0, 2, 1)))
    num_seekers = similarity.shape[1]
    best, partners = ops.top_k(similarity, 1)  # argmax of Keras 3.15 has no ONNX or LiteRT form
    _, order = ops.top_k(ops.squeeze(best, 2), num_seekers)  # the most similar first
    order = ops.cast(order, "int32")
    joining = order[:, :merged]
    partners = _take(ops.cast(ops.squeeze(partners, 2), "int32"), joining)
    if num_seekers == merged:
        return joining, partners
    rest, _ = ops.top_k(-ops.cast(order[:, merged:], "float32"), num_seekers - merged)
    return ops.concatenate([ops.cast(-rest, "int32"), joining], axis=1), partners


def _join(
    found: Tensor, found_sizes: Tensor, seeking: Tensor, seeking_sizes: Tensor, partners: Tensor
) -> tuple[Tensor, Tensor]:
    """Means of tokens and those that join them, weighted by size, and their new sizes."""
    chosen = ops.one_hot(partners, found.shape[1], dtype="float32")  # (B, merged, O)
    chosen = chosen * ops.expand_dims(ops.cast(seeking_sizes, "float32"), 2)
    own = ops.cast(found_sizes, "float32")  # (B, O)
    sizes = own + ops.sum(chosen, axis=1)
    # Means rather than sums, which could overflow in half precision.
    kept = ops.expand_dims(ops.cast(own / sizes, found.dtype), 2)  # (B, O, 1)
    shares = ops.transpose(chosen / ops.expand_dims(sizes, 1), (0, 2, 1))  # (B, O, merged)
    tokens = found * kept + ops.matmul(ops.cast(shares, found.dtype), seeking)
    return tokens, ops.cast(sizes, "int32")


def _take(x: Tensor, places: Tensor) -> Tensor:
    """`x[b, places[b]]` of every image: whole rows of a flat array, which is quick everywhere."""
    starts = ops.arange(ops.shape(x)[0], dtype="int32") * x.shape[1]
    rows = ops.reshape(x, (-1, *x.shape[2:]))
    return ops.take(rows, places + ops.expand_dims(starts, 1), axis=0)


def _concatenate(parts: list[Tensor]) -> Tensor:
    return ops.concatenate([part for part in parts if part.shape[1]], axis=1)
