"""What contrastive training of images and texts needs of its two towers."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.layer import Layer, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class PairFeatures(Layer):
    """Features of unit length of images and their texts, with scale and bias of the logits.

    It holds the scale and the bias as weights, which `keras_vit.train.ContrastiveLoss` trains.

    Args:
        logit_scale: Initial logarithm of the scale. CLIP begins with `log(1 / 0.07)`, SigLIP with
            `log(10)`.
        logit_bias: Initial bias, SigLIP begins with -10; `None` for no bias, as in CLIP.
        max_logit_scale: Largest logarithm of the scale, `log(100)` in CLIP; the least is then 0.
            `None` is no bound, as in SigLIP.

    Call arguments:
        images: Float tensor of shape `(B, P)`.
        texts: Float tensor of shape `(B, P)`.

    Returns:
        float32 tensor of shape `(B, 2 * P + 2)`: the normalised features of image and text, and in
        each row the scale and the bias.

    Raises:
        ValueError: If the features have unequal sizes.
    """

    def __init__(
        self,
        logit_scale: float = math.log(1 / 0.07),
        logit_bias: float | None = None,
        max_logit_scale: float | None = math.log(100),
        **kwargs: Any,
    ):
        super().__init__(**{"dtype": Float32Policy(), **kwargs})
        self.logit_scale, self.logit_bias = logit_scale, logit_bias
        self.max_logit_scale = max_logit_scale

    def build(self, images_shape: Any, texts_shape: Any) -> None:
        if images_shape[-1] != texts_shape[-1]:
            raise ValueError(
                "Images and texts must have features of one size. Received: "
                f"{images_shape[-1]} and {texts_shape[-1]}. Give the text tower this "
                "`projection_size`, or the image tower a head of it."
            )
        bound = None if self.max_logit_scale is None else Between(0.0, self.max_logit_scale)
        self.scale = self._add("logit_scale", self.logit_scale, bound)
        self.bias = None if self.logit_bias is None else self._add("logit_bias", self.logit_bias)

    def _add(self, name: str, value: float, bound: Between | None = None) -> keras.Variable:
        start = keras.initializers.Constant(value)
        return self.add_weight(shape=(), initializer=start, constraint=bound, name=name)

    def call(self, images: Tensor, texts: Tensor) -> Tensor:
        features = [ops.normalize(ops.cast(x, "float32"), axis=-1) for x in (images, texts)]
        bias = 0.0 if self.bias is None else ops.convert_to_tensor(self.bias)
        last = ops.stack([ops.exp(self.scale), ops.cast(bias, "float32")])
        last = ops.broadcast_to(last, (ops.shape(images)[0], 2))
        return ops.concatenate([*features, last], axis=-1)


@keras.saving.register_keras_serializable("keras_vit")
class Between(keras.constraints.Constraint):
    """Keeps a weight between two values.

    Args:
        low: The least value.
        high: The largest value.
    """

    def __init__(self, low: float, high: float):
        self.low, self.high = low, high

    def __call__(self, weight: Tensor) -> Tensor:
        return ops.clip(weight, self.low, self.high)

    def get_config(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}
