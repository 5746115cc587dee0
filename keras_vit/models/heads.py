"""Input, preprocessing and head of every model."""

from __future__ import annotations

from typing import cast

import keras
import numpy as np

from keras_vit.config import ResNetConfig, ViTConfig
from keras_vit.layers.float32 import Float32Policy, float32_dense
from keras_vit.layers.layer import Tensor
from keras_vit.models.graph import check_head, final_activation
from keras_vit.runtime.model import Model, Normalization, with_config


def shape_of(input_tensor: Tensor | None) -> tuple[int | None, int | None, int] | None:
    """Shape `(height, width, channels)` of the images that take the place of an input, if any."""
    if not isinstance(input_tensor, Tensor) or len(input_tensor.shape) != 4:
        return None
    return tuple(input_tensor.shape[1:])


def image_input(config: ViTConfig | ResNetConfig, input_tensor: Tensor | None = None) -> Tensor:
    """Creates the input of a model, or checks the tensor that takes its place.

    Raises:
        ValueError: If `input_tensor` is not symbolic, or its shape does not fit `config`.
    """
    if input_tensor is None:
        return keras.Input(config.input_shape, name="images")
    if not isinstance(input_tensor, Tensor):
        raise ValueError(
            "`input_tensor` must be a symbolic tensor: the result of `keras.Input`, or of layers "
            f"that follow one. Received: a {type(input_tensor).__name__}. Call the model with it."
        )
    shape = tuple(input_tensor.shape)
    expected = config.input_shape
    if len(shape) != 4 or any(
        size not in (None, given) for size, given in zip(expected, shape[1:], strict=True)
    ):
        raise ValueError(
            f"`input_tensor` must have the shape {(None, *expected)}. Received: {shape}. "
            "Pass input_shape=(height, width, channels) as the tensor has it, or resize the images."
        )
    return input_tensor


def functional_model(
    images: Tensor | dict[str, Tensor],
    outputs: Tensor,
    config: ViTConfig | ResNetConfig,
    name: str | None,
) -> Model:
    """Creates the model from the inputs that `images` depends on.

    Only a model that starts at `images` remembers its configuration: with other layers before
    them, its images are not those of the configuration.
    """
    inputs = images if isinstance(images, dict) else keras.utils.get_source_inputs(images)
    if len(inputs) == 1 and not isinstance(inputs, dict):
        inputs = inputs[0]
    model = Model(inputs, outputs, name=name)
    return with_config(model, config) if inputs is images else model


def preprocess(images: Tensor, config: ViTConfig | ResNetConfig) -> Tensor:
    """From pixels in [0, 255] to the model's range, in float32."""
    if not config.include_preprocessing:
        return images
    return Normalization(
        config.preprocessing, config.channels, dtype=Float32Policy(), name="preprocessing"
    )(images)


def classify(x: Tensor, config: ViTConfig | ResNetConfig) -> Tensor:
    """Logits in float32 under every dtype policy; the head starts at zero."""
    if config.classes is None:
        return x
    return head(config, "head", config.classifier_activation)(x)


def head(config: ViTConfig | ResNetConfig, name: str, activation: str | None) -> keras.layers.Dense:
    """A dense layer that ends a model."""
    units, has_bias = cast("int", config.classes), config.head_bias is not None
    start = keras.initializers.Constant(config.head_bias or 0.0)
    options = {"kernel_initializer": "zeros", "bias_initializer": start}
    return float32_dense(units, name, activation, use_bias=has_bias, **options)


def class_logits(model: keras.Model, outputs: np.ndarray) -> np.ndarray:
    """Logits from the outputs of a classifier, float64: those of a softmax are known but for a sum.

    Args:
        model: A model of this package, or another classifier.
        outputs: Its outputs, array of shape `(B, K)`.
    """
    x, activation = np.asarray(outputs, "float64"), _activation_of(model)
    if activation == "linear":
        return x
    tiny = np.finfo("float32").tiny
    return np.log(np.maximum(x, tiny)) - (
        np.log(np.maximum(1 - x, tiny)) if activation == "sigmoid" else 0.0
    )


def class_probabilities(
    model: keras.Model, outputs: np.ndarray, task: str = "single_label", calibrated: bool = True
) -> np.ndarray:
    """Class probabilities from the outputs of a model: softmax or sigmoid, if these are logits.

    Args:
        model: A model of this package, or another classifier.
        outputs: Its outputs, array of shape `(B, K)`.
        task: `"single_label"` takes the softmax, `"multi_label"` the sigmoid; outputs of a
            `"regression"` are returned as they are.
        calibrated: Whether to apply `model.calibration`, if there is one.

    Returns:
        float64 array of shape `(B, K)`.

    Raises:
        ValueError: If the model has no head.
    """
    check_head(model, "A prediction")
    x = np.asarray(outputs, "float64")
    calibration = getattr(model, "calibration", None) if calibrated else None
    if task == "regression" or (calibration is None and _activation_of(model) != "linear"):
        return x
    if calibration is not None:
        x = calibration.apply(class_logits(model, x))
    return activate(x, task)


def activate(logits: np.ndarray, task: str) -> np.ndarray:
    """Softmax of logits of classes, or sigmoid of those of several labels."""
    if task == "multi_label":
        return np.exp(-np.logaddexp(0, -logits))
    x = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def _activation_of(model: keras.Model) -> str:
    config = getattr(model, "config", None)  # `None` in a `Model` of other layers
    return final_activation(model) if config is None else config.classifier_activation or "linear"
