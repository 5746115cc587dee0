"""8-bit quantisation for LiteRT that keeps the sensitive operators of a ViT in float."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.export.inference import EXPORTED
from keras_vit.export.litert_metadata import pack
from keras_vit.runtime.private_names import litert_schema
from keras_vit.runtime.processors import count_cores

# The residual stream has outliers of a hundred times its spread; quantising it to 8 bits can cost
# all accuracy (a published case: 0 % with it, 79 % of 81 % without). So only dense layers and
# convolutions are quantised; these operators stay float.
FLOAT_OPERATORS = (
    "ADD",
    "BATCH_MATMUL",
    "CONCATENATION",
    "DIV",
    "EXPAND_DIMS",
    "GATHER",
    "GELU",
    "L2_NORMALIZATION",
    "LOG",
    "MEAN",
    "MUL",
    "NEG",
    "ONE_HOT",
    "POW",
    "RESHAPE",
    "RSQRT",
    "SELECT_V2",
    "SOFTMAX",
    "SPLIT",
    "SPLIT_V",
    "SQRT",
    "SQUARE",
    "SQUARED_DIFFERENCE",
    "SQUEEZE",
    "STRIDED_SLICE",
    "SUB",
    "SUM",
    "TANH",
    "TOPK_V2",
    "TRANSPOSE",
)
_LAYERS = ("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D")
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

    Weights have a scale for each channel. Inputs and outputs of a layer have one scale each, from
    calibration. Where that loses much, as where one channel or token is far larger than all others,
    the layer's inputs are rounded at run time, each token with a scale of its own, and its outputs
    stay float.

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
    with _quiet():
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=batches, debug_options=_options(())
        )
        data = debugger.get_nondebug_quantized_model()
        errors = measure_errors(data, few)
        _check_float_layers(float_layers, errors)
        kept = [row.tensor for row in errors if any(part in row.tensor for part in float_layers)]
        if kept:
            debugger.options = _options(kept)
            data = debugger.get_nondebug_quantized_model()
            errors = measure_errors(data, few)
    return round_at_run_time(data, [row.tensor for row in errors if row.at_run_time]), errors


def _options(float_tensors: Sequence[str]) -> tf.lite.experimental.QuantizationDebugOptions:
    return tf.lite.experimental.QuantizationDebugOptions(
        denylisted_ops=list(FLOAT_OPERATORS), denylisted_nodes=list(float_tensors)
    )


def _check_float_layers(float_layers: Sequence[str], errors: list[LayerError]) -> None:
    """Raises a `ValueError` if a part of a name matches no quantised tensor."""
    names = [row.tensor for row in errors]
    unknown = [part for part in float_layers if not any(part in name for name in names)]
    if unknown:
        raise ValueError(
            f"`float_layers` must be parts of the names of quantised tensors. Received: {unknown}, "
            f"which match none of {len(names)}: {', '.join(names[:3])}, ... All are in the result "
            "of keras_vit.export.litert_errors."
        )


def worst_first(errors: Sequence[LayerError]) -> list[LayerError]:
    """Layers in the order in which floats gain most: first those with ranges from calibration."""
    return sorted(errors, key=lambda row: row.at_run_time)


def part_of_name(tensor: str) -> str:
    """The part of a tensor's name that the next export has too: models are numbered in a process.

    Args:
        tensor: Such as `exported_1/block_0_1/mlp_1/hidden_1/MatMul;...`.
    """
    first = tensor.partition(";")[0]
    return first[first.find("/") :] if first.startswith(EXPORTED) else first


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
    pairs = [(a.outputs[0], b.outputs[0]) for a, b in zip(layers, twins, strict=True)]
    file.graph.outputs = [*file.graph.outputs, *(index for pair in pairs for index in pair)]
    sums = [_Sums() for _ in layers]
    for outputs in _run(file.pack(len(data)), images, pairs):
        for total, (rounded, exact), layer in zip(sums, outputs, layers, strict=True):
            scale, zero = file.scale(layer.outputs[0])
            total.add((rounded.astype("float32") - zero) * scale, exact)
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


class _Sums:
    """Sums over tokens and images for each channel of an output."""

    def __init__(self) -> None:
        self.count, self.largest = 0, 0.0
        self.squares = self.values = self.differences = np.zeros(1)

    def add(self, rounded: np.ndarray, exact: np.ndarray) -> None:
        exact = exact.reshape(-1, exact.shape[-1]).astype("float64")
        difference = rounded.reshape(exact.shape) - exact
        self.count += len(exact)
        self.values = self.values + exact.sum(axis=0)
        self.squares = self.squares + (exact**2).sum(axis=0)
        self.differences = self.differences + (difference**2).sum(axis=0)
        self.largest = max(self.largest, float(np.abs(difference).max()))

    def error(self) -> float:
        """As in `LayerError`."""
        variance = self.squares / self.count - (self.values / self.count) ** 2
        shares = self.differences / self.count / np.maximum(variance, 1e-12)
        return float(np.sqrt(np.minimum(shares, 1).mean()))


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
            graph.operators[graph.operators.index(reader)] = changed
            graph.operators.remove(layer)
    read = {index for each in graph.operators for index in each.inputs} | set(graph.outputs)
    graph.operators = [
        each for each in graph.operators if file.kind(each) != "QUANTIZE" or each.outputs[0] in read
    ]
    return file.pack(len(data))


class _File:
    """The tables of a LiteRT file with quantised layers."""

    def __init__(self, data: bytes):
        self.schema = litert_schema()
        self.model = self.schema.ModelT.InitFromPackedBuf(data, 0)
        self.graph = self.model.subgraphs[0]
        names = {value: name for name, value in vars(self.schema.BuiltinOperator).items()}
        self._kinds = [
            names[max(code.builtinCode, code.deprecatedBuiltinCode)]
            for code in self.model.operatorCodes
        ]
        self._sources = {
            each.outputs[0]: each.inputs[0]
            for each in self.graph.operators
            if self.kind(each) == "QUANTIZE"
        }

    def kind(self, operator: Any) -> str:
        """The type of an operator."""
        return self._kinds[operator.opcodeIndex]

    def name(self, layer: Any) -> str:
        """The name of a layer's output before quantisation.

        It is that of the output in 8 bits or in float; the other has a digit more.
        """
        readers = [each for each in self.graph.operators if layer.outputs[0] in each.inputs]
        tensors = [layer.outputs[0], *(index for each in readers for index in each.outputs)]
        names = [self.graph.tensors[index].name.decode() for index in tensors]
        return next((name for name in names if names[0] == name + names[0][-1]), names[0])

    def scale(self, tensor: int) -> tuple[Any, Any]:
        """The width of the steps of a tensor in 8 bits, and the step of 0."""
        found = self.graph.tensors[tensor].quantization
        return found.scale[0], found.zeroPoint[0]

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
        copied.builtinOptions = copy.copy(layer.builtinOptions)
        if hasattr(copied.builtinOptions, "asymmetricQuantizeInputs"):
            copied.builtinOptions.asymmetricQuantizeInputs = True
        given, kernel, *bias = layer.inputs
        copied.inputs = [self._sources[given], kernel, *map(self._float_bias, bias)]
        copied.outputs = [self._add_float(layer.outputs[0]) if output is None else output]
        return copied

    def _float_bias(self, index: int) -> int:
        if index < 0:  # there is none
            return index
        bias = self.graph.tensors[index]
        steps = self.model.buffers[bias.buffer].data.view("int32")
        values = (steps * bias.quantization.scale).astype("float32")
        return self._add_float(index, values)

    def _add_float(self, like: int, values: np.ndarray | None = None) -> int:
        """Adds a float tensor of the shape of another one, and returns its index."""
        tensor = copy.copy(self.graph.tensors[like])
        tensor.type, tensor.quantization = self.schema.TensorType.FLOAT32, None
        tensor.buffer = 0  # nothing in it
        if values is not None:
            buffer = self.schema.BufferT()
            buffer.data, tensor.buffer = values.view("uint8"), len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def pack(self, size: int) -> bytes:
        """The bytes of the file."""
        return pack(self.model, size)


def _run(
    data: bytes, images: np.ndarray, pairs: Sequence[tuple[int, int]]
) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Values of pairs of tensors for each image."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data, num_threads=count_cores())
    interpreter.allocate_tensors()
    for image in images:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image[None])
        interpreter.invoke()
        yield [(interpreter.get_tensor(a), interpreter.get_tensor(b)) for a, b in pairs]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the deprecation warning of the interpreter that TensorFlow's own debugger uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter", append=False)
        yield
