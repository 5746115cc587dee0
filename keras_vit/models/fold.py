"""For inference: standardised kernels become plain ones."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.layers.convolution import StdConv2D
from keras_vit.trainers.private_names import flatten_layers

_FIELD = "standardization"  # of layers and of configurations


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
    kernels = {
        layer.kernel.path: layer.effective_kernel()
        for layer in flatten_layers(model)
        if isinstance(layer, StdConv2D) and layer.standardization is not None
    }
    if not kernels:
        return model
    folded = type(model).from_config(_without_standardization(model.get_config()))
    for ours, theirs in zip(folded.variables, model.variables, strict=True):
        ours.assign(kernels.get(theirs.path, theirs))
    return folded


def _without_standardization(config: Any) -> Any:
    """A nested configuration with the field set to `None` wherever it occurs."""
    if isinstance(config, dict):
        return {
            key: None if key == _FIELD else _without_standardization(value)
            for key, value in config.items()
        }
    if isinstance(config, list | tuple):
        return type(config)(_without_standardization(value) for value in config)
    return config
