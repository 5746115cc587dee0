"""Weights of exports in the precision that they are read in: variables or stacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_vit.export.inference import Inference, NamedInputs

if TYPE_CHECKING:
    from tensorflow.types.experimental import ConcreteFunction

_ALIGNMENT = 64  # bytes; a slice that begins elsewhere is copied
_SMALL = 4096  # bytes; a copy of so few takes less than a microsecond


def weights_as_read(inference: Inference, function: ConcreteFunction) -> list[tf.Variable]:
    """Finds the model's variables, or copies of those that a function casts before it uses them.

    Under half-precision policies, kernels are float32 and are cast in every call.

    Args:
        inference: The model.
        function: The function of its pixels, as traced.

    Returns:
        A variable for each of `inference.variables`.
    """
    dtypes = _dtypes_of_use(function)
    return [
        variable
        if (dtype := dtypes.get(id(variable), variable.dtype)) == variable.dtype
        else tf.Variable(tf.cast(variable, dtype), trainable=False)
        for variable in inference.variables
    ]


def stack_equal(
    weights: Sequence[tf.Variable],
) -> tuple[list[tf.Variable], Callable[[], list[tf.Tensor]]]:
    """Stacks variables of the same shape and dtype.

    In a SavedModel, every function has an input for each variable that it or a function it calls
    reads, so a Ti/16 with 12 variables instead of 152 loads in half the time. A slice of the first
    axis is no copy if it begins at a multiple of 64 bytes; large variables of other sizes stay as
    they are.

    Args:
        weights: The variables.

    Returns:
        The variables to save, and a function that reads the tensors of `weights` from them.
    """
    groups: dict[Any, list[int]] = {}
    for index, weight in enumerate(weights):
        size = weight.shape.num_elements() * weight.dtype.size
        stacked = size % _ALIGNMENT == 0 or size <= _SMALL
        key = (tuple(weight.shape), weight.dtype) if stacked else index
        groups.setdefault(key, []).append(index)
    saved = [
        weights[group[0]]
        if len(group) == 1
        else tf.Variable(tf.stack([weights[index] for index in group]), trainable=False)
        for group in groups.values()
    ]

    def read() -> list[tf.Tensor]:
        found: dict[int, tf.Tensor] = {}
        for variable, group in zip(saved, groups.values(), strict=True):
            value = variable.read_value()
            parts = [value] if len(group) == 1 else tf.unstack(value, len(group))
            found.update(zip(group, parts, strict=True))
        return [found[index] for index in range(len(found))]

    return saved, read


def with_weights(
    inference: Inference | NamedInputs, weights: Sequence[Any]
) -> Callable[[Any], dict[str, Any]]:
    """Makes the function of a model's inputs with other weights: tensors or variables."""

    def run(pixels: Any) -> dict[str, Any]:
        scope = keras.StatelessScope()  # whose constructor would cast to the variables' dtype
        for variable, weight in zip(inference.model.variables, weights, strict=True):
            scope.add_update((variable, tf.convert_to_tensor(weight)))
        with scope:
            return inference(pixels)

    return run


def _dtypes_of_use(function: ConcreteFunction) -> dict[int, tf.DType]:
    """Finds the dtype that each variable is cast to, by `id`, where all that read it cast it so."""
    inputs = {id(outer): inner for outer, inner in function.graph.captures}
    found = {}
    for variable in function.graph.variables:
        reads = [
            op for op in inputs[id(variable.handle)].consumers() if op.type == "ReadVariableOp"
        ]
        uses = [use for read in reads for use in read.outputs[0].consumers()]
        dtypes = {use.outputs[0].dtype if use.type == "Cast" else variable.dtype for use in uses}
        found[id(variable)] = dtypes.pop() if len(dtypes) == 1 else variable.dtype
    return found
