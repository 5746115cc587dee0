"""The transformer block."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_rate, pair
from keras_vit.config import check_exclusions, merged_of, take_options
from keras_vit.layers.any_size import grid_of
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.costs import Cost, cost_of
from keras_vit.layers.dense import quantized_policies
from keras_vit.layers.layer import Layer
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.merging import TokenMerging
from keras_vit.layers.mlp import MLP
from keras_vit.layers.norm import make_norm
from keras_vit.layers.recompute import recompute


@keras.saving.register_keras_serializable("keras_vit")
class TransformerBlock(Layer):
    """One encoder block: attention, then MLP, each of normalised tokens and added to what came in.

    Eq. 2 and 3 in https://arxiv.org/abs/2010.11929.

    Args:
        num_heads: Attention heads, which divide the width.
        mlp_dim: Hidden dimension of the MLP.
        stochastic_depth_rate: Probability that a branch is left out for an image in training,
            the others scaled up to keep the mean (https://arxiv.org/abs/1603.09382); in [0, 1).
        positions: Kind of positions that the attention adds, or `None`: see `SelfAttention`.
        attention: Layer in place of `SelfAttention`, such as a `GridAttention`, with its call
            arguments `return_attention_scores` and `training`; `None` makes a `SelfAttention`.
        causal: Whether a token attends to itself and those before it alone.
        grid: Patches along (height, width), for `rope`; `None` takes those of `maps`.
        num_prefix_tokens: Tokens before the patches, which are not merged and not rotated.
        num_registers: How many of the tokens before the patches, the last of them, are registers,
            which `rope` turns where it has a `register_base`.
        window_size: Patches along (height, width) of the windows that patches attend to
            (https://arxiv.org/abs/2203.16527), or `None` for all patches; it needs `grid`.
        **kwargs: Other fields of `keras_vit.config.BlockOptions`, such as `norm="rms"`, and
            arguments of every Keras layer, such as `name`.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout and stochastic depth are on.
        sizes: Integer tensor of shape `(B, T)`, how many patches each token stands for, with
            `num_merged_tokens` as the block before returned it; `None` for one each.
        padding_mask: Boolean tensor of shape `(B, T)`, False for padding, which no token attends
            to; not with `rematerialize`.
        maps: Tensor of shape `(B, rows, columns, ...)` with the grid of the patches, for `rope` and
            images of any size.
        num_queries: How many of the tokens, the first ones, are computed; `None` is all. The others
            are keys and values alone, and missing in the output.

    Returns:
        Float tensor of shape `(B, Q, D)` with `Q = num_queries`, `T` by default, in the type of the
        variables: under half-precision policies the residual stream stays float32; with
        `num_merged_tokens`, it has so many tokens fewer, and after it comes an integer tensor of
        their sizes; with `return_attention_scores`, last also one of shape `(B, A, Q, T)` whose
        rows sum to 1.

    Raises:
        ValueError: If the heads do not divide the width, a rate is not in [0, 1), or tokens are
            merged under `rematerialize`; for `num_queries` with merged tokens, windows or
            an `attention` of its own.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        stochastic_depth_rate: float = 0.0,
        positions: str | None = None,
        attention: keras.Layer | dict[str, Any] | None = None,
        causal: bool = False,
        grid: tuple[int, int] | None = None,
        num_prefix_tokens: int = 0,
        num_registers: int = 0,
        window_size: int | tuple[int, int] | None = None,
        **kwargs: Any,
    ):
        self.options, kwargs = take_options(num_heads=num_heads, mlp_dim=mlp_dim, **kwargs)
        super().__init__(autocast=False, **kwargs)  # the residual stream keeps its precision
        check_rate("stochastic_depth_rate", stochastic_depth_rate)
        check_exclusions({**vars(self.options), "window_size": window_size})
        if window_size is not None and attention is not None:
            raise ValueError(
                "Windows are of `SelfAttention`. Received: window_size="
                f"{window_size}, attention={attention!r}; leave window_size out."
            )
        self.stochastic_depth_rate = stochastic_depth_rate
        self.positions = positions
        self.has_own_attention = attention is not None
        if isinstance(attention, dict):  # of `get_config`
            fields = {**attention["config"], "dtype": self.dtype_policy}
            attention = keras.saving.deserialize_keras_object({**attention, "config": fields})
        if attention is not None:
            self.attention: Any = attention
        self.causal = causal
        self.grid = None if grid is None else pair("grid", grid)
        self.num_prefix_tokens = num_prefix_tokens
        self.num_registers = num_registers
        self.window_size = None if window_size is None else pair("window_size", window_size)

    def build(
        self,
        tokens_shape: Shape,
        sizes_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
        maps_shape: Shape | None = None,
    ) -> None:
        if maps_shape is not None:  # the number of tokens is that of each call
            tokens_shape = (tokens_shape[0], None, tokens_shape[2])
        self.attention_norm = self._build(self._norm("attention_norm"), tokens_shape)
        if not self.has_own_attention:
            self.attention = self._self_attention()
        self._build(self.attention, tokens_shape)
        self.mlp_norm = self._build(self._norm("mlp_norm"), tokens_shape)
        self.mlp = self._build(
            MLP(
                self.options.mlp_dim,
                gelu=self.options.gelu,
                dropout_rate=self.options.dropout_rate,
                swiglu=self.options.swiglu,
                inner_norm="mlp" in self.options.inner_norms,
                use_bias="mlp" not in self.options.without_bias,
                norm=self.options.norm,
                norm_epsilon=self.options.norm_epsilon,
                dtype=self.dtype_policy,
                name="mlp",
            ),
            tokens_shape,
        )
        if self.options.layer_scale is not None:
            for name in ("attention_scale", "mlp_scale"):
                scale = LayerScale(self.options.layer_scale, dtype=self.dtype_policy, name=name)
                setattr(self, name, self._build(scale, tokens_shape))
        if self.options.num_merged_tokens:
            self.merging = TokenMerging(
                self.options.num_merged_tokens, self.num_prefix_tokens, dtype=self.variable_dtype
            )
        # Dropout with one decision an image is stochastic depth.
        self.stochastic_depth = keras.layers.Dropout(
            self.stochastic_depth_rate, noise_shape=(None, 1, 1), dtype=self.dtype_policy
        )

    def _self_attention(self) -> SelfAttention:
        return SelfAttention(
            **vars(self.options),
            positions=self.positions,
            causal=self.causal,
            grid=self.grid,
            num_prefix_tokens=self.num_prefix_tokens,
            num_registers=self.num_registers,
            window_size=self.window_size,
            dtype=self.dtype_policy,
            name="attention",
        )

    def _attention_config(self) -> dict[str, Any] | None:
        if not self.has_own_attention:
            return None
        config = keras.saving.serialize_keras_object(self.attention)
        return {key: value for key, value in config.items() if key != "build_config"}

    def _build(self, layer: keras.Layer, tokens_shape: Shape) -> keras.Layer:
        layer.build(tokens_shape)
        return layer

    def _norm(self, name: str) -> keras.layers.Layer:
        return make_norm(
            self.options.norm,
            self.options.norm_epsilon,
            dtype=self.dtype_policy,
            autocast=False,
            name=name,
        )

    def call(
        self,
        tokens: keras.KerasTensor,
        return_attention_scores: bool = False,
        training: bool | None = None,
        sizes: keras.KerasTensor | None = None,
        padding_mask: keras.KerasTensor | None = None,
        maps: keras.KerasTensor | None = None,
        num_queries: int | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        if num_queries is not None and not self.takes_num_queries:
            raise ValueError(
                "All tokens are computed where they are merged, by windows or by other attention. "
                f"Received: num_queries={num_queries}, num_merged_tokens="
                f"{self.options.num_merged_tokens}, window_size={self.window_size}, "
                f"has_own_attention={self.has_own_attention}. Leave num_queries out."
            )
        grid = None if maps is None else grid_of(maps)
        if self.options.rematerialize and training and not return_attention_scores:
            return recompute(
                self,
                lambda x: self._transform(x, None, None, False, training, grid, num_queries),
                tokens,
            )
        return self._transform(
            tokens, sizes, padding_mask, return_attention_scores, training, grid, num_queries
        )

    @property
    def takes_num_queries(self) -> bool:
        """Whether the block can compute the first tokens alone."""
        return not (self.options.num_merged_tokens or self.window_size or self.has_own_attention)

    def _transform(
        self,
        tokens: keras.KerasTensor,
        sizes: keras.KerasTensor | None,
        padding_mask: keras.KerasTensor | None,
        return_attention_scores: bool,
        training: bool | None,
        grid: tuple[Any, Any] | None,
        num_queries: int | None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        # Rounding the sum of all branches to bfloat16 after each would be most of the error.
        tokens = ops.cast(tokens, self.variable_dtype)
        x = self._attention_input(tokens)
        seen: dict[str, Any] = {}
        if not self.has_own_attention:
            seen = {"sizes": sizes, "return_keys": bool(self.options.num_merged_tokens)}
            seen |= {"padding_mask": padding_mask, "grid": grid, "num_queries": num_queries}
        attended = self.attention(
            x, return_attention_scores=return_attention_scores, training=training, **seen
        )
        x, *more = attended if isinstance(attended, tuple) else (attended,)
        if num_queries is not None:
            tokens = tokens[:, :num_queries]  # the others are keys and values alone
        tokens = self._add(tokens, x, "attention", training)  # (B, T, D)
        if self.options.num_merged_tokens:
            tokens, sizes = self.merging(tokens, more.pop(), sizes)  # (B, T - merged, D)
        x = self.mlp(tokens if self.options.post_norm else self.mlp_norm(tokens), training=training)
        tokens = self._add(tokens, x, "mlp", training)  # (B, T - merged, D)
        outputs = [tokens] + [sizes] * bool(self.options.num_merged_tokens) + more
        return tuple(outputs) if len(outputs) > 1 else tokens

    def _add(
        self, tokens: keras.KerasTensor, x: keras.KerasTensor, branch: str, training: bool | None
    ) -> keras.KerasTensor:
        """Adds the output of a branch, `"attention"` or `"mlp"`, to the residual stream."""
        if self.options.layer_scale is not None:
            x = getattr(self, f"{branch}_scale")(x)
        x = self.stochastic_depth(x, training=training)
        tokens = tokens + ops.cast(x, tokens.dtype)
        if self.options.post_norm:
            tokens = ops.cast(getattr(self, f"{branch}_norm")(tokens), tokens.dtype)
        return tokens

    def _attention_input(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        return tokens if self.options.post_norm else self.attention_norm(tokens)

    def attention_scores(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Attention weights `(B, A, T, T)` of the block, without computing the rest of it."""
        x = self._attention_input(ops.cast(tokens, self.variable_dtype))
        return self.attention(x, return_attention_scores=True, training=False)[1]

    def step(self, token: keras.KerasTensor, cache: Any, index: keras.KerasTensor) -> Any:
        """One more token through a causal block: as `SelfAttention.step`, with its arguments."""
        if self.options.post_norm or self.has_own_attention:
            raise ValueError(
                "Tokens are added one by one to blocks with norms first and attention without "
                f"positions. Received: post_norm={self.options.post_norm}, "
                f"has_own_attention={self.has_own_attention}. Call the block with all tokens."
            )
        x, cache = self.attention.step(self.attention_norm(token), cache, index)
        token = self._add(token, x, "attention", training=False)  # (B, 1, D)
        return self._add(token, self.mlp(self.mlp_norm(token)), "mlp", training=False), cache

    def compute_output_spec(
        self,
        tokens: keras.KerasTensor,
        return_attention_scores: bool = False,
        training: bool | None = None,
        sizes: keras.KerasTensor | None = None,
        padding_mask: keras.KerasTensor | None = None,
        maps: keras.KerasTensor | None = None,
        num_queries: int | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        # Without it Keras traces the block for its shapes, most of the time of building a model.
        batch, num_tokens, width = tokens.shape
        kept = computed = num_tokens if num_queries is None else num_queries
        if self.options.num_merged_tokens:
            kept -= merged_of(num_tokens - self.num_prefix_tokens, self.options.num_merged_tokens)
        outputs = [keras.KerasTensor((batch, kept, width), dtype=self.variable_dtype)]
        if self.options.num_merged_tokens:
            outputs.append(keras.KerasTensor((batch, kept), dtype="int32"))
        if return_attention_scores:
            scores_shape = (batch, self.options.num_heads, computed, num_tokens)
            outputs.append(keras.KerasTensor(scores_shape, dtype=self.compute_dtype))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "attention": self._attention_config()}
        return {**config, **quantized_policies(self)}

    def count_costs(self, tokens_shape: Shape, *_: Shape, num_queries: int | None = None) -> Cost:
        """Cost for one image, with `num_queries` as of `call`.

        Activations are those of XLA's list of buffers at the peak, under JAX.
        """
        batch, T, D = tokens_shape
        Q = T if num_queries is None else num_queries
        merged, options = 0, self.options
        if self.has_own_attention:
            cost = cost_of(self.attention, tokens_shape)
        else:
            cost = self.attention.count_costs(tokens_shape, num_queries)
        if options.num_merged_tokens:
            merged = merged_of(T - self.num_prefix_tokens, options.num_merged_tokens)
            head_dim = options.head_width or D // options.num_heads
            cost += self.merging.count_costs(tokens_shape, head_dim)
        rest = (batch, Q - merged, D)
        cost += cost_of(self.attention_norm, tokens_shape) + cost_of(self.mlp_norm, rest)
        cost += cost_of(self.mlp, rest)
        if options.layer_scale is not None:
            cost += cost_of(self.attention_scale, (batch, Q, D)) + cost_of(self.mlp_scale, rest)
        kept = cost.activations + (Q + 3 * (Q - merged)) * D  # the residual stream and its branches
        return dataclasses.replace(cost, activations=kept, inputs=T * D, work=kept // 2)
