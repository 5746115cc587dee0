"""ONNX graphs with constants as NumPy arrays: pattern matching, constant folding, writing."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # an optional package
    import onnx

# A pattern is a number (a constant with this value), a name (any tensor, and the same tensor
# wherever the name occurs again), or (operator, operand, ...) with a pattern for each operand.
Pattern = float | str | tuple[Any, ...]
_Found = dict[str, str]  # tensors by their names in a pattern
COMMUTATIVE = ("Add", "Mul")
# The oldest file format for each version of the operator set.
IR_VERSIONS = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10}
OPSETS = tuple(IR_VERSIONS)
_SMALL = 1024  # bytes; smaller constants, such as shapes, stay in the graph
_ALIGNMENT = 4096  # bytes; lets runtimes map the file into memory


@dataclasses.dataclass
class Graph:
    """Nodes in topological order, and constants as arrays.

    Args:
        nodes: Nodes, each after those whose results it reads.
        constants: Arrays by tensor name.
        inputs: Inputs of the graph.
        outputs: Outputs of the graph.
        opset: Version of the ONNX operator set.
    """

    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    inputs: list[onnx.ValueInfoProto]
    outputs: list[onnx.ValueInfoProto]
    opset: int

    def producers(self) -> dict[str, onnx.NodeProto]:
        """The node that computes each tensor."""
        return {name: node for node in self.nodes for name in node.output}

    def output_names(self) -> set[str]:
        """Names of the outputs."""
        return {value.name for value in self.outputs}

    def rename(self, names: Mapping[str, str]) -> None:
        """Renames tensors."""
        self.constants = {names.get(name, name): x for name, x in self.constants.items()}
        for value in [*self.inputs, *self.outputs]:
            value.name = names.get(value.name, value.name)
        for node in self.nodes:
            for field in (node.input, node.output):
                field[:] = [names.get(name, name) for name in field]

    def drop_unused(self) -> None:
        """Removes nodes and constants on which no output depends."""
        needed, kept = self.output_names(), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(node.input)
        self.nodes = kept[::-1]
        self.constants = {k: v for k, v in self.constants.items() if k in needed}


Replacement = Callable[[Graph, "onnx.NodeProto", _Found], "list[onnx.NodeProto] | None"]


def fold_constants(graph: Graph) -> None:
    """Constant folding: replaces nodes of a graph that read only constants by their results."""
    folded, known = [], set(graph.constants)
    for node in graph.nodes:
        if all(name in known for name in node.input if name) and node.op_type != "Shape":
            folded.append(node)
            known.update(node.output)
    if not folded:
        return
    rest = [node for node in graph.nodes if node not in folded]
    read = {name for node in rest for name in node.input} | graph.output_names()
    names = [name for node in folded for name in node.output if name in read]
    sources = {name for node in folded for name in node.input}
    constants = {name: graph.constants[name] for name in sources if name in graph.constants}
    arrays = _evaluate(folded, constants, names, graph.opset)
    graph.constants.update(zip(names, arrays, strict=True))
    graph.nodes = rest
    graph.drop_unused()


def _evaluate(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], names: list[str], opset: int
) -> list[np.ndarray]:
    """Computes tensors from constants in ONNX Runtime."""
    import onnx
    import onnxruntime

    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in constants.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph(nodes, "constants", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=providers)
    return session.run(names, constants)


def rewrite(graph: Graph, pattern: tuple[Any, ...], replace: Replacement) -> None:
    """Replaces every match of a pattern.

    Args:
        graph: The graph, changed in place.
        pattern: The pattern of nodes to find.
        replace: Function of the graph, the last node of a match and the tensors by their names in
            the pattern. It returns the nodes that replace it, or `None` to keep the node.
    """
    matcher, nodes = _Matcher(graph.constants, graph.producers()), []
    for node in graph.nodes:
        found = next(matcher.match_node(pattern, node, {}), None)
        new = None if found is None else replace(graph, node, found)
        nodes.extend([node] if new is None else new)
    graph.nodes = nodes
    graph.drop_unused()


@dataclasses.dataclass
class _Matcher:
    """Finds all ways to match a pattern, given the tensors that are matched already."""

    constants: dict[str, np.ndarray]
    producers: dict[str, onnx.NodeProto]

    def match(self, pattern: Pattern, name: str, found: _Found) -> Iterator[_Found]:
        if isinstance(pattern, str):
            if found.get(pattern, name) == name:
                yield {**found, pattern: name}
        elif isinstance(pattern, tuple):
            if name in self.producers:
                yield from self.match_node(pattern, self.producers[name], found)
        elif name in self.constants:
            value = self.constants[name]
            if value.size == 1 and np.isclose(float(value.reshape(())), pattern, rtol=1e-5):
                yield found

    def match_node(
        self, pattern: tuple[Any, ...], node: onnx.NodeProto, found: _Found
    ) -> Iterator[_Found]:
        operator, *operands = pattern
        if node.op_type != operator or len(node.input) < len(operands):
            return
        orders = [list(node.input)]
        if operator in COMMUTATIVE:
            orders.append(orders[0][::-1])
        for names in orders:
            yield from self.match_all(operands, names, found)

    def match_all(
        self, patterns: list[Pattern], names: list[str], found: _Found
    ) -> Iterator[_Found]:
        if not patterns:
            yield found
            return
        for first in self.match(patterns[0], names[0], found):
            yield from self.match_all(patterns[1:], names[1:], first)


def save(graph: Graph, path: pathlib.Path, external: bool, metadata: dict[str, str]) -> None:
    """Writes a graph to a file.

    Args:
        graph: The graph.
        path: File to write.
        external: Whether constants go to a second file, `NAME.data`, as they must above the 2 GB
            limit of a protocol buffer.
        metadata: Metadata of the file, texts by name.
    """
    import onnx

    if external:
        constants = _write_external(graph, path.with_name(path.name + ".data"))
    else:
        constants = [onnx.numpy_helper.from_array(v, k) for k, v in graph.constants.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "keras_vit", graph.inputs, graph.outputs, constants),
        opset_imports=[onnx.helper.make_opsetid("", graph.opset)],
        ir_version=IR_VERSIONS[graph.opset],
        producer_name="keras_vit",
    )
    onnx.helper.set_model_props(model, metadata)
    path.write_bytes(model.SerializeToString())


def _write_external(graph: Graph, path: pathlib.Path) -> list[onnx.TensorProto]:
    """Writes constants to a file, and returns tensors that refer to it."""
    import onnx

    tensors = []
    with path.open("wb") as file:
        for name, array in graph.constants.items():
            if array.nbytes < _SMALL:
                tensors.append(onnx.numpy_helper.from_array(array, name))
                continue
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            tensor = onnx.TensorProto(
                name=name,
                dims=array.shape,
                data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
                data_location=onnx.TensorProto.EXTERNAL,
            )
            reference = {"location": path.name, "offset": file.tell(), "length": array.nbytes}
            for key, value in reference.items():
                tensor.external_data.add(key=key, value=str(value))
            np.ascontiguousarray(array).tofile(file)
            tensors.append(tensor)
    return tensors
