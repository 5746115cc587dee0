"""The transformer block."""

from __future__ import annotations

import keras

from keras_vit.checks import check_positive, check_rate
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.mlp import MLP
from keras_vit.layers.recomputation import recompute


@keras.saving.register_keras_serializable("keras_vit")
class LayerScale(keras.layers.Layer):
    """Multiplies every channel by a learned scale (https://arxiv.org/abs/2103.17239).

    Args:
        initial_value: Start of the scale.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.

    Returns:
        Float tensor of shape `(B, T, D)`.
    """

    def __init__(self, initial_value=1e-4, **kwargs):
        super().__init__(**kwargs)
        self.initial_value = initial_value

    def build(self, tokens_shape):
        self.gamma = self.add_weight(
            name="gamma",
            shape=(tokens_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
        )

    def call(self, tokens):
        return tokens * self.gamma

    def get_config(self):
        return {**super().get_config(), "initial_value": self.initial_value}


@keras.saving.register_keras_serializable("keras_vit")
class TransformerBlock(keras.layers.Layer):
    """One pre-norm encoder block: attention, then MLP, each added to what came in.

    Eq. 2 and 3 in https://arxiv.org/abs/2010.11929.

    Args:
        num_heads: Attention heads, which divide the width.
        mlp_dim: Hidden dimension of the MLP.
        gelu: `"tanh"`, as in the official code, or `"exact"`, as in timm and transformers.
        norm_epsilon: Added to the variance in the layer norms.
        dropout_rate: After every dense layer but queries, keys and values; in [0, 1).
        attention_dropout_rate: On the attention weights, in [0, 1).
        stochastic_depth_rate: Probability that a branch is left out for an image in training,
            the others scaled up to keep the mean (https://arxiv.org/abs/1603.09382); in [0, 1).
        layer_scale: Start of a learned scale of each branch, or `None` for no scale.
        qk_norm: Whether queries and keys are normalised per head.
        relative_positions: Whether keys get a learned embedding of their distance.
        rematerialize: Whether training keeps only the block's input and computes the rest again
            for the gradient: less memory, about a third more computation.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout and stochastic depth are on.

    Returns:
        Float tensor of shape `(B, T, D)`; with `return_attention_scores`, also one of shape
        `(B, A, T, T)` whose rows sum to 1.

    Raises:
        ValueError: If the heads do not divide the width, or a rate is not in [0, 1).
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        gelu="tanh",
        norm_epsilon=1e-6,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        stochastic_depth_rate=0.0,
        layer_scale=None,
        qk_norm=False,
        relative_positions=False,
        rematerialize=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive("num_heads", num_heads)
        check_positive("mlp_dim", mlp_dim)
        check_rate("dropout_rate", dropout_rate)
        check_rate("attention_dropout_rate", attention_dropout_rate)
        check_rate("stochastic_depth_rate", stochastic_depth_rate)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.gelu = gelu
        self.norm_epsilon = norm_epsilon
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.stochastic_depth_rate = stochastic_depth_rate
        self.layer_scale = layer_scale
        self.qk_norm = qk_norm
        self.relative_positions = relative_positions
        self.rematerialize = rematerialize

    def build(self, tokens_shape):
        self.attention_norm = self._build(self._norm("attention_norm"), tokens_shape)
        self.attention = self._build(
            SelfAttention(
                self.num_heads,
                dropout_rate=self.dropout_rate,
                attention_dropout_rate=self.attention_dropout_rate,
                qk_norm=self.qk_norm,
                relative_positions=self.relative_positions,
                norm_epsilon=self.norm_epsilon,
                dtype=self.dtype_policy,
                name="attention",
            ),
            tokens_shape,
        )
        self.mlp_norm = self._build(self._norm("mlp_norm"), tokens_shape)
        self.mlp = self._build(
            MLP(
                self.mlp_dim,
                gelu=self.gelu,
                dropout_rate=self.dropout_rate,
                dtype=self.dtype_policy,
                name="mlp",
            ),
            tokens_shape,
        )
        if self.layer_scale is not None:
            self.attention_scale = self._build(self._scale("attention_scale"), tokens_shape)
            self.mlp_scale = self._build(self._scale("mlp_scale"), tokens_shape)
        # Dropout with one decision an image is stochastic depth.
        self.stochastic_depth = keras.layers.Dropout(
            self.stochastic_depth_rate, noise_shape=(None, 1, 1), dtype=self.dtype_policy
        )

    def _build(self, layer, tokens_shape):
        layer.build(tokens_shape)
        return layer

    def _norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def _scale(self, name):
        return LayerScale(self.layer_scale, dtype=self.dtype_policy, name=name)

    def call(self, tokens, return_attention_scores=False, training=None):
        if self.rematerialize and training and not return_attention_scores:
            return recompute(self, lambda x: self._transform(x, False, training), tokens)
        return self._transform(tokens, return_attention_scores, training)

    def _transform(self, tokens, return_attention_scores, training):
        x = self.attention_norm(tokens)
        x = self.attention(x, return_attention_scores=return_attention_scores, training=training)
        x, scores = x if return_attention_scores else (x, None)
        if self.layer_scale is not None:
            x = self.attention_scale(x)
        tokens = tokens + self.stochastic_depth(x, training=training)  # (B, T, D)
        x = self.mlp(self.mlp_norm(tokens), training=training)
        if self.layer_scale is not None:
            x = self.mlp_scale(x)
        tokens = tokens + self.stochastic_depth(x, training=training)  # (B, T, D)
        return (tokens, scores) if return_attention_scores else tokens

    def compute_output_spec(self, tokens, return_attention_scores=False, training=None):
        # Without it Keras traces the block for its shapes, most of the time of building a model.
        outputs = keras.KerasTensor(tokens.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return outputs
        batch, num_tokens, _ = tokens.shape
        scores_shape = (batch, self.num_heads, num_tokens, num_tokens)
        return outputs, keras.KerasTensor(scores_shape, dtype=self.compute_dtype)

    def get_config(self):
        config = {
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "gelu": self.gelu,
            "norm_epsilon": self.norm_epsilon,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "stochastic_depth_rate": self.stochastic_depth_rate,
            "layer_scale": self.layer_scale,
            "qk_norm": self.qk_norm,
            "relative_positions": self.relative_positions,
            "rematerialize": self.rematerialize,
        }
        return {**super().get_config(), **config}
