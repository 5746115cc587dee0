"""The transformer block."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_rate
from keras_vit.config import take_options
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.costs import Cost, cost_of
from keras_vit.layers.dense import quantized_policies
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mlp import make_mlp
from keras_vit.layers.norm import make_norm
from keras_vit.layers.recompute import recompute
from keras_vit.layers.rotary import Rotation


@keras.saving.register_keras_serializable("keras_vit")
class TransformerBlock(Layer):
    """One encoder block: attention, then MLP, each of normalised tokens and added to what came in.

    Eq. 2 and 3 in https://arxiv.org/abs/2010.11929.

    Args:
        num_heads: Attention heads, which divide the width.
        mlp_dim: Hidden dimension of the MLP.
        stochastic_depth_rate: Probability that a branch is left out for an image in training,
            the others scaled up to keep the mean (https://arxiv.org/abs/1603.09382); in [0, 1).
        attention: Layer in place of `SelfAttention`, such as a `WindowAttention`, with its call
            arguments, of which it gets those that are set; `None` makes a `SelfAttention`.
        **kwargs: Other fields of `keras_vit.config.BlockOptions`, such as `norm="rms"`, and
            arguments of every Keras layer, such as `name`.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        rotation: As for `SelfAttention`.
        attention_mask: As for `SelfAttention`.
        num_queries: How many of the tokens, the first ones, are computed; `None` is all. The others
            are keys and values alone, and missing in the output.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout and stochastic depth are on.

    Returns:
        Float tensor of shape `(B, Q, D)` with `Q = num_queries`, `T` by default, in the type of the
        variables: under half-precision policies the residual stream stays float32; with
        `return_attention_scores`, also one of shape `(B, A, Q, T)` whose rows sum to 1.

    Raises:
        ValueError: If the heads do not divide the width, or a rate is not in [0, 1); for
            `num_queries` where the attention computes all tokens.
    """

    attention_class: type[SelfAttention] = SelfAttention

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        stochastic_depth_rate: float = 0.0,
        attention: keras.Layer | dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.options, kwargs = take_options(num_heads=num_heads, mlp_dim=mlp_dim, **kwargs)
        super().__init__(autocast=False, **kwargs)  # the residual stream keeps its precision
        check_rate("stochastic_depth_rate", stochastic_depth_rate)
        self.stochastic_depth_rate = stochastic_depth_rate
        if isinstance(attention, dict):  # of `get_config`
            fields = {**attention["config"], "dtype": self.dtype_policy}
            attention = keras.saving.deserialize_keras_object({**attention, "config": fields})
        # Keras tracks it from `build` on, after the norm: in the order of other models' weights.
        self.__dict__["_own_attention"] = attention

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        if "num_prefix_tokens" in config and cls is TransformerBlock:  # of a file of before
            return keras.saving.get_registered_object("keras_vit>earlier_block")(config)
        return super().from_config(config)

    def build(
        self,
        tokens_shape: Shape,
        rotation_shape: Shape | None = None,
        attention_mask_shape: Shape | None = None,
    ) -> None:
        rate, policy = self.stochastic_depth_rate, self.dtype_policy
        self.attention_norm = self._norm("attention_norm")
        self.attention = self.__dict__["_own_attention"] or self.attention_class(
            **vars(self.options), dtype=policy, name="attention"
        )
        self.mlp_norm = self._norm("mlp_norm")
        self.mlp = make_mlp(self.options, dtype=policy, name="mlp")
        parts = [self.attention_norm, self.attention, self.mlp_norm, self.mlp]
        if self.options.layer_scale is not None:
            start = self.options.layer_scale
            self.attention_scale = LayerScale(start, dtype=policy, name="attention_scale")
            self.mlp_scale = LayerScale(start, dtype=policy, name="mlp_scale")
            parts += [self.attention_scale, self.mlp_scale]
        for part in parts:
            part.build(tokens_shape)
        # Dropout with one decision an image is stochastic depth.
        self.stochastic_depth = keras.layers.Dropout(rate, noise_shape=(None, 1, 1), dtype=policy)

    def _norm(self, name: str) -> keras.layers.Layer:
        kind, epsilon = self.options.norm, self.options.norm_epsilon
        return make_norm(kind, epsilon, dtype=self.dtype_policy, autocast=False, name=name)

    @property
    def takes_num_queries(self) -> bool:
        """Whether the block can compute the first tokens alone: its attention tells."""
        return vars(type(self.attention)).get("takes_num_queries", False)

    def call(
        self,
        tokens: Tensor,
        rotation: Rotation | None = None,
        attention_mask: Tensor | None = None,
        *,
        num_queries: int | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        if num_queries is not None and not self.takes_num_queries:
            raise ValueError(
                f"{type(self.attention).__name__} computes all tokens. Received: num_queries="
                f"{num_queries}. Leave num_queries out."
            )
        given = (tokens, rotation, attention_mask)
        more = (num_queries, return_attention_scores, training)
        if self.options.rematerialize and training and not return_attention_scores:
            return recompute(self, lambda *x: self.transform(*(*x, *more)), *given)
        return self.transform(*given, *more)

    def transform(
        self,
        tokens: Tensor,
        rotation: Any,
        attention_mask: Any,
        num_queries: int | None,
        return_attention_scores: bool,
        training: bool | None,
    ) -> Tensor | tuple[Tensor, ...]:
        """Eq. 2 and 3, with the arguments and the result of `call`."""
        # Rounding the sum of all branches to bfloat16 after each would be most of the error.
        tokens = ops.cast(tokens, self.variable_dtype)
        given = {"rotation": rotation, "attention_mask": attention_mask, "num_queries": num_queries}
        attended = self.attention(
            self.before("attention", tokens),
            **{name: value for name, value in given.items() if value is not None},
            return_attention_scores=return_attention_scores,
            training=training,
        )
        x, *scores = attended if return_attention_scores else (attended,)
        if num_queries is not None:
            tokens = tokens[:, :num_queries]  # the others are keys and values alone
        tokens = self.add("attention", tokens, x, training)  # (B, Q, D)
        x = self.mlp(self.before("mlp", tokens), training=training)
        tokens = self.add("mlp", tokens, x, training)
        return (tokens, *scores) if scores else tokens

    def before(self, branch: str, tokens: Tensor) -> Tensor:
        """The input of a branch, `"attention"` or `"mlp"`: normalised tokens."""
        return getattr(self, f"{branch}_norm")(tokens)

    def add(self, branch: str, tokens: Tensor, x: Tensor, training: bool | None) -> Tensor:
        """Adds the output of a branch to the residual stream."""
        if self.options.layer_scale is not None:
            x = getattr(self, f"{branch}_scale")(x)
        x = self.stochastic_depth(x, training=training)
        return tokens + ops.cast(x, tokens.dtype)

    def attention_scores(self, tokens: Tensor, rotation: Any = None, **given: Any) -> Tensor:
        """Attention weights `(B, A, T, T)`, without the rest of the block, as of `call`."""
        given |= {} if rotation is None else {"rotation": rotation}
        x = self.before("attention", ops.cast(tokens, self.variable_dtype))
        return self.attention(x, **given, return_attention_scores=True, training=False)[1]

    def compute_output_spec(self, tokens: Tensor, *_: Any, **options: Any) -> Any:
        # Without it Keras traces the block for its shapes, most of the time of building a model.
        batch, num_tokens, width = tokens.shape
        computed = options.get("num_queries") or num_tokens
        outputs = keras.KerasTensor((batch, computed, width), dtype=self.variable_dtype)
        if not options.get("return_attention_scores"):
            return outputs
        shape = (batch, self.options.num_heads, computed, num_tokens)
        return outputs, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        own, attention = self.__dict__["_own_attention"], None
        if own is not None:
            attention = keras.saving.serialize_keras_object(own)
            attention.pop("build_config", None)
        return {**super().get_config(), "attention": attention, **quantized_policies(self)}

    def count_costs(self, tokens_shape: Shape, *_: Shape, num_queries: int | None = None) -> Cost:
        """Cost for one image, with `num_queries` as of `call`.

        Activations are those of XLA's list of buffers at the peak, under JAX.
        """
        Q = tokens_shape[1] if num_queries is None else num_queries
        cost = cost_of(self.attention, tokens_shape)
        if num_queries is not None:
            cost = self.attention.count_costs(tokens_shape, num_queries=num_queries)
        return self.add_costs(cost, tokens_shape, Q, Q)

    def add_costs(self, cost: Cost, tokens_shape: Shape, attended: int, kept: int) -> Cost:
        """Adds the rest to the cost of attention with so many outputs, of which some are kept."""
        batch, T, D = tokens_shape
        parts = [(self.attention_norm, T), (self.mlp_norm, kept), (self.mlp, kept)]
        if self.options.layer_scale is not None:
            parts += [(self.attention_scale, attended), (self.mlp_scale, kept)]
        for part, count in parts:
            cost += cost_of(part, (batch, count, D))
        stored = cost.activations + (attended + 3 * kept) * D  # residual stream and branches
        return dataclasses.replace(cost, activations=stored, inputs=T * D, work=stored // 2)
