"""Costs of layers: multiply-accumulates, and numbers that a training step stores."""

from __future__ import annotations

import dataclasses
import math

import keras

from keras_vit.checks import Shape

_CONVOLUTIONS = (keras.layers.Conv2D, keras.layers.Conv2DTranspose, keras.layers.DepthwiseConv2D)
# Layers without weights that store as many numbers as their input has: that, or a mask. The
# gradient of a ReLU needs its output only, which the next layer stores.
_KEEPING = (keras.layers.Activation, keras.layers.Dropout, keras.layers.MaxPooling2D)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a layer for one image.

    Args:
        macs: Multiply-accumulates of a forward pass in convolutions, dense layers and attention.
            Norms, softmax, biases and activation functions are not counted.
        activations: Numbers that a training step stores between the forward and the backward pass.
        inputs: Numbers in the input of a block or a ResNet stage, from which rematerialisation
            recomputes it; 0 for other layers.
        kernels: Numbers in standardised kernels that a training step stores, once for all images.
        work: Numbers in the gradients of activations during the layer's backward pass: half the
            activations of one block or residual unit.
        constant_macs: Multiply-accumulates that the backward pass saves compared to `2 macs`,
            because a factor has no gradient.
        unread_macs: Those of `macs` that are not computed, because nothing reads their results.
    """

    macs: int = 0
    activations: int = 0
    inputs: int = 0
    kernels: int = 0
    work: int = 0
    constant_macs: int = 0
    unread_macs: int = 0

    def __add__(self, other: Cost) -> Cost:
        """Cost of both, one after the other: sums, and the larger `work`."""
        names = [field.name for field in dataclasses.fields(self)]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Cost(**{**sums, "work": max(self.work, other.work)})


def cost_of(layer: keras.layers.Layer, *input_shapes: Shape) -> Cost:
    """Cost of one call of a built layer: what its `count_costs` says, or that of a Keras layer.

    Args:
        layer: A layer with a method `count_costs(*input_shapes)`, or one of Keras: a dense layer,
            a convolution, a norm, or a layer without weights.
        *input_shapes: Shapes of its inputs, batch first.

    Raises:
        ValueError: If the size of an image is open, or the layer has weights and cannot be counted.
    """
    states_cost = hasattr(layer, "count_costs")
    if not (states_cost or layer.weights or isinstance(layer, _KEEPING)):
        return Cost()
    shape = input_shapes[0]
    if None in shape[1:]:
        raise ValueError(
            "The cost of a model depends on the size of its images, which is open in layer "
            f"{layer.name!r}: shape {shape}. Build the model with an input_shape."
        )
    if states_cost:
        cost: Cost = layer.count_costs(*input_shapes)
        return cost
    size = math.prod(shape[1:])
    if isinstance(layer, keras.layers.Embedding) or getattr(layer, "rate", None) == 0:
        return Cost()
    if not layer.weights:
        return Cost(activations=size)
    if isinstance(layer, keras.layers.Dense):
        return Cost(layer.units * size, size)
    if isinstance(layer, _CONVOLUTIONS):
        is_transposed = isinstance(layer, keras.layers.Conv2DTranspose)
        maps = shape if is_transposed else layer.compute_output_shape(shape)
        positions = maps[1:3] if layer.data_format == "channels_last" else maps[2:4]
        return Cost(math.prod(layer.kernel.shape) * math.prod(positions), size)
    if max(len(weight.shape) for weight in layer.weights) < 2:
        return Cost(activations=2 * size)  # a norm: its input, before and after it is normalised
    raise ValueError(
        f"Cannot count layer {layer.name!r}: type {type(layer).__name__} is not supported. Count a "
        "model of dense layers, convolutions and blocks, or give the layer a method "
        "`count_costs(input_shape)` that returns a `keras_vit.layers.costs.Cost`."
    )
