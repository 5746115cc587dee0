"""Norms of tokens."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape


@keras.saving.register_keras_serializable("keras_vit")
class RMSNorm(keras.layers.Layer):
    """Root mean square normalisation: a layer norm without mean and shift.

    Eq. 4 in https://arxiv.org/abs/1910.07467, computed in float32.

    Args:
        epsilon: Added to the mean square.

    Call arguments:
        x: Float tensor of shape `(..., D)`.

    Returns:
        Float tensor of the same shape.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, shape: Shape) -> None:
        self.gamma = self.add_weight(name="gamma", shape=(shape[-1],), initializer="ones")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        x = ops.cast(x, "float32")
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        return ops.cast(x * ops.cast(self.gamma, "float32"), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}


def make_norm(kind: str, epsilon: float, **kwargs: Any) -> keras.layers.Layer:
    """Creates the norm of a configuration: `"layer"` or `"rms"`."""
    norm = {"layer": keras.layers.LayerNormalization, "rms": RMSNorm}[kind]
    return norm(epsilon=epsilon, **kwargs)
