"""8-bit quantisation for LiteRT that keeps the sensitive operators of a ViT in float."""

from __future__ import annotations

import copy
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.export.inference import EXPORTED
from keras_vit.export.litert_metadata import pack, unpack
from keras_vit.export.lossy_layers import ErrorSums, match_parts
from keras_vit.runtime.private_names import litert_schema
from keras_vit.runtime.processors import count_cores

# The residual stream has outliers of a hundred times its spread; quantising it to 8 bits can cost
# all accuracy (a published case: 0 % with it, 79 % of 81 % without). So only dense layers and
# convolutions are quantised; these operators stay float.
FLOAT_OPERATORS = (
    "ADD", "BATCH_MATMUL", "CONCATENATION", "DIV", "EXPAND_DIMS", "GATHER", "GELU",
    "L2_NORMALIZATION", "LOG", "MEAN", "MUL", "NEG", "ONE_HOT", "POW", "RESHAPE", "RSQRT",
    "SELECT_V2", "SOFTMAX", "SPLIT", "SPLIT_V", "SQRT", "SQUARE", "SQUARED_DIFFERENCE", "SQUEEZE",
    "STRIDED_SLICE", "SUB", "SUM", "TANH", "TOPK_V2", "TRANSPOSE",
)  # fmt: skip
# Operators with weights, with their version that takes weights in 8 bits with a scale for each
# channel, and float inputs, which it rounds itself.
_LAYERS = {"FULLY_CONNECTED": 12, "CONV_2D": 5, "DEPTHWISE_CONV_2D": 6}
_MEASURED = 8  # images of the calibration on which errors are measured
# The largest error of all layers together that keep ranges of the calibration: errors of layers add
# up like independent noise, as the root of the sum of their squares.
_ALLOWED = 0.1


@dataclasses.dataclass(frozen=True)
class LayerError:
    """Error that 8-bit inputs and outputs make in the output of one layer.

    Args:
        operator: Type of the operator in LiteRT.
        tensor: Name of its output, to which `float_layers` is compared.
        error: Root mean square error of a channel of the output, divided by the channel's standard
            deviation; of all channels, where none counts for more than 1: 0 is no error, and 1
            leaves nothing of the output.
        largest: Largest absolute error.
        at_run_time: Whether the file rounds the inputs of the layer at run time, because `error`
            is too large.
    """

    operator: str
    tensor: str
    error: float
    largest: float
    at_run_time: bool = False


def quantize(
    make_converter: Callable[[], tf.lite.TFLiteConverter],
    images: np.ndarray,
    float_layers: Sequence[str] = (),
) -> tuple[bytes, list[LayerError]]:
    """Quantises a model to 8 bits, and measures the error of every quantised layer.

    Weights have a scale for each channel, and biases make up for the mean of what their rounding
    changes. Inputs and outputs of a layer have one scale each, from calibration. Where that loses
    much, as where one channel or token is far larger than all others, the layer's inputs are
    rounded at run time, each token with a scale of its own, and its outputs stay float.

    Args:
        make_converter: Returns a new converter of the float model, with a batch size of 1.
        images: Pixels of shape `(B, H, W, C)` in [0, 255], from which ranges are calibrated.
        float_layers: Parts of the names of tensors whose operators stay float.

    Returns:
        The bytes of the file, and a `LayerError` for every quantised layer, the largest first.

    Raises:
        ValueError: If one of `float_layers` matches no quantised tensor.
    """

    def batches() -> Iterator[list[np.ndarray]]:
        return ([image[None].astype("float32")] for image in images)

    converter = make_converter()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = batches
    few = images[:: -(-len(images) // _MEASURED)]
    with warnings.catch_warnings():  # TensorFlow's own debugger uses a deprecated interpreter
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter", append=False)
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=batches, debug_options=_options(())
        )
        exact = debugger.calibrated_model
        data = correct_biases(debugger.get_nondebug_quantized_model(), exact, few)
        errors = measure_errors(data, few)
        advice = " All are in the result of keras_vit.export.litert_errors."
        names = [row.tensor for row in errors]
        kept = match_parts(float_layers, names, "quantised tensors", advice)
        if kept:
            debugger.options = _options(kept)
            data = correct_biases(debugger.get_nondebug_quantized_model(), exact, few)
            errors = measure_errors(data, few)
    return round_at_run_time(data, [row.tensor for row in errors if row.at_run_time]), errors


def _options(float_tensors: Sequence[str]) -> tf.lite.experimental.QuantizationDebugOptions:
    names = [*float_tensors, *map(_plain, float_tensors)]
    return tf.lite.experimental.QuantizationDebugOptions(
        denylisted_ops=list(FLOAT_OPERATORS), denylisted_nodes=names
    )


def part_of_name(tensor: str) -> str:
    """The part of a tensor's name that the next export has too: models are numbered in a process.

    Args:
        tensor: Such as `exported_1/block_0_1/mlp_1/hidden_1/MatMul;...`.
    """
    first = tensor.partition(";")[0]
    return first[first.find("/") :] if first.startswith(EXPORTED) else first


def correct_biases(data: bytes, exact: bytes, images: np.ndarray) -> bytes:
    """Moves biases of dense layers, so that rounded weights keep the means of their outputs.

    Args:
        data: A file with ranges from calibration.
        exact: The same in float32.
        images: Pixels of shape `(B, H, W, C)` in [0, 255], over which means are taken.

    Returns:
        The file.
    """
    file, known = _File(data), _File(exact)
    layers = {known.name(each): each for each in known.graph.operators if known.is_dense(each)}
    pairs = []
    for layer in file.static_layers():
        same = layers.get(file.name(layer), layers.get(_plain(file.name(layer))))
        if file.is_dense(layer) and same is not None and layer.inputs[2] >= 0:
            pairs.append((layer, same))
    inputs = [same.inputs[0] for _, same in pairs]
    means: dict[int, Any] = dict.fromkeys(inputs, 0)
    for values in known.run(images, inputs):
        for index, value in values.items():
            means[index] += value.reshape(-1, value.shape[-1]).mean(axis=0) / len(images)
    for layer, same in pairs:
        rounded, kernel = file.values(layer.inputs[1]), known.values(same.inputs[1])
        if rounded is not None and kernel is not None:  # products of two activations have none
            file.move_bias(layer, (kernel - rounded) @ means[same.inputs[0]])
    return pack(file.model)


def _plain(name: str) -> str:
    """A name as the converter knows it: a file numbers names that another tensor has."""
    return re.sub(r"\d$", "", name)


def measure_errors(data: bytes, images: np.ndarray) -> list[LayerError]:
    """Compares every quantised layer with one that rounds the same inputs at run time.

    Args:
        data: A file with ranges from calibration.
        images: Pixels of shape `(B, H, W, C)` in [0, 255].

    Returns:
        A `LayerError` for every layer, the largest first.
    """
    file = _File(data)
    layers = file.static_layers()
    twins = [file.at_run_time(layer) for layer in layers]
    file.graph.operators += twins
    sums = [ErrorSums() for _ in layers]
    for values in file.run(images, [each.outputs[0] for each in [*layers, *twins]]):
        for total, layer, twin in zip(sums, layers, twins, strict=True):
            scale, zero = file.scale(layer.outputs[0])
            rounded = (values[layer.outputs[0]].astype("float32") - zero) * scale
            total.add(rounded, values[twin.outputs[0]])
    rows = [
        LayerError(file.kind(layer), file.name(layer), total.error(), total.largest)
        for layer, total in zip(layers, sums, strict=True)
    ]
    rows.sort(key=lambda row: row.error)
    together = np.sqrt(np.cumsum([row.error**2 for row in rows]))
    rows = [
        dataclasses.replace(row, at_run_time=bool(error > _ALLOWED))
        for row, error in zip(rows, together, strict=True)
    ]
    return rows[::-1]


def round_at_run_time(data: bytes, tensors: Sequence[str]) -> bytes:
    """Changes layers of a file: inputs are rounded at run time, and outputs stay float.

    Args:
        data: A file with ranges from calibration.
        tensors: Names of the outputs of the layers.

    Returns:
        The file.
    """
    file = _File(data)
    graph = file.graph
    for layer in file.static_layers():
        readers = [each for each in graph.operators if layer.outputs[0] in each.inputs]
        if file.name(layer) not in tensors or len(readers) != 1:
            continue
        (reader,) = readers
        if file.kind(reader) == "DEQUANTIZE":
            changed = file.at_run_time(layer, reader.outputs[0])
            if reader.outputs[0] not in graph.outputs:
                graph.tensors[reader.outputs[0]].name = graph.tensors[layer.outputs[0]].name
            graph.operators[graph.operators.index(reader)] = changed
            graph.operators.remove(layer)
    read = {index for each in graph.operators for index in each.inputs} | set(graph.outputs)
    graph.operators = [
        each for each in graph.operators if file.kind(each) != "QUANTIZE" or each.outputs[0] in read
    ]
    return pack(file.model)


class _File:
    """The tables of a LiteRT file with quantised layers."""

    def __init__(self, data: bytes):
        self.schema = litert_schema()
        self.model = unpack(data)
        self.graph = self.model.subgraphs[0]
        self._kinds = {value: name for name, value in vars(self.schema.BuiltinOperator).items()}
        self._sources = {
            each.outputs[0]: each.inputs[0]
            for each in self.graph.operators
            if self.kind(each) == "QUANTIZE"
        }

    def kind(self, operator: Any) -> str:
        """The type of an operator."""
        code = self.model.operatorCodes[operator.opcodeIndex]
        return self._kinds[max(code.builtinCode, code.deprecatedBuiltinCode)]

    def name(self, layer: Any) -> str:
        """The name of a layer's output."""
        return self.graph.tensors[layer.outputs[0]].name.decode()

    def scale(self, tensor: int) -> tuple[Any, Any]:
        """The width of the steps of a tensor in 8 bits, and the step of 0."""
        found = self.graph.tensors[tensor].quantization
        return found.scale[0], found.zeroPoint[0]

    def is_dense(self, operator: Any) -> bool:
        """Whether an operator is a dense layer."""
        return self.kind(operator) == "FULLY_CONNECTED"

    def static_layers(self) -> list[Any]:
        """Layers whose inputs and outputs have ranges from calibration."""
        return [
            each
            for each in self.graph.operators
            if self.kind(each) in _LAYERS
            and each.inputs[0] in self._sources
            and self.graph.tensors[each.outputs[0]].type == self.schema.TensorType.INT8
        ]

    def at_run_time(self, layer: Any, output: int | None = None) -> Any:
        """Copies a layer with float inputs and outputs; its weights stay in 8 bits."""
        copied = copy.copy(layer)
        copied.opcodeIndex = self._code_at_run_time(layer)
        copied.builtinOptions = copy.copy(layer.builtinOptions)
        if hasattr(copied.builtinOptions, "asymmetricQuantizeInputs"):
            copied.builtinOptions.asymmetricQuantizeInputs = True
        given, kernel, *bias = layer.inputs
        copied.inputs = [self._sources[given], kernel, *map(self._float_bias, bias)]
        copied.outputs = [self._add_float(layer.outputs[0]) if output is None else output]
        return copied

    def _code_at_run_time(self, layer: Any) -> int:
        """The index of the version of a layer's operator that rounds inputs itself."""
        codes = self.model.operatorCodes
        code = copy.copy(codes[layer.opcodeIndex])
        code.version = max(code.version, _LAYERS[self.kind(layer)])
        known = [(each.builtinCode, each.version) for each in codes]
        if (code.builtinCode, code.version) not in known:
            codes.append(code)
            return len(codes) - 1
        return known.index((code.builtinCode, code.version))

    def values(self, index: int) -> np.ndarray | None:
        """The numbers in a tensor, without its steps; `None` if it is no constant."""
        tensor = self.graph.tensors[index]
        data = self.model.buffers[tensor.buffer].data if index >= 0 else None
        if data is None:
            return None
        types = self.schema.TensorType
        dtype = {types.FLOAT32: "float32", types.INT32: "int32", types.INT8: "int8"}[tensor.type]
        found = data.view(dtype).reshape(tensor.shape)
        if dtype == "float32":
            return found
        return found * tensor.quantization.scale.reshape(-1, *[1] * (found.ndim - 1))

    def move_bias(self, layer: Any, change: np.ndarray) -> None:
        """Adds to the bias of a layer, which is stored in steps."""
        bias = self.graph.tensors[layer.inputs[2]]
        moved = self.values(layer.inputs[2]) + change
        steps = np.rint(moved / bias.quantization.scale).astype("int32")
        bias.buffer = self._add_buffer(steps)  # other layers may read the old one

    def _float_bias(self, index: int) -> int:
        values = self.values(index)
        return index if values is None else self._add_float(index, values.astype("float32"))

    def _add_float(self, like: int, values: np.ndarray | None = None) -> int:
        """Adds a float tensor of the shape of another one, and returns its index."""
        tensor = copy.copy(self.graph.tensors[like])
        tensor.type, tensor.quantization = self.schema.TensorType.FLOAT32, None
        tensor.buffer = 0 if values is None else self._add_buffer(values)  # 0 is empty
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def _add_buffer(self, values: np.ndarray) -> int:
        buffer = self.schema.BufferT()
        buffer.data = values.view("uint8")
        self.model.buffers.append(buffer)
        return len(self.model.buffers) - 1

    def run(self, images: np.ndarray, tensors: Sequence[int]) -> Iterator[dict[int, np.ndarray]]:
        """Values of tensors for each image, which become outputs of the file."""
        from ai_edge_litert.interpreter import Interpreter

        self.graph.outputs = list(dict.fromkeys([*self.graph.outputs, *tensors]))
        interpreter = Interpreter(model_content=pack(self.model), num_threads=count_cores())
        interpreter.allocate_tensors()
        for image in images:
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image[None])
            interpreter.invoke()
            yield {index: interpreter.get_tensor(index) for index in tensors}
