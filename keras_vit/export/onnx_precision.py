"""Conversion of ONNX graphs to float16 and int8."""

from __future__ import annotations

import logging
import pathlib
from typing import TYPE_CHECKING

import numpy as np

from keras_vit.export.onnx_graph import Graph

if TYPE_CHECKING:  # an optional package
    import onnx

_FLOAT, _HALF = 1, 10  # onnx.TensorProto.FLOAT and FLOAT16
# Sums over many values stay float32 (LayerNormalization sums in float32 by itself), as does
# padding, whose value would become 0 in float16 (see `_keep_padding_of_pools`).
_FLOAT32_OPERATORS = (
    "Softmax",
    "ReduceMean",
    "ReduceSum",
    "Pow",
    "Sqrt",
    "Reciprocal",
    "Pad",
    "MaxPool",
    "Resize",  # whose scales are float32 in any case
)
_WEIGHTED = ("Conv", "Gemm", "MatMul")


def to_float16(graph: Graph) -> None:
    """Converts a graph to float16 in place, from its first matrix product on.

    The normalisation of pixels before it stays float32, as do softmax, sums, and the inputs and
    outputs of the graph.
    """
    caster = _Caster(graph)
    types: dict[str, int | None] = {
        value.name: value.type.tensor_type.elem_type for value in graph.inputs
    }
    types.update({k: _FLOAT for k, v in graph.constants.items() if v.dtype == np.float32})
    weighted: set[str] = set()  # tensors that depend on a matrix product
    for node in graph.nodes:
        after = node.op_type in _WEIGHTED or not weighted.isdisjoint(node.input)
        target = _HALF if after and node.op_type not in _FLOAT32_OPERATORS else _FLOAT
        kind = _output_type(node, types)
        caster.read_as(node, target, types)
        caster.nodes.append(node)
        if node.op_type != "Cast" and kind in (_FLOAT, _HALF):
            kind = target
        for name in node.output:
            types[name] = kind
            if after:
                weighted.add(name)
    caster.restore_outputs(types)
    graph.nodes = caster.nodes
    graph.drop_unused()


class _Caster:
    """Casts inputs of nodes, each tensor once per type."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self._names: dict[tuple[str, int], str] = {}

    def read_as(self, node: onnx.NodeProto, target: int, types: dict[str, int | None]) -> None:
        """Casts the float inputs of a node to the type `target`."""
        if node.op_type == "Shape":
            return
        for index, name in enumerate(node.input):
            if types.get(name) in (_FLOAT, _HALF) and types[name] != target:
                node.input[index] = self._cast(name, target)

    def restore_outputs(self, types: dict[str, int | None]) -> None:
        """Casts the outputs of the graph back to float32, under the same names."""
        for output in self.graph.outputs:
            if types[output.name] != _HALF:
                continue
            inner = f"{output.name}/float16"
            for node in self.nodes:
                for field in (node.input, node.output):
                    field[:] = [inner if name == output.name else name for name in field]
            self.nodes.append(_cast_node(inner, output.name, _FLOAT))

    def _cast(self, name: str, target: int) -> str:
        key = (name, target)
        if key not in self._names:
            self._names[key] = f"{name}/{'float16' if target == _HALF else 'float32'}"
            if name in self.graph.constants:
                kind = np.float16 if target == _HALF else np.float32
                self.graph.constants[self._names[key]] = self.graph.constants[name].astype(kind)
            else:
                self.nodes.append(_cast_node(name, self._names[key], target))
        return self._names[key]


def _cast_node(source: str, result: str, target: int) -> onnx.NodeProto:
    import onnx

    return onnx.helper.make_node("Cast", [source], [result], f"{result}/cast", to=target)


def _output_type(node: onnx.NodeProto, types: dict[str, int | None]) -> int | None:
    """The element type of a node's results, `None` for integers."""
    if node.op_type == "Shape":
        return None
    if node.op_type == "Cast":
        return next(attribute.i for attribute in node.attribute if attribute.name == "to")
    return next((types[name] for name in node.input if types.get(name)), None)


def to_int8(source: pathlib.Path, path: pathlib.Path, external: bool) -> None:
    """Dynamic quantisation: writes the weights of dense layers in 8 bits, one scale per column.

    The inputs of the layers are quantised at run time, so no calibration images are needed. The
    products of attention, and convolutions, stay float32. Weights are unsigned: with signed ones,
    processors without VNNI add two products in 16 bits, which overflows and makes differences ten
    times larger.

    Args:
        source: A float32 file.
        path: File to write.
        external: Whether its weights go to a second file.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.getLogger().addFilter(_about_preprocessing)
    try:
        quantize_dynamic(
            source,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QUInt8,
            use_external_data_format=external,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logging.getLogger().removeFilter(_about_preprocessing)


def _about_preprocessing(record: logging.LogRecord) -> bool:
    """Hides the advice to fuse operators first; our graphs are fused already."""
    return "pre-processing before quantization" not in record.getMessage()
