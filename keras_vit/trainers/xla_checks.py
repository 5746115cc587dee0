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

from keras_vit.trainers.private_names import Tensor

# Names of operations, without versions ("V2"). Not here, besides what is unknown: `Max` and `Min`,
# which lose NaN under XLA.
_NAMES = """
    Abs Add AddN All Any ApproximateEqual ArgMax ArgMin AssignAddVariableOp AssignSubVariableOp
    AssignVariableOp AvgPool AvgPoolGrad BatchMatMul BiasAdd BiasAddGrad Bitcast BitwiseAnd
    BroadcastGradientArgs BroadcastTo Cast Ceil Concat ConcatOffset Const Conv2D
    Conv2DBackpropFilter Conv2DBackpropInput Cos Cumsum DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput DivNoNan Einsum Elu
    EluGrad Equal Erf Erfc Exp ExpandDims Expm1 Fill Floor FusedBatchNorm FusedBatchNormGrad
    Greater GreaterEqual Identity IdentityN If IsFinite IsInf IsNan L2Loss LeakyRelu
    LeakyReluGrad Less LessEqual LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr
    MatMul MaxPool MaxPoolGrad Maximum Mean Minimum MirrorPad MirrorPadGrad Mul MulNoNan Neg
    NoOp NotEqual OneHot OnesLike Pack Pad PartitionedCall Placeholder PlaceholderWithDefault
    Pow PreventGradient Prod Range Rank ReadVariableOp RealDiv Reciprocal ReciprocalGrad Relu
    Relu6 Relu6Grad ReluGrad Reshape ResizeBilinear ResizeBilinearGrad ResourceApplyAdam Reverse
    Round Rsqrt RsqrtGrad Select Selu SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign Sin Size
    Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Split SplitV Sqrt SqrtGrad
    Square SquaredDifference Squeeze StatefulPartitionedCall StatelessCase StatelessIf
    StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomNormal
    StatelessRandomUniform StatelessRandomUniformInt StatelessTruncatedNormal StopGradient Sub
    Sum Tanh TanhGrad Tile TopK Transpose Unpack VarHandleOp VarIsInitializedOp Xdivy Xlogy
    ZerosLike
"""
_SAME = frozenset(_NAMES.split())
# Inputs that must be computed from shapes and orders alone: TensorFlow checks them, XLA does not.
_ONLY_POSITIONS = {
    "DynamicStitch": None,  # all
    "FloorDiv": (1,),
    "FloorMod": (1,),
    "InvertPermutation": (0,),
    "Slice": (1, 2),
    "StridedSlice": (1, 2),
    "StridedSliceGrad": (0, 1, 2),
}
# Which input holds indices, and how many positions there are.
_INDICES: dict[str, tuple[int, Callable[[Any], int | None]]] = {
    "GatherV2": (1, lambda op: _axis_size(op)),
    "InTopKV2": (1, lambda op: op.inputs[0].shape[-1]),
    "SparseSoftmaxCrossEntropyWithLogits": (1, lambda op: op.inputs[0].shape[-1]),
    "ScatterNd": (0, lambda op: min(op.outputs[0].shape, key=lambda n: -1 if n is None else n)),
    "UnsortedSegmentSum": (1, lambda op: op.outputs[0].shape[0]),
}
# They change the form of indices, not their values: input numbers, or all.
_KEEP_VALUES = {
    "Cast": (0,),
    "ConcatV2": None,
    "ExpandDims": (0,),
    "Identity": (0,),
    "Pack": None,
    "Reshape": (0,),
    "Squeeze": (0,),
    "Transpose": (0,),
}
_POSITIONS = frozenset(("Const", "Shape", "ShapeN", "Size", "Rank", "ArgMax", "ArgMin"))


class ChangesMeaningError(Exception):
    """A graph may mean something else under XLA. The text says which operation is the reason."""


def check_graph(function: Any) -> Callable[[Any], bool]:
    """Checks that a function means the same with XLA, for batches with valid indices.

    Args:
        function: A concrete function of TensorFlow.

    Returns:
        A function of the same arguments that tells whether all indices in them are valid.

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
    return _IndexCheck(batch, checker.limits, checker.needed()) if checker.limits else _accept


def _accept(*args: Any) -> bool:
    return True


def _plain(kind: str) -> str:
    """The name of an operation without its version."""
    name, _, version = kind.rpartition("V")
    return name if name and version.isdecimal() else kind


def _inner_operations(function: Any) -> Iterator[tuple[str, str]]:
    """Names and kinds of the operations in functions that the graph calls."""
    for inner in function.graph.as_graph_def().library.function:
        for node in inner.node_def:
            yield node.name, node.op


def _axis_size(gather: Any) -> int | None:
    import tensorflow as tf

    axis = tf.get_static_value(gather.inputs[2])
    return None if axis is None else gather.inputs[0].shape[int(axis)]


class _Checker:
    """Checks operations of one graph, and collects the indices that come from the batch.

    Args:
        batch: Names of the operations that are the batch.
    """

    def __init__(self, batch: set[str]):
        self._batch = batch
        self._sources: dict[str, frozenset[str]] = {}
        self.limits: dict[Tensor, int] = {}  # by reference: tensors of a graph

    def check(self, operation: Any) -> None:
        kind = operation.type
        if any(tensor.dtype.name in ("string", "variant") for tensor in operation.outputs):
            self._refuse(operation)
        if kind in _INDICES:
            place, limit_of = _INDICES[kind]
            self._check_indices(operation, operation.inputs[place], limit_of(operation))
        elif kind in _ONLY_POSITIONS:
            places = _ONLY_POSITIONS[kind]
            integers = not kind.startswith("Floor") or operation.inputs[0].dtype.is_integer
            for place in range(len(operation.inputs)) if places is None else places:
                if integers and not self._are_positions(operation.inputs[place]):
                    self._refuse(operation)
        elif _plain(kind) not in _SAME:
            self._refuse(operation)

    def _refuse(self, operation: Any) -> None:
        raise ChangesMeaningError(f"operation {operation.type} ({operation.name})")

    def _check_indices(self, operation: Any, indices: Tensor, limit: int | None) -> None:
        if self._are_positions(indices):
            return
        if "batch" in (sources := self._sources_of(indices)) and sources <= {"batch", "positions"}:
            if limit is None:
                self._refuse(operation)
            self.limits.setdefault(indices.ref(), limit)
            self.limits[indices.ref()] = min(limit, self.limits[indices.ref()])
            return
        kind = indices.op.type
        if kind not in _KEEP_VALUES or not indices.dtype.is_integer:
            self._refuse(operation)
        places = _KEEP_VALUES[kind]
        inputs = list(indices.op.inputs)
        if kind == "ConcatV2":
            inputs.pop()  # the axis
        for part in inputs if places is None else [inputs[place] for place in places]:
            self._check_indices(operation, part, limit)

    def _are_positions(self, tensor: Tensor) -> bool:
        return self._sources_of(tensor) <= {"positions"}

    def _sources_of(self, tensor: Tensor) -> frozenset[str]:
        """What a tensor is computed from: "batch", "positions" (shapes and orders), "others"."""
        operation = tensor.op
        if operation.type in _POSITIONS or (
            operation.type.startswith("TopK") and tensor.value_index == 1
        ):
            return frozenset(("positions",))
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
            or (is_float and operation.type not in _KEEP_VALUES)  # of the model
        ):
            return frozenset(("others",))
        return frozenset().union(*(self._sources_of(each) for each in operation.inputs))

    def needed(self) -> list[Any]:
        """The operations that compute the indices of `limits`, without the batch."""
        found: dict[str, Any] = {}
        left = [each.deref().op for each in self.limits]
        while left:
            operation = left.pop()
            if operation.name not in found and operation.name not in self._batch:
                found[operation.name] = operation
                left.extend(tensor.op for tensor in operation.inputs)
        return list(found.values())


class _IndexCheck:
    """Tells whether indices that are computed from a batch are valid.

    Args:
        batch: The tensors of the graph that stand for a batch.
        limits: Number of positions by the reference of the indices.
        operations: Those that compute the indices.
    """

    def __init__(self, batch: list[Tensor], limits: dict[Any, int], operations: list[Any]):
        import tensorflow as tf

        graph = tf.compat.v1.GraphDef()
        graph.versions.CopyFrom(batch[0].graph.graph_def_versions)
        for operation in operations:
            node = graph.node.add()
            node.CopyFrom(operation.node_def)
            del node.input[:]  # without what only waits
            node.input.extend(tensor.name for tensor in operation.inputs)
        self._graph, self._names = graph, [tensor.name for tensor in batch]
        self._limits = {each.deref().name: limit for each, limit in limits.items()}
        # For any number of images.
        specs = [
            tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank else [], x.dtype) for x in batch
        ]
        self._function = tf.function(self._are_valid, autograph=False, input_signature=[specs])

    def __call__(self, *args: Any) -> bool:
        import tensorflow as tf

        return bool(self._function([x for x in tf.nest.flatten(args) if x is not None]))

    def _are_valid(self, batch: list[Tensor]) -> Tensor:
        import tensorflow as tf

        given = dict(zip(self._names, batch, strict=True))
        computed = [name for name in self._limits if name not in given]
        used = {name for node in self._graph.node for name in node.input}
        values = tf.graph_util.import_graph_def(
            self._graph,
            input_map={name: x for name, x in given.items() if name in used},
            return_elements=computed,
        )
        given.update(zip(computed, values, strict=True))
        return functools.reduce(
            tf.logical_and,
            [
                tf.reduce_all((given[name] >= 0) & (given[name] < limit))
                for name, limit in self._limits.items()
            ],
        )
