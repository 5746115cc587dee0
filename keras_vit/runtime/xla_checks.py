"""Whether a graph of TensorFlow means the same when XLA compiles it on a processor.

XLA ignores assertions, cannot run Python or strings, and does not check indices: a label outside of
the classes gives NaN in place of an error. So every operation of the graph is looked at. Those of
`_SAME` mean the same. Indices that come from the batch alone, such as labels, are computed and
checked before the compiled function runs. Whatever is not known here is not compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from keras_vit.runtime.private_names import Tensor

# Names of operations, without versions ("V2"). Not here, besides what is unknown: `Max` and `Min`,
# which lose NaN under XLA, and those of the tables below. Random numbers of one seed differ.
_NAMES = """
    Abs Add AddN All Any ApproximateEqual ArgMax ArgMin AssignAddVariableOp AssignSubVariableOp
    AssignVariableOp AvgPool AvgPoolGrad BatchMatMul BiasAdd BiasAddGrad Bitcast BitwiseAnd
    BroadcastGradientArgs BroadcastTo Cast Ceil Concat ConcatOffset Const Conv2D
    Conv2DBackpropFilter Conv2DBackpropInput Cos Cumsum DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput DivNoNan Einsum Elu
    EluGrad Equal Erf Erfc Exp ExpandDims Expm1 Fill Floor FusedBatchNorm FusedBatchNormGrad
    Greater GreaterEqual Identity IdentityN If IsFinite IsInf IsNan L2Loss LeakyRelu
    LeakyReluGrad Less LessEqual LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr
    MatMul MatrixDiagPart MaxPool MaxPoolGrad Mean MirrorPad MirrorPadGrad Mul
    MulNoNan Neg NoOp NotEqual OneHot OnesLike Pack Pad PartitionedCall Placeholder
    PlaceholderWithDefault PreventGradient Prod Range Rank ReadVariableOp RealDiv Reciprocal
    ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Reshape ResizeBilinear ResizeBilinearGrad
    ResourceApplyAdam Reverse Round Rsqrt RsqrtGrad Select Selu SeluGrad Shape ShapeN Sigmoid
    SigmoidGrad Sign Sin Size Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Split
    SplitV Sqrt SqrtGrad Square SquaredDifference Squeeze StatefulPartitionedCall StatelessCase
    StatelessIf StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomNormal
    StatelessRandomUniform StatelessRandomUniformInt StatelessTruncatedNormal StopGradient Sub
    Sum Tanh TanhGrad Tile TopK Transpose Unpack VarHandleOp VarIsInitializedOp Xdivy Xlogy
    ZerosLike
"""
_SAME = frozenset(_NAMES.split())
# Of integers: the least second input. XLA divides by 0, and gives 0 for negative powers.
_DIVISIONS = {"FloorDiv": 1, "FloorMod": 1, "Pow": 0}
_EXTREMES = ("Maximum", "Minimum")  # of floats: XLA loses NaN of the second input
# Inputs that must be computed from shapes alone: XLA compiles a program for every value of them.
_ONLY_SHAPES = {
    "BroadcastTo": (1,),
    "Fill": (0,),
    "LinSpace": (2,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "StatelessRandomNormal": (0,),
    "StatelessRandomUniform": (0,),
    "Tile": (1,),
    "TopK": (1,),
}
# Inputs that must be computed from shapes and orders alone: TensorFlow checks them, XLA does not.
_ONLY_POSITIONS = {
    "Assert": (0,),  # of shapes, which XLA knows
    "DynamicStitch": (),  # all
    "InvertPermutation": (0,),
    "Slice": (1, 2),
    "StridedSlice": (1, 2),
    "StridedSliceGrad": (0, 1, 2),
}
# Which input holds indices, and how many positions there are.
_INDICES: dict[str, tuple[int, Callable[[Any], int | None]]] = {
    "GatherV2": (1, lambda op: _axis_size(op)),
    "InTopKV2": (1, lambda op: op.inputs[0].shape[-1]),
    "SparseSoftmaxCrossEntropyWithLogits": (1, lambda op: _count_classes(op.inputs[0])),
    "ScatterNd": (0, lambda op: min(op.outputs[0].shape, key=lambda n: -1 if n is None else n)),
    "UnsortedSegmentSum": (1, lambda op: op.outputs[0].shape[0]),
}
# They change the form of indices, not their values: how many of their inputs are values.
_KEEP_VALUES = {
    "Cast": 1,
    "ConcatV2": -1,  # all but the axis
    "ExpandDims": 1,
    "Identity": 1,
    "Pack": None,
    "Reshape": 1,
    "Squeeze": 1,
    "Transpose": 1,
}
# Of floats: indices pass through them, to be chosen or sorted.
_KEEP_ORDER = frozenset((*_KEEP_VALUES, "Neg", "SelectV2", "TopKV2"))
_SHAPES = frozenset(("Const", "Shape", "ShapeN", "Size", "Rank"))
_ORDERS = frozenset(("ArgMax", "ArgMin"))


class ChangesMeaningError(Exception):
    """A graph may mean something else under XLA. The text says which operation is the reason."""


def check_graph(function: Any) -> Callable[..., Any]:
    """Checks that a function means the same with XLA, for batches with valid indices.

    Args:
        function: A concrete function of TensorFlow.

    Returns:
        A function of the same arguments that tells whether all indices in them are valid:
        `accept_all` if there are none.

    Raises:
        ChangesMeaningError: If that is not known.
    """
    for name, kind in _inner_operations(function):
        if _plain(kind) not in _SAME:
            raise ChangesMeaningError(f"operation {kind} ({name})")
    batch = function.inputs[: len(function.inputs) - len(function.captured_inputs)]
    checker = _Checker({tensor.op.name for tensor in batch})
    for operation in function.graph.get_operations():
        checker.check(operation)
    return _IndexCheck(batch, checker.ranges, checker.needed()) if checker.ranges else accept_all


def accept_all(*args: Any) -> bool:
    """The check of batches without indices."""
    return True


def _plain(kind: str) -> str:
    """The name of an operation without its version."""
    name, _, version = kind.rpartition("V")
    return name if name and version.isdecimal() else kind


def _inner_operations(function: Any) -> Iterator[tuple[str, str]]:
    """Names and kinds of operations in called functions, without those that cannot differ."""
    import tensorflow as tf

    for inner in function.graph.as_graph_def().library.function:
        nodes = {node.name: node for node in inner.node_def}
        for node in inner.node_def:
            if node.op in _DIVISIONS or node.op in _EXTREMES:
                second = nodes.get(node.input[1].partition(":")[0])
                while second is not None and second.op in ("Cast", "Identity"):
                    second = nodes.get(second.input[0].partition(":")[0])
                is_float = tf.as_dtype(node.attr["T"].type).is_floating
                is_constant = second is not None and second.op == "Const"
                if is_constant or is_float == (node.op in _DIVISIONS):
                    continue
            yield node.name, node.op


def _axis_size(gather: Any) -> int | None:
    import tensorflow as tf

    axis = tf.get_static_value(gather.inputs[2])
    return None if axis is None else gather.inputs[0].shape[int(axis)]


def _count_classes(logits: Tensor) -> int | None:
    if logits.shape[-1] is None and logits.op.type == "Reshape":  # of pixels to rows
        logits = logits.op.inputs[0]
    return logits.shape[-1]


def _are_clipped(values: Tensor, least: int, most: int | None) -> bool:
    """Tells whether integers outside of a range were replaced: Keras's confusion matrix does so."""
    import tensorflow as tf

    if values.op.type != "SelectV2" or most is None:
        return False
    condition, kept, other = values.op.inputs
    found = {"GreaterEqual": False, "Less": False}
    terms = [condition.op]
    while terms:
        term = terms.pop()
        if term.type == "LogicalAnd":
            terms.extend(tensor.op for tensor in term.inputs)
        elif term.type in found and term.inputs[0] is kept:
            limit = tf.get_static_value(term.inputs[1])
            is_lower = term.type == "GreaterEqual"
            found[term.type] |= limit is not None and (
                limit >= least if is_lower else limit <= most + 1
            )
    replaced = tf.get_static_value(other)
    return all(found.values()) and replaced is not None and bool(least <= replaced <= most)


class _Checker:
    """Checks operations of one graph, and collects the indices that come from the batch."""

    def __init__(self, batch: set[str]):
        self._batch = batch
        self._sources: dict[str, frozenset[str]] = {}
        self.ranges: dict[Any, tuple[int, int]] = {}  # least and most, by reference to a tensor

    def check(self, operation: Any) -> None:
        kind = operation.type
        types = {tensor.dtype.name for tensor in operation.outputs}
        if "variant" in types or ("string" in types and kind != "Const"):  # a message
            raise self._difference(operation)
        inputs = list(operation.inputs)
        shapes = [self._sources_of(inputs[i]) for i in _ONLY_SHAPES.get(_plain(kind), ())]
        is_same = all(sources <= {"shapes"} for sources in shapes)
        if kind in _INDICES:
            place, size_of = _INDICES[kind]
            size = size_of(operation)
            last = None if size is None else size - 1
            self._check_range(operation, inputs[place], 0, last)
        elif kind in _DIVISIONS:
            if inputs[1].dtype.is_integer:
                self._check_range(operation, inputs[1], _DIVISIONS[kind], inputs[1].dtype.max)
        elif kind in _EXTREMES:
            is_same &= not inputs[1].dtype.is_floating or self._are_positions(inputs[1])
        elif kind in _ONLY_POSITIONS:
            read = _ONLY_POSITIONS[kind] or range(len(inputs))
            is_same &= all(self._are_positions(inputs[i]) for i in read)
        else:
            is_same &= _plain(kind) in _SAME
        if not is_same:
            raise self._difference(operation)

    def _difference(self, operation: Any) -> ChangesMeaningError:
        return ChangesMeaningError(f"operation {operation.type} ({operation.name})")

    def _check_range(self, operation: Any, values: Tensor, least: int, most: int | None) -> None:
        """Checks that integers are positions, or notes the range of those of the batch."""
        if self._are_positions(values) or _are_clipped(values, least, most):
            return
        kind, inputs = values.op.type, list(values.op.inputs)
        if kind in _KEEP_VALUES and inputs[0].dtype.name != "bool":
            first = _KEEP_VALUES[kind]
            for part in inputs[:first]:
                self._check_range(operation, part, least, most)
        elif most is not None and self._sources_of(values) <= {"batch", "shapes", "orders"}:
            low, high = self.ranges.get(values.ref(), (least, most))
            self.ranges[values.ref()] = max(least, low), min(most, high)
        else:
            raise self._difference(operation)

    def _are_positions(self, tensor: Tensor) -> bool:
        return self._sources_of(tensor) <= {"shapes", "orders"}

    def _sources_of(self, tensor: Tensor) -> frozenset[str]:
        """Sources of a tensor: "batch", "shapes", "orders" (of values), "others"."""
        operation = tensor.op
        if operation.type in _SHAPES:
            return frozenset(("shapes",))
        if operation.type in _ORDERS or (
            operation.type.startswith("TopK") and tensor.value_index == 1
        ):
            return frozenset(("orders",))
        if operation.name not in self._sources:
            self._sources[operation.name] = self._sources_of_operation(operation)
        return self._sources[operation.name]

    def _sources_of_operation(self, operation: Any) -> frozenset[str]:
        if operation.name in self._batch:
            return frozenset(("batch",))
        is_float = any(tensor.dtype.is_floating for tensor in operation.outputs)
        if (
            not operation.inputs
            or operation.type in ("ReadVariableOp", "PartitionedCall", "StatefulPartitionedCall")
            or (is_float and operation.type not in _KEEP_ORDER)  # of the model
        ):
            return frozenset(("others",))
        return frozenset().union(*(self._sources_of(each) for each in operation.inputs))

    def needed(self) -> list[Any]:
        """The operations that compute the integers of `ranges`, without the batch."""
        found: dict[str, Any] = {}
        left = [each.deref().op for each in self.ranges]
        while left:
            operation = left.pop()
            if operation.type == "ReadVariableOp":  # a shape within the model
                raise self._difference(operation)
            if operation.name not in found and operation.name not in self._batch:
                found[operation.name] = operation
                left.extend(tensor.op for tensor in operation.inputs)
        return list(found.values())


class _IndexCheck:
    """Tells whether integers that `operations` compute from a batch are within their `ranges`."""

    def __init__(
        self, batch: list[Tensor], ranges: dict[Any, tuple[int, int]], operations: list[Any]
    ):
        import tensorflow as tf

        graph = tf.compat.v1.GraphDef()
        graph.versions.CopyFrom(batch[0].graph.graph_def_versions)
        for operation in operations:
            node = graph.node.add()
            node.CopyFrom(operation.node_def)
            del node.input[:]  # without what only waits
            node.input.extend(tensor.name for tensor in operation.inputs)
        self._graph, self._names = graph, [tensor.name for tensor in batch]
        self._ranges = {each.deref().name: limits for each, limits in ranges.items()}
        specs = [describe(x) for x in batch]
        self._function = tf.function(self._are_valid, autograph=False, input_signature=[specs])

    def __call__(self, *args: Any) -> Tensor:
        import tensorflow as tf

        return self._function([x for x in tf.nest.flatten(args) if x is not None])

    def _are_valid(self, batch: list[Tensor]) -> Tensor:
        import tensorflow as tf

        given = dict(zip(self._names, batch, strict=True))
        computed = [name for name in self._ranges if name not in given]
        used = {name for node in self._graph.node for name in node.input}
        values = tf.graph_util.import_graph_def(
            self._graph,
            input_map={name: x for name, x in given.items() if name in used},
            return_elements=computed,
        )
        given.update(zip(computed, values, strict=True))
        return functools.reduce(
            tf.logical_and,
            [_are_within(given[name], least, most) for name, (least, most) in self._ranges.items()],
        )


def describe(part: Tensor) -> Any:
    """Describes a part of a batch for any number of images; `None` stays `None`."""
    import tensorflow as tf

    if part is None:
        return None
    return tf.TensorSpec([None, *part.shape[1:]] if part.shape.rank else [], part.dtype)


def _are_within(values: Tensor, least: int, most: int) -> Tensor:
    import tensorflow as tf

    values = tf.cast(values, "float64" if values.dtype.is_floating else "int64")  # uint8 has no -1
    return tf.reduce_all((values >= least) & (values <= most))
