"""The Vision Transformer (https://arxiv.org/abs/2010.11929) for Keras 3 and TensorFlow."""

from __future__ import annotations

import lazy_loader

# These modules register their classes with Keras, which then finds them in `.keras` files.
import keras_vit.layers.attention
import keras_vit.layers.block
import keras_vit.layers.convolution
import keras_vit.layers.merging
import keras_vit.layers.mlp
import keras_vit.layers.pooling
import keras_vit.layers.residual
import keras_vit.layers.tokens
import keras_vit.models.attention
import keras_vit.train.distillation
import keras_vit.train.losses
import keras_vit.train.optimizers
import keras_vit.train.schedules
import keras_vit.trainers.model  # noqa: F401 - registers `Model`

# Sub-packages: each imports a module when one of its names is first used.
from keras_vit import (
    analysis,
    data,
    distribution,
    evaluate,
    export,
    hub,
    layers,
    models,
    resume,
    train,
    trainers,
    weights,
)

__version__ = "0.1.0"

_SUBPACKAGES = (
    *(analysis, data, distribution, evaluate, export, hub),
    *(layers, models, resume, train, trainers, weights),
)

__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names in __init__.pyi


def __dir__() -> list[str]:
    return sorted([*__all__, *(package.__name__.rpartition(".")[2] for package in _SUBPACKAGES)])
