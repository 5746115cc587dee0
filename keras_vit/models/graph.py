"""The graph of a functional model, and of models inside models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.float32 import float32_dense
from keras_vit.layers.layer import Tensor
from keras_vit.runtime.model import Model
from keras_vit.runtime.private_names import call_of, every_call_of, run_graph

Chain = tuple[keras.Model, ...]  # a model and models inside it, outermost first
# Layers and operations, in lower case, after which probabilities are probabilities.
_KEEPS_VALUES = {
    "activation", "averagepooling2d", "cast", "cropping2d", "dropout", "flatten", "getitem",
    "globalaveragepooling2d", "globalmaxpooling2d", "identity", "maxpooling2d", "permute",
    "reshape", "resize", "resizemaps", "resizing", "squeeze", "transpose", "upsampling2d",
}  # fmt: skip


def walk_layers(model: keras.Model, chain: Chain = ()) -> Iterator[tuple[Chain, keras.Layer]]:
    """Iterates over all layers, each with the models that contain it, outermost first."""
    chain = (*chain, model)
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from walk_layers(layer, chain)
        yield chain, layer


def final_activation(model: keras.Model) -> str:
    """Name of the function that gives a model's first output, `"linear"` if there is none.

    Also where that is a layer of its own, or the last layer of a model in the model; softmax and
    sigmoid also before layers that move, resize or average their values.
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
    if name == "linear" and kind in _KEEPS_VALUES:
        before = final_activation(keras.Model(model.inputs, node.input_tensors[0]))
        if kind == "activation" or before in ("softmax", "sigmoid"):
            return before
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


def find_blocks(model: keras.Model) -> tuple[Chain, list[TransformerBlock]]:
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
    """Maps every layer of a functional model to its first call in the graph of this model.

    A layer can be in several graphs, and `layer.output` is the output in the first of them.
    """
    return {operation: calls[0] for operation, calls in every_call_of(model).items()}


def in_one_graph(model: keras.Model, wanted: Sequence[tuple[Chain, Any]]) -> list[Any]:
    """Maps tensors of a model and of nested models to one graph, in which every layer runs once.

    Args:
        model: The outermost model.
        wanted: For each tensor the nested models that contain it, outermost first, and the tensor.
            Of a model that is called several times, the tensor of its first call.

    Returns:
        Tensors of a graph from the inputs of `model`, in the order of `wanted`.
    """
    if all(len(chain) == 1 for chain, _ in wanted):
        return [tensor for _, tensor in wanted]  # in the graph of the model, which others share
    calls = calls_of(model)
    found: dict[tuple[Chain, int], Any] = {}

    def function_of(call: Any) -> Callable[..., Any]:
        inner = call.operation
        inside = [(chain[1:], tensor) for chain, tensor in wanted if chain[1:2] == (inner,)]
        return functools.partial(run, inner, inside) if inside and call is calls[inner] else inner

    def run(inner: keras.Model, inside: list[tuple[Chain, Any]], *args: Any, **kwargs: Any) -> Any:
        """Calls a nested model with more outputs, and returns its own."""
        calls_of(inner)  # or an error: a subclassed model has no graph
        tensors = [*(((inner,), tensor) for tensor in inner.outputs), *inside]
        inputs = single_input(inner) if isinstance(inner, keras.Sequential) else inner.input
        is_list_of_one = isinstance(inputs, list) and len(inputs) == 1
        part = keras.Model(inputs[0] if is_list_of_one else inputs, in_one_graph(inner, tensors))
        results = keras.tree.flatten(part(*args, **kwargs))
        found.update(((chain, id(x)), y) for (chain, x), y in zip(tensors, results, strict=True))
        return results[: len(inner.outputs)]

    ends = [calls[chain[1]].outputs[0] if chain[1:] else tensor for chain, tensor in wanted]
    known = run_graph(model, model.inputs, ends, function_of)
    return [found[chain[1:], id(x)] if chain[1:] else known[id(x)] for chain, x in wanted]


def connect(chain: Chain, tensors: list[Any]) -> Model:
    """Builds a model from the input of the outermost model to tensors of the innermost."""
    return Model(single_input(chain[0]), in_one_graph(chain[0], [(chain, x) for x in tensors]))


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


def single_input(model: keras.Model) -> Tensor | list[Tensor]:
    """The inputs of a model, and one input as a tensor: Keras warns about lists of one."""
    return model.inputs[0] if len(model.inputs) == 1 else model.inputs


def perceptron(
    x: Tensor, name: str, outputs: int, hidden: Any, activation: str | None = None
) -> Tensor:
    """Three dense layers in float32, `name_0` to `name_2`, for classes or boxes.

    Args:
        x: Tensor of shape `(..., D)`.
        name: Beginning of the layers' names.
        outputs: Units of the last layer; the others have `D`.
        hidden: Activation of the first two.
        activation: Activation of the last.
    """
    layers = [(x.shape[-1], hidden), (x.shape[-1], hidden), (outputs, activation)]
    for step, (units, function) in enumerate(layers):
        x = float32_dense(units, f"{name}_{step}", function)(x)
    return x


def head_input(model: keras.Model) -> Tensor | None:
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
