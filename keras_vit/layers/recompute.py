"""Activations that are computed again for the gradient, in place of being kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers.layer import Tensor


def recompute(layer: keras.layers.Layer, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """`function(*inputs)` in training, keeping nothing of it but its inputs for the gradient.

    The forward pass is done once more when its gradient is needed, with the same random numbers
    (https://arxiv.org/abs/1604.06174). `keras.RematScope` does this for whole layers, but in
    TensorFlow's graphs it fails on their keyword arguments and does not see their variables under
    `tf.distribute`: here everything is a positional tensor.

    Args:
        layer: The layer whose variables `function` reads; built.
        function: From tensors, tuples of them and `None` to one float tensor.
        *inputs: Its arguments.

    Returns:
        What `function` returns.
    """
    weights, states = layer.trainable_variables, layer.non_trainable_variables
    before = [state.value * 1 for state in states]  # copies: the states move on
    after: list[Tensor] = []
    leaves = keras.tree.flatten(inputs)
    tensors = [leaf for leaf in leaves if leaf is not None]

    def run(*received: Tensor) -> Any:
        values = received[len(tensors) :]
        mapping = [*zip(weights, values, strict=True), *zip(states, before, strict=True)]
        given = iter(received)
        filled = [None if leaf is None else next(given) for leaf in leaves]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = function(*keras.tree.pack_sequence_as(inputs, filled))
        after[:] = [scope.get_current_value(state) for state in states]
        # JAX lets nothing out of here but what is returned, TensorFlow lets no integer out.
        return (outputs, after) if keras.backend.backend() == "jax" else outputs

    # Reshaped to what they are, variables become tensors without being copied.
    outputs = keras.remat(run)(*tensors, *(ops.reshape(weight, weight.shape) for weight in weights))
    if keras.backend.backend() == "jax":
        outputs, after = outputs
    for state, value in zip(states, after, strict=True):
        state.assign(value)
    return outputs
