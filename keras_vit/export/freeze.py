"""Frozen weights: constants in place of variables, in the precision that they are read in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.inference import Inference

if TYPE_CHECKING:
    from tensorflow.types.experimental import ConcreteFunction

MAX_BYTES = 1_900_000_000  # a SavedModel's graph is one protocol buffer, of less than 2 GB


def freeze(
    inference: Inference, function: ConcreteFunction, max_bytes: int = MAX_BYTES
) -> ConcreteFunction | None:
    """Traces a function again with constants in place of the model's variables.

    Under half-precision policies, kernels are float32 and are cast in every call, and oneDNN packs
    a kernel again in every call unless it is constant.

    Args:
        inference: The model.
        function: The function of its pixels, as traced with variables.
        max_bytes: Largest size of all constants.

    Returns:
        The function, or `None` if the constants are too large.
    """
    dtypes = _dtypes_of_use(function)
    variables = inference.model.variables
    used = [dtypes.get(id(variable.value), tf.float32) for variable in variables]
    sizes = [np.prod(v.shape) * dtype.size for v, dtype in zip(variables, used, strict=True)]
    if sum(sizes) > max_bytes:
        return None

    values = [tf.cast(v.value, dtype).numpy() for v, dtype in zip(variables, used, strict=True)]

    def run(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        scope = keras.StatelessScope()  # whose constructor would cast to the variables' dtype
        for variable, value in zip(variables, values, strict=True):
            scope.add_update((variable, tf.constant(value)))
        with scope:
            return inference(pixels)

    spec = function.structured_input_signature[0][0]
    return tf.function(run, autograph=False).get_concrete_function(spec)


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
