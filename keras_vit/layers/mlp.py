"""The dense layers of a block, and the forms of GELU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_positive, check_rate
from keras_vit.config import BlockOptions
from keras_vit.layers.any_size import size_of
from keras_vit.layers.costs import Cost
from keras_vit.layers.dense import Dense, build_dense
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.layers.norm import make_norm
from keras_vit.layers.traced import PerThread, shape_to_trace


def gelu(x: Tensor, form: str, training: bool | None = False) -> Tensor:
    """Gaussian error linear unit, https://arxiv.org/abs/1606.08415.

    The first two forms differ by up to 4.7e-4 (at x = 2.7), the third by up to 2.1e-2 (at x = 2.2),
    which is visible in logits.

    Args:
        x: Float tensor of any shape.
        form: `"tanh"`, the approximation of the official code, `"exact"`, of timm and
            transformers, `"quick"`, of OpenAI's CLIP, or `"relu"`, no GELU at all (TIPS).
        training: Whether TensorFlow computes value and derivative in closed form, in float32.

    Returns:
        Tensor of the shape and type of `x`.
    """
    if form == "relu":
        return ops.relu(x)
    if training and keras.backend.backend() == "tensorflow":
        dtype = keras.backend.standardize_dtype(x.dtype)
        return _gelu_with_gradient(form, shape_to_trace(x), dtype)(x)
    if form == "tanh":
        # TensorFlow's optimizer sorts equal factors by name. With a name after "hidden", that of
        # the product, they are in the order that it joins to one operation of oneDNN.
        with keras.name_scope("tanh_gelu"):
            return keras.activations.gelu(x, approximate=True)
    if form == "quick":
        return x * ops.sigmoid(1.702 * x)
    # Written out: TensorFlow's own exact GELU becomes `Erfc`, which neither ONNX nor, in half
    # precision, LiteRT knows; both recognise this form.
    return 0.5 * x * (1.0 + ops.erf(x * 0.7071067811865476))


@PerThread
def _gelu_with_gradient(
    form: str, shape: tuple[int | None, ...], dtype: str
) -> Callable[[Any], Any]:
    """A GELU of tensors of this shape that keeps its derivative alone, as `_norm_with_gradient`."""
    import tensorflow as tf

    def value_and_derivative(x: Any) -> tuple[Any, Any]:
        if form == "quick":
            share = tf.sigmoid(1.702 * x)
            return x * share, share * (1.0 + 1.702 * x * (1.0 - share))
        if form == "tanh":
            # (1 + tanh(u)) / 2 = sigmoid(2 u), which has all its digits where it is near 0.
            linear, cubic = 2 * math.sqrt(2 / math.pi), 0.08943 * math.sqrt(2 / math.pi)
            square = tf.square(x)
            share = tf.sigmoid(x * (linear + cubic * square))
            return x * share, share + x * (linear + 3 * cubic * square) * share * (1.0 - share)
        share = 0.5 + 0.5 * tf.math.erf(x * math.sqrt(0.5))
        density = tf.exp(-0.5 * tf.square(x)) * (1 / math.sqrt(2 * math.pi))
        return x * share, share + x * density

    @tf.custom_gradient
    def gelu(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        x = tf.cast(x, keras.backend.result_type(dtype, "float32"))
        y, derivative = value_and_derivative(x)
        derivative = tf.cast(derivative, dtype)
        return tf.cast(y, dtype), lambda dy: dy * derivative

    return tf.function(gelu, autograph=False, input_signature=[tf.TensorSpec(shape, dtype)])


@keras.saving.register_keras_serializable("keras_vit")
class MLP(Layer):
    """Two dense layers with a GELU or a gate between them, on every token by itself.

    The MLP of Eq. 3 in https://arxiv.org/abs/2010.11929. Tokens are flattened to two dimensions,
    so that the processor's library joins product, bias and GELU.

    Args:
        hidden_dim: Dimension of the hidden layer.
        gelu: `"tanh"`, `"exact"`, `"quick"` or `"relu"`.
        dropout_rate: Dropout after each dense layer, in [0, 1).
        swiglu: Whether `silu(a) * b` takes the place of the GELU
            (https://arxiv.org/abs/2002.05202). One product computes `a` and `b`, in that order.
        inner_norm: Whether the hidden layer is normalised (https://arxiv.org/abs/2110.09456).
        use_bias: Whether the dense layers have biases.
        norm: `"layer"` or `"rms"`.
        norm_epsilon: Added to the variance in the norm.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        training: Whether dropout is on.

    Returns:
        Float tensor of shape `(B, T, D)`.

    Raises:
        ValueError: If `hidden_dim` is not positive or the rate is not in [0, 1).
    """

    def __init__(
        self,
        hidden_dim: int,
        gelu: str = "tanh",
        dropout_rate: float = 0.0,
        swiglu: bool = False,
        inner_norm: bool = False,
        use_bias: bool = True,
        norm: str = "layer",
        norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("hidden_dim", hidden_dim)
        check_rate("dropout_rate", dropout_rate)
        self.hidden_dim = hidden_dim
        self.gelu = gelu
        self.dropout_rate = dropout_rate
        self.swiglu = swiglu
        self.inner_norm = inner_norm
        self.use_bias = use_bias
        self.norm_kind = norm
        self.norm_epsilon = norm_epsilon

    def build(self, tokens_shape: Shape) -> None:
        width, policy = tokens_shape[-1], self.dtype_policy
        units = 2 * self.hidden_dim if self.swiglu else self.hidden_dim
        self.hidden = self._build_dense("hidden", width, units)
        if self.inner_norm:
            self.norm = make_norm(self.norm_kind, self.norm_epsilon, dtype=policy, name="norm")
            self.norm.build((None, self.hidden_dim))
        self.output_projection = self._build_dense("output", self.hidden_dim, width)
        self.hidden_dropout = keras.layers.Dropout(self.dropout_rate, dtype=policy)
        self.dropout = keras.layers.Dropout(self.dropout_rate, dtype=policy)

    def _build_dense(self, name: str, input_dim: int, units: int) -> Dense:
        start = keras.initializers.RandomNormal(stddev=1e-6)  # as official
        options = {"use_bias": self.use_bias, "bias_initializer": start}
        return build_dense(self, name, input_dim, units, **options)

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        num_tokens, width = size_of(tokens, 1), tokens.shape[-1]
        x = self.hidden(ops.reshape(tokens, (-1, width)))  # (B * T, hidden_dim)
        x = self.hidden_dropout(self._activate(x, training), training=training)
        if self.inner_norm:
            x = self.norm(x)
        x = self.output_projection(x)  # (B * T, D)
        return self.dropout(ops.reshape(x, (-1, num_tokens, width)), training=training)

    def _activate(self, x: Tensor, training: bool | None) -> Tensor:
        if not self.swiglu:
            return gelu(x, self.gelu, training)
        gate, x = ops.split(x, 2, axis=-1)  # (B * T, hidden_dim) each
        return gate * ops.sigmoid(gate) * x

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "norm": self.norm_kind}

    def count_costs(self, tokens_shape: Shape) -> Cost:
        """Cost for one image."""
        _, T, D = tokens_shape
        M, gated = self.hidden_dim, int(self.swiglu)
        # The hidden layer before and after its GELU, and the GELU's tanh or erf, or both inputs
        # of a gate, its sigmoid and its output.
        kept = (3 + gated + self.inner_norm) * T * M
        if self.dropout_rate:
            kept += 2 * T * (M + D)  # masks, and masked values
        return Cost((2 + gated) * T * D * M, kept)


def make_mlp(options: BlockOptions, **kwargs: Any) -> MLP:
    """The MLP of a block with these options."""
    return MLP(
        options.mlp_dim,
        gelu=options.gelu,
        dropout_rate=options.dropout_rate,
        swiglu=options.swiglu,
        inner_norm="mlp" in options.inner_norms,
        use_bias="mlp" not in options.without_bias,
        norm=options.norm,
        norm_epsilon=options.norm_epsilon,
        **kwargs,
    )
