"""The graph of a functional model, and of models inside models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.layers.block import TransformerBlock
from keras_vit.trainers.model import Model
from keras_vit.trainers.private_names import call_of


def walk(
    model: keras.Model, chain: tuple[keras.Model, ...] = ()
) -> Iterator[tuple[tuple[keras.Model, ...], keras.layers.Layer]]:
    """Every layer, with the chain of models from the outermost to the one that holds it."""
    chain = (*chain, model)
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from walk(layer, chain)
        yield chain, layer


def find_layer(model: keras.Model, kind: type) -> Any:
    """The first layer of a kind in a model or in the models inside it, or `None`."""
    return next((layer for _, layer in walk(model) if isinstance(layer, kind)), None)


def find_blocks(model: keras.Model) -> tuple[tuple[keras.Model, ...], list[TransformerBlock]]:
    """The blocks of the first model in `model` that has any, and the chain to that model."""
    found = [(chain, x) for chain, x in walk(model) if isinstance(x, TransformerBlock)]
    if not found:
        raise ValueError(
            f"The model {model.name!r} has no TransformerBlock, so there is no attention to look "
            "at. Pass a Vision Transformer of this package, or a model built on one."
        )
    chain = found[0][0]
    return chain, [layer for other, layer in found if other == chain]


def calls_of(model: keras.Model) -> dict[keras.Operation, Any]:
    """For every layer of a functional model, its call in this model's own graph.

    A layer can stand in several graphs, and `layer.output` is that of the first.
    """
    if not getattr(model, "outputs", None):
        raise ValueError(
            f"The model {model.name!r} has no graph of layers to look into: it must be functional, "
            "or a sequential model that was built. Pass the functional model inside it."
        )
    calls: dict[keras.Operation, Any] = {}
    tensors = list(model.outputs)
    while tensors:
        operation, call = call_of(tensors.pop())
        if operation in calls:
            continue
        calls[operation] = call
        tensors.extend(calls[operation].input_tensors)
    return calls


def lift(chain: tuple[keras.Model, ...], tensors: list[Any]) -> list[Any]:
    """Tensors of the innermost model of a chain as tensors of the outermost."""
    for outer, inner in zip(reversed(chain[:-1]), reversed(chain), strict=False):
        call = calls_of(outer)[inner]
        part = keras.Model(inner.inputs, tensors)
        tensors = keras.tree.flatten(part(call.input_tensors))
    return tensors


def connect(chain: tuple[keras.Model, ...], tensors: list[Any]) -> Model:
    """A model from the images of the outermost model to tensors of the innermost."""
    return Model(single_input(chain[0]), lift(chain, tensors))


def after(chain: tuple[keras.Model, ...], tensor: Any) -> list[keras.Model]:
    """What follows a tensor of the innermost model of a chain, to the output of the outermost.

    Returns:
        Models to call one after the other.
    """
    models, start = [], [tensor]
    for index in reversed(range(len(chain))):
        if start[0] is not chain[index].outputs[0]:
            models.append(keras.Model(start, chain[index].outputs))
        if index:
            start = calls_of(chain[index - 1])[chain[index]].outputs
    return models


def single_input(model: keras.Model) -> keras.KerasTensor | list[keras.KerasTensor]:
    """One input as itself: Keras warns where a list of one is called with a tensor."""
    return model.inputs[0] if len(model.inputs) == 1 else model.inputs
