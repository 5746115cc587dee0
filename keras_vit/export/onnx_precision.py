"""ONNX graphs in fewer bits."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from keras_vit.export.onnx_graph import Graph

_FLOAT, _HALF = 1, 10  # onnx.TensorProto.FLOAT and FLOAT16
# Sums over many values stay float32 (LayerNormalization sums in float32 by itself), as does a
# padding, whose value half precision would make 0 (see `_keep_padding_of_pools`).
_KEPT = ("Softmax", "ReduceMean", "ReduceSum", "Pow", "Sqrt", "Reciprocal", "Pad", "MaxPool")
_WEIGHTED = ("Conv", "Gemm", "MatMul")


def to_float16(graph: Graph) -> None:
    """Turns a graph to half precision from its first dense product on; changed in place.

    What comes before, the normalisation of pixels, stays float32, as do softmax, sums, and the
    graph's inputs and outputs.
    """
    caster = _Caster(graph)
    types = {value.name: value.type.tensor_type.elem_type for value in graph.inputs}
    types.update({k: _FLOAT for k, v in graph.constants.items() if v.dtype == np.float32})
    weighted: set[str] = set()  # tensors that come after a dense product
    for node in graph.nodes:
        after = node.op_type in _WEIGHTED or not weighted.isdisjoint(node.input)
        target = _HALF if after and node.op_type not in _KEPT else _FLOAT
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
    """Casts what nodes read, each tensor once in each direction."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.nodes: list[Any] = []
        self._names: dict[tuple[str, int], str] = {}

    def read_as(self, node, target: int, types: dict[str, int]) -> None:
        """Makes a node read its float inputs in the type `target`."""
        if node.op_type == "Shape":
            return
        for index, name in enumerate(node.input):
            if types.get(name) in (_FLOAT, _HALF) and types[name] != target:
                node.input[index] = self._cast(name, target)

    def restore_outputs(self, types: dict[str, int]) -> None:
        """Makes the graph's outputs float32 again, under their names."""
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


def _cast_node(source: str, result: str, target: int):
    import onnx

    return onnx.helper.make_node("Cast", [source], [result], f"{result}/cast", to=target)


def _output_type(node, types: dict[str, int]) -> int | None:
    """The element type of a node's results, `None` for whole numbers."""
    if node.op_type == "Shape":
        return None
    if node.op_type == "Cast":
        return next(attribute.i for attribute in node.attribute if attribute.name == "to")
    return next((types[name] for name in node.input if types.get(name)), None)


def to_int8(source: pathlib.Path, path: pathlib.Path, external: bool) -> None:
    """Writes an ONNX file with the weights of its dense layers in 8 bits, a scale a column.

    What the layers read is quantised as it comes, so no images are needed to prepare. Products of
    attention, and convolutions, stay float32. Weights are unsigned: with signed ones, processors
    without VNNI add two products in 16 bits, which overflow, and differences are ten times larger.

    Args:
        source: A float32 file.
        path: File to write.
        external: Whether its weights go to a file beside it.
    """
    import logging

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


def _about_preprocessing(record) -> bool:
    """Leaves out the advice to fuse operators first, which our graphs already are."""
    return "pre-processing before quantization" not in record.getMessage()
