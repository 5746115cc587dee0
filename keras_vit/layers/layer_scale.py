"""A learned scale for every channel of a branch."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class LayerScale(Layer):
    """Multiplies every channel by a learned scale (https://arxiv.org/abs/2103.17239).

    Args:
        initial_value: Start of the scale.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.

    Returns:
        Float tensor of shape `(B, T, D)`.
    """

    def __init__(self, initial_value: float = 1e-4, **kwargs: Any):
        super().__init__(**kwargs)
        self.initial_value = initial_value

    def build(self, tokens_shape: Shape) -> None:
        start = keras.initializers.Constant(self.initial_value)
        self.gamma = self.add_weight((tokens_shape[-1],), start, name="gamma")

    def call(self, tokens: Tensor) -> Tensor:
        return tokens * ops.cast(self.gamma, tokens.dtype)

    def count_costs(self, tokens_shape: Shape) -> Cost:
        """Cost for one image."""
        return Cost(activations=math.prod(tokens_shape[1:]))
