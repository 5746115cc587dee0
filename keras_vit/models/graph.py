"""The graph of a functional model, and of models inside models."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import keras

from keras_vit.layers.block import TransformerBlock
from keras_vit.runtime.model import Model
from keras_vit.runtime.private_names import call_of, every_call_of


def walk_layers(
    model: keras.Model, chain: tuple[keras.Model, ...] = ()
) -> Iterator[tuple[tuple[keras.Model, ...], keras.layers.Layer]]:
    """Iterates over all layers, each with the models that contain it, outermost first."""
    chain = (*chain, model)
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from walk_layers(layer, chain)
        yield chain, layer


def final_activation(model: keras.Model) -> str:
    """Name of the function that gives a model's first output, `"linear"` if there is none.

    Also where that is a layer of its own, or the last layer of a model in the model.
    """
    if not getattr(model, "outputs", None):  # a subclassed model
        return getattr(getattr(model.layers[-1], "activation", None), "__name__", "linear")
    operation, node = call_of(model.outputs[0])
    if isinstance(operation, keras.Model) and getattr(operation, "outputs", None):
        return final_activation(operation)
    kind = type(operation).__name__.lower()  # `keras.layers.Softmax`, or `keras.ops.softmax`
    if kind in ("softmax", "sigmoid"):
        return kind
    name = getattr(getattr(operation, "activation", None), "__name__", "linear")
    if name == "linear" and isinstance(operation, keras.layers.Activation):
        (before,) = node.input_tensors
        return final_activation(keras.Model(model.inputs, before))
    return name


def final_operation(model: keras.Model) -> keras.Operation:
    """The layer or operation that gives a model's first output, also in a nested model."""
    operation, _ = call_of(model.outputs[0])
    is_nested = isinstance(operation, keras.Model) and getattr(operation, "outputs", None)
    return final_operation(operation) if is_nested else operation


def is_headless(model: keras.Model) -> bool:
    """Tells whether a model gives the features of a model of this package without a head."""
    outputs = getattr(model, "outputs", None)
    last = call_of(outputs[0])[0] if outputs else model
    owner = last if isinstance(last, keras.Model) else model
    return getattr(getattr(owner, "config", None), "classes", 0) is None


def check_head(model: keras.Model, what: str) -> None:
    """Raises `ValueError` if a model has no head, and `what` needs classes."""
    if is_headless(model):
        raise ValueError(
            f"{what} needs a model with a head. Received: {model.name!r}, whose outputs are "
            f"{model.output_shape[-1]} features, not classes. `keras_vit.fine_tune` trains a head, "
            "`keras_vit.adapt_model(model, classes=K)` adds one to train; "
            "`keras_vit.train.fit_probe` fits a classifier to the features."
        )


def find_layer(model: keras.Model, kind: type) -> Any:
    """Finds the first layer of a class in a model and its nested models, or returns `None`."""
    return next((layer for _, layer in walk_layers(model) if isinstance(layer, kind)), None)


def find_blocks(model: keras.Model) -> tuple[tuple[keras.Model, ...], list[TransformerBlock]]:
    """Finds the blocks of the first model that has any, and the models that contain it."""
    found = [(chain, x) for chain, x in walk_layers(model) if isinstance(x, TransformerBlock)]
    if not found:
        raise ValueError(
            f"The model {model.name!r} has no TransformerBlock, so it has no attention "
            "weights. Pass a Vision Transformer of this package, or a model built on one."
        )
    chain = found[0][0]
    return chain, [layer for other, layer in found if other == chain]


def calls_of(model: keras.Model) -> dict[keras.Operation, Any]:
    """Maps every layer of a functional model to its call in the graph of this model.

    A layer can be in several graphs, and `layer.output` is the output in the first of them.
    """
    return {operation: calls[0] for operation, calls in every_call_of(model).items()}


def in_outermost(chain: tuple[keras.Model, ...], tensors: list[Any]) -> list[Any]:
    """Maps tensors of the innermost of nested models to tensors of the outermost."""
    for outer, inner in zip(reversed(chain[:-1]), reversed(chain), strict=False):
        call = calls_of(outer)[inner]
        part = keras.Model(inner.inputs, tensors)
        tensors = keras.tree.flatten(part(call.input_tensors))
    return tensors


Chain = tuple[keras.Model, ...]


def in_one_graph(model: keras.Model, wanted: dict[str, tuple[Chain, Any]]) -> dict[str, Any]:
    """Maps tensors of a model and of nested models to one graph, in which every layer runs once.

    Args:
        model: The outermost model.
        wanted: By name, the nested models of a tensor, outermost first, and the tensor.

    Returns:
        Tensors of a graph from the inputs of `model`, by name.
    """
    inside: dict[keras.Model, dict[str, tuple[Chain, Any]]] = {}
    for name, (chain, tensor) in wanted.items():
        if len(chain) > 1:
            inside.setdefault(chain[1], {})[name] = (chain[1:], tensor)
    found: dict[str, Any] = {}
    replaced: list[tuple[Any, Any]] = []  # outputs of nested models, and those of the new calls
    for inner in filter(inside.__contains__, model.layers):  # from input to output
        call = calls_of(model)[inner]
        tensors = in_one_graph(inner, inside[inner])
        part = keras.Model(inner.inputs, [*inner.outputs, *tensors.values()])
        results = keras.tree.flatten(part(_reroute(model, call.input_tensors, replaced)))
        count = len(inner.outputs)
        replaced += zip(call.outputs, results[:count], strict=True)
        found.update(zip(tensors, results[count:], strict=True))
    outer = {name: tensor for name, (chain, tensor) in wanted.items() if len(chain) == 1}
    rerouted = _reroute(model, list(outer.values()), replaced)
    return {**found, **dict(zip(outer, rerouted, strict=True))}


def _reroute(model: keras.Model, tensors: list[Any], replaced: list[tuple[Any, Any]]) -> list[Any]:
    """Computes the tensors again that follow replaced ones."""
    found = []
    for tensor in tensors:
        follows = [pair for pair in replaced if _follows(tensor, pair[0])]
        same = [after for before, after in follows if before is tensor]
        if same:
            tensor = same[0]
        elif follows:
            stop = {id(before) for before, _ in follows}
            inputs = [(x, x) for x in model.inputs if _follows(tensor, x, stop)]
            before, after = map(list, zip(*follows, *inputs, strict=True))
            tensor = keras.Model(before, tensor)(after)
        found.append(tensor)
    return found


def _follows(tensor: Any, source: Any, stop: Set[int] = frozenset()) -> bool:
    """Tells whether a tensor is computed from another, not only through those in `stop`."""
    tensors, visited = [tensor], set[int]()
    while tensors:
        x = tensors.pop()
        if x is source:
            return True
        if id(x) not in visited and id(x) not in stop:
            visited.add(id(x))
            tensors.extend(call_of(x)[1].input_tensors)
    return False


def connect(chain: tuple[keras.Model, ...], tensors: list[Any]) -> Model:
    """Builds a model from the input of the outermost model to tensors of the innermost."""
    return Model(single_input(chain[0]), in_outermost(chain, tensors))


def models_after(chain: tuple[keras.Model, ...], tensor: Any) -> list[keras.Model]:
    """Builds models from a tensor of the innermost model to the output of the outermost.

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


def token_norm(model: keras.Model) -> keras.layers.Layer | None:
    """Finds the norm of the tokens after the last block, before any pooling.

    Args:
        model: The innermost of nested models, as `find_blocks` returns it.

    Returns:
        The layer `encoder_norm`, or `None` if there is none, or it follows the pooling.
    """
    if getattr(getattr(model, "config", None), "norm_after_pooling", False):
        return None  # also without pooling, where it has the weights of pooled vectors
    for layer, call in calls_of(model).items():
        if layer.name == "encoder_norm" and len(call.outputs[0].shape) == 3:  # (B, T, D)
            return layer
    return None


def single_input(model: keras.Model) -> keras.KerasTensor | list[keras.KerasTensor]:
    """The inputs of a model, and one input as a tensor: Keras warns about lists of one."""
    return model.inputs[0] if len(model.inputs) == 1 else model.inputs


def head_input(model: keras.Model) -> keras.KerasTensor | None:
    """Finds the input of the head: the layer `head`, or the dense layer that gives the output.

    Args:
        model: A functional model. Nested models are not searched.

    Returns:
        A tensor of the graph of `model`, or `None` if the model has no head.
    """
    if getattr(getattr(model, "config", None), "classes", 0) is None:
        return None
    calls = calls_of(model)
    head = next((layer for layer in calls if layer.name == "head"), call_of(model.outputs[0])[0])
    if head.name != "head" and not isinstance(head, keras.layers.Dense):
        return None
    return calls[head].input_tensors[0]
