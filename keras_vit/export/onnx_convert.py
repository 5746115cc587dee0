"""From a model to an ONNX graph: tf2onnx, and what it needs mended."""

from __future__ import annotations

import collections
import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.inference import Inference
from keras_vit.export.onnx_attention import ATTENTION_OPSET, fuse_attention
from keras_vit.export.onnx_graph import Graph, fold_constants, rewrite

# What tf2onnx 1.17 writes; newer operators come by ONNX's own version converter.
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


def convert(inference: Inference, outputs: tuple[str, ...], opset: int) -> Graph:
    """The ONNX graph of a model: layer norms, GELUs (opset 20) and attention (23) in one operator.

    The weights are inputs of the graph that tf2onnx sees. So it never holds them, files past the
    2 GB of a protocol buffer pass, and they keep their names in the model.

    Args:
        inference: The model, in float32.
        outputs: Which of its outputs the graph has, by name.
        opset: Version of ONNX's operators, 17 or more.

    Returns:
        A `Graph` with the input `pixels` of shape `(batch, H, W, C)`.
    """
    function, weights = _trace(inference, outputs)
    model = _run_tf2onnx(function, outputs, opset)
    graph = _read(model, {**_captured(function), **weights}, opset)
    fold_constants(graph, evaluate)
    rewrite(graph, _LAYER_NORM, _layer_norm)
    rewrite(graph, _LAYER_NORM_WITHOUT_CENTER, _layer_norm)
    if opset >= 20:
        rewrite(graph, _TANH_GELU, _gelu("tanh"))
        rewrite(graph, _EXACT_GELU, _gelu("none"))
    if opset >= ATTENTION_OPSET:
        fuse_attention(graph)
    _keep_padding_of_pools(graph)
    paths = [variable.path for variable in inference.model.variables]
    _rename_constants(graph, dict(zip(weights, paths, strict=True)))
    return graph


def evaluate(graph: Graph, names: list[str]) -> list[np.ndarray]:
    """Runs a graph without inputs in ONNX Runtime."""
    import onnx
    import onnxruntime

    for name in names:
        graph.outputs.append(onnx.helper.make_empty_tensor_value_info(name))
    sources = list(graph.constants)
    inputs = [_value_info(name, graph.constants[name]) for name in sources]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "constants", inputs, graph.outputs),
        opset_imports=[onnx.helper.make_opsetid("", graph.opset)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(names, graph.constants)


def _value_info(name: str, array: np.ndarray) -> Any:
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)


def _trace(inference: Inference, outputs: tuple[str, ...]):
    """A concrete function of pixels and weights, and the weights by their names in its graph."""
    variables = inference.model.variables
    specs = [tf.TensorSpec((None, *inference.input_shape), tf.float32, "pixels")]
    for index, variable in enumerate(variables):
        specs.append(tf.TensorSpec(variable.shape, variable.dtype, f"weight_{index}"))

    def function(pixels, *weights):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            results = inference(pixels)
        return [tf.identity(results[name]) for name in outputs]

    concrete = tf.function(function).get_concrete_function(*specs)
    weights = {
        tensor.name: np.asarray(variable)
        for tensor, variable in zip(concrete.inputs[1:], variables, strict=False)  # then captures
    }
    return concrete, weights


def _captured(function) -> dict[str, np.ndarray]:
    """Constants that layers made when they were built; tf2onnx takes them for inputs."""
    count = len(function.inputs) - len(function.captured_inputs)
    captured = zip(function.inputs[count:], function.captured_inputs, strict=True)
    return {tensor.name: value.numpy() for tensor, value in captured}


def _run_tf2onnx(function, outputs: tuple[str, ...], opset: int):
    """tf2onnx's model of a concrete function, whose results take the names of `outputs`.

    Its steps are called one by one, for two of its optimizers are left out: the one that moves
    transposes is wrong where maps are 1 x 1, and the one that makes means into poolings hides
    layer norms.
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
        for name, make in optimizer._get_optimizers().items()
        if name not in ("optimize_transpose", "global_pool_optimizer")
    }
    model = optimizer.optimize_graph(converted, optimizers=kept).make_model("keras_vit")
    if opset > _CONVERTER_OPSET:
        model = onnx.version_converter.convert_version(model, opset)
    _rename(model, {**dict(zip(results, outputs, strict=True)), "pixels:0": "pixels"})
    return model


def _rename(model, names: dict[str, str]) -> None:
    graph = model.graph
    for value in [*graph.input, *graph.output]:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]


def _rename_constants(graph: Graph, names: dict[str, str]) -> None:
    """Gives constants that nothing changed the names of the model's weights."""
    graph.constants = {names.get(name, name): value for name, value in graph.constants.items()}
    for node in graph.nodes:
        node.input[:] = [names.get(name, name) for name in node.input]


def _keep_padding_of_pools(graph: Graph) -> None:
    """Keeps ONNX Runtime from joining a padding with zeros and a max pooling.

    A max pooling's own padding does not take part in the maximum, zeros do (the root of a BiT
    ResNet), but ONNX Runtime 1.31 joins the two. It looks for the value 0, so the smallest
    number above takes its place.
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


def _read(model, arrays: dict[str, np.ndarray], opset: int) -> Graph:
    """The graph with `arrays` in place of the inputs of their names."""
    import onnx

    constants = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer
    }
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


def _layer_norm(graph: Graph, node, found: dict[str, str]):
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


def _gelu(form: str):
    def replace(graph: Graph, node, found: dict[str, str]):
        import onnx

        return [
            onnx.helper.make_node("Gelu", [found["x"]], node.output, node.name, approximate=form)
        ]

    return replace


def count_operators(graph: Graph) -> collections.Counter:
    """How many nodes of each kind a graph has."""
    return collections.Counter(node.op_type for node in graph.nodes)
