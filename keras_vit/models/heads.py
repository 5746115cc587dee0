"""What every model begins and ends with: the preprocessing of pixels, and the head."""

from __future__ import annotations

import keras

from keras_vit.config import ResNetConfig, ViTConfig


def preprocess(images, config: ViTConfig | ResNetConfig):
    """From pixels in [0, 255] to the model's range, in float32."""
    if not config.include_preprocessing:
        return images
    mean, std = config.preprocessing.per_channel(config.channels)
    return keras.layers.Normalization(
        axis=-1,
        mean=mean,
        variance=[s**2 for s in std],
        dtype="float32",  # also under half-precision policies
        name="preprocessing",
    )(images)


def classify(x, config: ViTConfig | ResNetConfig):
    """Logits in float32 under every dtype policy; the head starts at zero."""
    if config.classes is None:
        return x
    return head(config, "head", config.classifier_activation)(x)


def head(config: ViTConfig | ResNetConfig, name: str, activation: str | None):
    """A dense layer that ends a model."""
    return keras.layers.Dense(
        config.classes,
        activation=activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype="float32",
        name=name,
    )
