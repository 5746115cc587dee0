"""Norms of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.layers.traced import PerThread, shape_to_trace


@PerThread
def _norm_with_gradient(
    epsilon: float, shape: tuple[int | None, ...], dtypes: tuple[str, str]
) -> Callable[..., Any]:
    """Layer norm of a tensor, a scale and a shift, with its gradients in closed form.

    TensorFlow keeps every custom gradient that it traces for the life of the process, with the
    graph around it. This one is traced once for a shape and thread, in a small graph of its own.
    `dtypes` are those of the tensor and of the output.
    """
    import tensorflow as tf

    dtype = keras.backend.result_type(dtypes[0], "float32")

    def mean_of(x: Any) -> Any:
        return tf.reduce_mean(x, axis=-1, keepdims=True)

    @tf.custom_gradient
    def norm(x: Any, gamma: Any, beta: Any) -> tuple[Any, Callable[..., Any]]:
        mean = mean_of(tf.cast(x, dtype))
        centered = tf.cast(x, dtype) - mean
        scale = tf.math.rsqrt(mean_of(tf.square(centered)) + epsilon)
        y = tf.cast(centered * scale * gamma + beta, dtypes[1])

        def gradients(dy: Any) -> tuple[Any, Any, Any]:
            dy = tf.cast(dy, dtype)
            normed = (tf.cast(x, dtype) - mean) * scale
            scaled = dy * gamma
            dx = scale * (scaled - mean_of(scaled) - normed * mean_of(scaled * normed))
            axes = list(range(len(shape) - 1))
            dgamma = tf.reduce_sum(dy * normed, axes)
            return tf.cast(dx, dtypes[0]), dgamma, tf.reduce_sum(dy, axes)

        return y, gradients

    vector = tf.TensorSpec(shape[-1:], dtype)
    signature = [tf.TensorSpec(shape, dtypes[0]), vector, vector]
    return tf.function(norm, autograph=False, input_signature=signature)


@keras.saving.register_keras_serializable("keras_vit")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization`, whose gradients TensorFlow trains with in closed form.

    A traced step has an eighth of the operations, and keeps the input, its mean and its deviation.
    Inference and other backends compute as Keras does.

    Args:
        *args: As for `keras.layers.LayerNormalization`.
        **kwargs: As for `keras.layers.LayerNormalization`.
    """

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        last = self.axis in ([-1], [len(x.shape) - 1])
        plain = self.rms_scaling or self.gamma is None or not last
        if not training or plain or keras.backend.backend() != "tensorflow":
            return super().call(x)
        dtype = keras.backend.standardize_dtype
        norm = _norm_with_gradient(
            self.epsilon, shape_to_trace(x), (dtype(x.dtype), dtype(self.compute_dtype))
        )
        scale = keras.backend.result_type(x.dtype, "float32")
        gamma = ops.cast(self.gamma, scale)
        beta = ops.zeros_like(gamma) if self.beta is None else ops.cast(self.beta, scale)
        return norm(x, gamma, beta)

    @property
    def by_token(self) -> bool:
        """Whether each token `(B, T, D)` is normalised by itself."""
        return self.axis in ([-1], [2])


@keras.saving.register_keras_serializable("keras_vit")
class RMSNorm(Layer):
    """Root mean square normalisation: a layer norm without mean and shift.

    Eq. 4 in https://arxiv.org/abs/1910.07467, computed in float32.

    Args:
        epsilon: Added to the mean square.

    Attributes:
        by_token: Whether each token is normalised by itself.

    Call arguments:
        x: Float tensor of shape `(..., D)`.

    Returns:
        Float tensor of the same shape.
    """

    by_token = True

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, shape: Shape) -> None:
        self.gamma = self.add_weight(name="gamma", shape=(shape[-1],), initializer="ones")

    def call(self, x: Tensor) -> Tensor:
        x = ops.cast(x, "float32")
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        return ops.cast(x * ops.cast(self.gamma, "float32"), self.compute_dtype)


def make_norm(kind: str, epsilon: float, **kwargs: Any) -> keras.layers.Layer:
    """Creates the norm of a configuration: `"layer"` or `"rms"`."""
    norm = {"layer": LayerNormalization, "rms": RMSNorm}[kind]
    return norm(epsilon=epsilon, **kwargs)
