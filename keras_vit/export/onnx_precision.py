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
_NAMES = {_FLOAT: "float32", _HALF: "float16"}
# Sums over many values stay float32 (LayerNormalization sums in float32 by itself), as does
# padding, whose value would become 0 in float16 (see `_keep_padding_of_pools`).
_FLOAT32_OPERATORS = (
    "Softmax", "ReduceMean", "ReduceSum", "Pow", "Sqrt", "Reciprocal", "Pad", "MaxPool",
    "Resize",  # whose scales are float32 in any case
)  # fmt: skip
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_WEIGHTED = ("Conv", "Gemm", "MatMul")


def to_float16(graph: Graph) -> None:
    """Converts a graph to float16 in place, from its first matrix product on.

    The normalisation of pixels before it stays float32, as do softmax, sums, comparisons, and the
    inputs and outputs of the graph.
    """
    nodes: list[onnx.NodeProto] = []
    casts: dict[tuple[str, int], str] = {}
    types: dict[str, int | None] = {
        value.name: value.type.tensor_type.elem_type for value in graph.inputs
    }
    types.update({k: _FLOAT for k, v in graph.constants.items() if v.dtype == np.float32})
    weighted: set[str] = set()  # tensors that depend on a matrix product

    def cast(name: str, target: int) -> str:
        """The name of a tensor in a type, which is cast once."""
        if types.get(name) not in _NAMES or types[name] == target:
            return name
        if (name, target) not in casts:
            casts[name, target] = result = f"{name}/{_NAMES[target]}"
            if name in graph.constants:
                limit = np.finfo(_NAMES[target]).max  # masks add less than float16 has
                array = np.clip(graph.constants[name], -limit, limit)
                graph.constants[result] = array.astype(_NAMES[target])
            else:
                nodes.append(_cast_node(name, result, target))
        return casts[name, target]

    for node in graph.nodes:
        after = node.op_type in _WEIGHTED or not weighted.isdisjoint(node.input)
        in_float32 = node.op_type in (*_FLOAT32_OPERATORS, *_COMPARISONS)
        target = _HALF if after and not in_float32 else _FLOAT
        kind = _output_type(node, types)
        if node.op_type != "Shape":
            node.input[:] = [cast(name, target) for name in node.input]
        nodes.append(node)
        if node.op_type not in ("Cast", "ConstantOfShape") and kind in _NAMES:
            kind = target
        types.update(dict.fromkeys(node.output, kind))
        if after:
            weighted.update(node.output)
    for output in graph.outputs:  # back to float32, under the same names
        if types[output.name] != _HALF:
            continue
        inner = f"{output.name}/float16"
        for node in nodes:
            for field in (node.input, node.output):
                field[:] = [inner if name == output.name else name for name in field]
        nodes.append(_cast_node(inner, output.name, _FLOAT))
    graph.nodes = nodes
    graph.drop_unused()


def _cast_node(source: str, result: str, target: int) -> onnx.NodeProto:
    import onnx

    return onnx.helper.make_node("Cast", [source], [result], f"{result}/cast", to=target)


def _output_type(node: onnx.NodeProto, types: dict[str, int | None]) -> int | None:
    """The element type of a node's results, `None` for integers and booleans."""
    if node.op_type == "Shape" or node.op_type in _COMPARISONS:
        return None
    if node.op_type == "ConstantOfShape":
        return next((attribute.t.data_type for attribute in node.attribute), _FLOAT)
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
