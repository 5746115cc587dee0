"""The ResNets of the paper: the stem of a hybrid, the BiT baseline, kernels for inference."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.config import ResNetConfig, ResNetStem
from keras_vit.layers.convolution import GroupNorm, StdConv2D
from keras_vit.layers.layer import Tensor
from keras_vit.layers.residual import BiTRoot, ResNetStage, StemRoot
from keras_vit.models.cloning import change_config, clone
from keras_vit.models.heads import classify, functional_model, image_input, preprocess
from keras_vit.runtime.model import Model
from keras_vit.runtime.private_names import flatten_layers

_FILTERS = 64  # of the root and of the first stage's 3 x 3 convolutions


def build_resnet(
    config: ResNetConfig, name: str | None = None, input_tensor: Tensor | None = None
) -> Model:
    """Builds a BiT ResNet from its configuration.

    Layers have stable names: `preprocessing`, `root`, `stage_1` and on, `norm`, `relu`,
    `pooling`, `head`. `keras.Model(model.input, model.get_layer("stage_3").output)` gives the
    maps of a stage.

    Args:
        config: The architecture.
        name: Name of the model.
        input_tensor: Symbolic images of shape `(B, H, W, C)` to use as the input, as in
            `keras.applications`.

    Returns:
        A functional `keras_vit.Model` from images of shape `(B, H, W, C)`, with values in
        [0, 255] where `config.include_preprocessing`, to float32 logits of shape `(B, K)`. With
        `config.classes=None` it ends in features instead, of shape `(B, D)`, or
        `(B, H / 32, W / 32, D)` without pooling.

    Example:

    >>> config = keras_vit.ResNetConfig(stages=(1, 1), image_size=32, classes=10)
    >>> keras_vit.build_resnet(config).output_shape
    (None, 10)
    """
    images = image_input(config, input_tensor)
    x = preprocess(images, config)
    x = BiTRoot(_FILTERS * config.width_factor, config.standardization, name="root")(x)
    x = add_stages(x, config, pre_activation=True)
    x = GroupNorm(config.norm_epsilon, name="norm")(x)
    x = keras.layers.ReLU(name="relu")(x)  # (B, H / 32, W / 32, D)
    if config.pooling == "gap":
        pooling = keras.layers.GlobalAveragePooling2D("channels_last", name="pooling")
        x = pooling(x)  # (B, D)
    return functional_model(images, classify(x, config), config, name)


def add_stem(x: Tensor, stem: ResNetStem) -> Tensor:
    """The ResNet of a hybrid on images: layers `stem_root`, `stem_stage_1` and on."""
    filters = _FILTERS * stem.width_factor
    x = StemRoot(filters, stem.norm_epsilon, stem.standardization, name="stem_root")(x)
    return add_stages(x, stem, pre_activation=False, prefix="stem_")


def add_stages(
    x: Tensor, config: ResNetConfig | ResNetStem, pre_activation: bool, prefix: str = ""
) -> Tensor:
    """The residual stages; each is twice as wide as the one before, and half as large."""
    for index, num_units in enumerate(config.stages):
        x = ResNetStage(
            num_units,
            _FILTERS * config.width_factor * 2**index,
            strides=1 if index == 0 else 2,
            pre_activation=pre_activation,
            norm_epsilon=config.norm_epsilon,
            standardization=config.standardization,
            name=f"{prefix}stage_{index + 1}",
        )(x)
    return x


def fold_standardization(model: keras.Model) -> keras.Model:
    """A copy of a model whose convolutions use their standardised kernels as they are.

    Weight standardisation is part of training. Where weights no longer change, it need be
    computed once only: the copy gives the same numbers to rounding and skips that work at every
    call, in the program and in every exported file. The copy is for inference; train `model`.

    Args:
        model: A hybrid, a BiT ResNet, or any functional model with their layers.

    Returns:
        A new model of the same class, not compiled, with variables of the same paths; `model`
        itself where it has nothing to fold.
    """
    if not standardized_layers(model):
        return model
    return clone(model, change_config(model.get_config(), folded_config), folded_values)


def standardized_layers(model: keras.Model) -> list[StdConv2D]:
    """Lists the convolutions of a model that standardise their kernels."""
    layers = (layer for layer in flatten_layers(model) if isinstance(layer, StdConv2D))
    return [layer for layer in layers if layer.standardization is not None]


def folded_values(layer: keras.layers.Layer) -> dict[str, Any]:
    """The kernel that a convolution computes with; empty for other layers."""
    return {"kernel": layer.effective_kernel()} if isinstance(layer, StdConv2D) else {}


def folded_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without weight standardisation."""
    return {**config, "standardization": None} if "standardization" in config else config
