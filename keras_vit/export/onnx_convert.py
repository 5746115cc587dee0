"""Conversion of a model to an ONNX graph by tf2onnx, and fusion of operators after it."""

from __future__ import annotations

import collections
import functools
import logging
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.inference import Inference, NamedInputs, check_address_space
from keras_vit.export.onnx_graph import Graph, fold_constants, rewrite
from keras_vit.runtime.private_names import tf2onnx_optimizers

if TYPE_CHECKING:  # an optional package
    import onnx
    from tensorflow.types.experimental import ConcreteFunction

# Latest opset of tf2onnx 1.17; ONNX's version converter adds newer ones.
_CONVERTER_OPSET = 18
_MEAN = ("ReduceMean", "x")
_SQUARES = ("Mul", ("Sub", "x", _MEAN), ("Sub", "x", _MEAN))
_SCALE = ("Reciprocal", ("Sqrt", ("Add", ("ReduceMean", _SQUARES), "epsilon")))
_GAIN = ("Mul", _SCALE, "gamma")
# Keras writes `x * gain + (beta - mean * gain)`.
_LAYER_NORM = ("Add", ("Mul", "x", _GAIN), ("Add", ("Mul", ("Neg", _MEAN), _GAIN), "beta"))
_LAYER_NORM_WITHOUT_CENTER = ("Add", ("Mul", "x", _GAIN), ("Mul", ("Neg", _MEAN), _GAIN))
_CUBIC = ("Add", "x", ("Mul", 0.044715, ("Pow", "x", 3.0)))
_TANH_GELU = ("Mul", ("Mul", 0.5, "x"), ("Add", 1.0, ("Tanh", ("Mul", 0.7978845608, _CUBIC))))
_EXACT_GELU = ("Mul", ("Mul", 0.5, "x"), ("Add", 1.0, ("Erf", ("Mul", "x", 0.7071067812))))


def convert(inference: Inference | NamedInputs, outputs: tuple[str, ...], opset: int) -> Graph:
    """Converts a model to ONNX, with fused layer norms and, from opset 20 on, GELUs.

    tf2onnx sees the weights as inputs of the graph and never holds them. Models above the 2 GB
    limit of a protocol buffer can therefore be converted, and weights keep their names.

    Args:
        inference: The model, in float32.
        outputs: Names of the outputs of the graph.
        opset: Version of the ONNX operator set, 17 or more.

    Returns:
        A `Graph` with the input `pixels` of shape `(batch, H, W, C)`, or with those of the model.
    """
    check_address_space(inference)
    function, arrays = _trace(inference, outputs)
    model = _run_tf2onnx(function, opset)
    graph = _read(model, arrays, opset)
    results = {x.name: name for x, name in zip(function.outputs, outputs, strict=True)}
    inputs = {f"{name}:0": name for name in ("pixels", *(x.name for x in inference.model.inputs))}
    graph.rename(results | inputs)
    fold_constants(graph)
    rewrite(graph, _LAYER_NORM, _layer_norm)
    rewrite(graph, _LAYER_NORM_WITHOUT_CENTER, _layer_norm)
    if opset >= 20:
        rewrite(graph, _TANH_GELU, functools.partial(_gelu, "tanh"))
        rewrite(graph, _EXACT_GELU, functools.partial(_gelu, "none"))
    _keep_padding_of_pools(graph)
    names = _weight_names(inference.model.variables)
    graph.rename(dict(zip(arrays, names, strict=False)))  # constants of layers come after them
    return graph


def _trace(
    inference: Inference | NamedInputs, outputs: tuple[str, ...]
) -> tuple[ConcreteFunction, dict[str, np.ndarray]]:
    """Traces a function of pixels and weights; returns it, and all inputs but the pixels by name.

    Those are the weights, then constants that layers created when they were built: tf2onnx treats
    them as inputs too.
    """
    variables = inference.model.variables
    specs = [
        tf.TensorSpec(variable.shape, variable.dtype, f"weight_{index}")
        for index, variable in enumerate(variables)
    ]

    def function(inputs: Any, *weights: tf.Tensor) -> list[tf.Tensor]:
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            results = inference(inputs)
        return [tf.identity(results[name]) for name in outputs]

    concrete = tf.function(function).get_concrete_function(inference.inputs(), *specs)
    tensors = concrete.inputs[len(inference.model.inputs) :]
    values = [*variables, *concrete.captured_inputs]
    arrays = {x.name: np.asarray(value) for x, value in zip(tensors, values, strict=True)}
    return concrete, arrays


def _run_tf2onnx(function: ConcreteFunction, opset: int) -> onnx.ModelProto:
    """Converts a concrete function with tf2onnx.

    The steps of tf2onnx are called one by one to leave out two of its optimizers: the one that
    moves transposes is wrong for feature maps of 1 x 1, and the one that turns means into poolings
    hides layer norms.
    """
    import onnx
    from tf2onnx import optimizer, tf_loader, tfonnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    results = [tensor.name for tensor in function.outputs]
    inputs = [tensor.name for tensor in function.inputs]
    definition = function.graph.as_graph_def(add_shapes=True)
    with tf.Graph().as_default():
        definition = tf_loader.tf_optimize(inputs, results, definition)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
        converted = tfonnx.process_tf_graph(
            graph, opset=min(opset, _CONVERTER_OPSET), input_names=inputs, output_names=results
        )
    kept = {
        name: make
        for name, make in tf2onnx_optimizers().items()
        if name not in ("optimize_transpose", "global_pool_optimizer")
    }
    model = optimizer.optimize_graph(converted, optimizers=kept).make_model("keras_vit")
    if opset > _CONVERTER_OPSET:
        model = onnx.version_converter.convert_version(model, opset)
    return model


def _weight_names(variables: list[keras.Variable]) -> list[str]:
    """Paths of variables, numbered where models inside of a model have the same."""
    counts: collections.Counter[str] = collections.Counter()
    names = []
    for variable in variables:
        number = counts[variable.path]
        counts[variable.path] += 1
        names.append(f"{variable.path}/{number}" if number else variable.path)
    return names


def _keep_padding_of_pools(graph: Graph) -> None:
    """Prevents ONNX Runtime from fusing zero padding into max pooling.

    Padded zeros take part in the maximum (the root of a BiT ResNet); the padding of a max pooling
    does not. ONNX Runtime 1.31 fuses the two nevertheless if the value is 0, so the smallest
    positive number replaces it.
    """
    producers = graph.producers()
    for node in graph.nodes:
        source = producers.get(node.input[0]) if node.op_type == "MaxPool" else None
        while source is not None and source.op_type == "Transpose":
            source = producers.get(source.input[0])
        if source is not None and source.op_type == "Pad":
            value = f"{source.output[0]}/value"
            graph.constants[value] = np.array(np.finfo("float32").tiny)
            source.input[:] = [*source.input[:2], value]


def _read(model: onnx.ModelProto, arrays: dict[str, np.ndarray], opset: int) -> Graph:
    """Reads a graph, and replaces the inputs named in `arrays` by constants."""
    import onnx

    constants = {x.name: onnx.numpy_helper.to_array(x) for x in model.graph.initializer}
    graph = Graph(
        nodes=list(model.graph.node),
        constants={**constants, **arrays},
        inputs=[value for value in model.graph.input if value.name not in arrays],
        outputs=list(model.graph.output),
        opset=opset,
    )
    for value in [*graph.inputs, *graph.outputs]:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    graph.drop_unused()
    return graph


def _layer_norm(
    graph: Graph, node: onnx.NodeProto, found: dict[str, str]
) -> list[onnx.NodeProto] | None:
    import onnx

    gamma = graph.constants.get(found["gamma"])
    beta = graph.constants.get(found["beta"]) if "beta" in found else np.zeros_like(gamma)
    if gamma is None or beta is None or gamma.size != gamma.shape[-1]:
        return None
    names = [f"{node.output[0]}/{part}" for part in ("scale", "bias")]
    graph.constants.update(zip(names, (gamma.reshape(-1), beta.reshape(-1)), strict=True))
    epsilon = float(graph.constants[found["epsilon"]].reshape(()))
    inputs = [found["x"], *names]
    return [
        onnx.helper.make_node("LayerNormalization", inputs, node.output, node.name, epsilon=epsilon)
    ]


def _gelu(
    approximation: str, graph: Graph, node: onnx.NodeProto, found: dict[str, str]
) -> list[onnx.NodeProto]:
    import onnx

    options = {"approximate": approximation}
    return [onnx.helper.make_node("Gelu", [found["x"]], node.output, node.name, **options)]
