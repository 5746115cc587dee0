"""The two dense layers of a block, and the two forms of GELU."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_positive, check_rate
from keras_vit.layers.dense import Dense


def gelu(x: keras.KerasTensor, form: str) -> keras.KerasTensor:
    """Gaussian error linear unit, https://arxiv.org/abs/1606.08415.

    The forms differ by up to 4.7e-4 (at x = 2.7), which is visible in logits.

    Args:
        x: Float tensor of any shape.
        form: `"tanh"`, the approximation of the official code, or `"exact"`, of timm and
            transformers.

    Returns:
        Tensor of the shape and type of `x`.
    """
    if form == "tanh":
        return keras.activations.gelu(x, approximate=True)
    # Written out: TensorFlow's own exact GELU becomes `Erfc`, which neither ONNX nor, in half
    # precision, LiteRT knows; both recognise this form.
    return 0.5 * x * (1.0 + ops.erf(x * 0.7071067811865476))


@keras.saving.register_keras_serializable("keras_vit")
class MLP(keras.layers.Layer):
    """Two dense layers with a GELU between them, on every token by itself.

    The MLP of Eq. 3 in https://arxiv.org/abs/2010.11929. Tokens are flattened to two dimensions,
    so that the processor's library joins product, bias and GELU.

    Args:
        hidden_dim: Dimension of the hidden layer.
        gelu: `"tanh"` or `"exact"`.
        dropout_rate: Dropout after each dense layer, in [0, 1).

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        training: Whether dropout is on.

    Returns:
        Float tensor of shape `(B, T, D)`.

    Raises:
        ValueError: If `hidden_dim` is not positive or the rate is not in [0, 1).
    """

    def __init__(
        self, hidden_dim: int, gelu: str = "tanh", dropout_rate: float = 0.0, **kwargs: Any
    ):
        super().__init__(**kwargs)
        check_positive("hidden_dim", hidden_dim)
        check_rate("dropout_rate", dropout_rate)
        self.hidden_dim = hidden_dim
        self.gelu = gelu
        self.dropout_rate = dropout_rate

    def build(self, tokens_shape: Shape) -> None:
        width = tokens_shape[-1]
        self.hidden = self._build_dense("hidden", width, self.hidden_dim)
        self.output_projection = self._build_dense("output", self.hidden_dim, width)
        self.hidden_dropout = keras.layers.Dropout(self.dropout_rate, dtype=self.dtype_policy)
        self.dropout = keras.layers.Dropout(self.dropout_rate, dtype=self.dtype_policy)

    def _build_dense(self, name: str, input_dim: int, units: int) -> Dense:
        dense = Dense(
            units,
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),  # as official
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, input_dim))
        return dense

    def call(self, tokens: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        _, num_tokens, width = tokens.shape
        x = self.hidden(ops.reshape(tokens, (-1, width)))  # (B * T, hidden_dim)
        x = self.hidden_dropout(gelu(x, self.gelu), training=training)
        x = self.output_projection(x)  # (B * T, D)
        return self.dropout(ops.reshape(x, (-1, num_tokens, width)), training=training)

    def get_config(self) -> dict[str, Any]:
        config = {
            "hidden_dim": self.hidden_dim,
            "gelu": self.gelu,
            "dropout_rate": self.dropout_rate,
        }
        return {**super().get_config(), **config}
