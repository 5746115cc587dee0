"""Roots, residual units and stages of the two ResNets: the hybrids' stem, and BiT."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_positive
from keras_vit.layers.convolution import GroupNorm, StdConv2D, pad_fixed
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer, Tensor

_EXPANSION = 4  # channels of a unit's output over those of its 3 x 3 convolution


@keras.saving.register_keras_serializable("keras_vit")
class StemRoot(Layer):
    """The first layers of a hybrid's stem: convolution, group norm, ReLU, largest of 3 x 3.

    As in the official ViT code: `"same"` padding, and maps of a quarter of the image's size.

    Args:
        filters: Channels of the maps.
        norm_epsilon: Added to the variance in the group norm.
        standardization: Of the kernel, see `StdConv2D`.

    Call arguments:
        images: Float tensor of shape `(B, H, W, C)`.

    Returns:
        Float tensor of shape `(B, H / 4, W / 4, filters)`.
    """

    def __init__(
        self,
        filters: int,
        norm_epsilon: float = 1e-6,
        standardization: str | None = "std",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("filters", filters)
        self.filters = filters
        self.norm_epsilon = norm_epsilon
        self.standardization = standardization

    def build(self, images_shape: Shape) -> None:
        self.conv = _build_conv(self, "conv", images_shape[-1], self.filters, 7, 2)
        self.norm = _build_norm(self, "norm", self.filters)

    def call(self, images: Tensor) -> Tensor:
        x = ops.relu(self.norm(self.conv(images)))  # (B, H / 2, W / 2, filters)
        return ops.max_pool(x, 3, strides=2, padding="same", data_format="channels_last")

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        return _strided(images_shape, 4, self.filters)

    def count_costs(self, images_shape: Shape) -> Cost:
        """Cost for one image."""
        maps_shape = self.conv.compute_output_shape(images_shape)
        return self.conv.count_costs(images_shape) + self.norm.count_costs(maps_shape)


@keras.saving.register_keras_serializable("keras_vit")
class BiTRoot(Layer):
    """The first layers of a BiT ResNet: convolution, then the largest of 3 x 3.

    As in the official BiT code: both pad with zeros on every side. What is pooled may be
    negative, so that those zeros count.

    Args:
        filters: Channels of the maps.
        standardization: Of the kernel, see `StdConv2D`.

    Call arguments:
        images: Float tensor of shape `(B, H, W, C)`.

    Returns:
        Float tensor of shape `(B, H / 4, W / 4, filters)`.
    """

    def __init__(self, filters: int, standardization: str | None = "variance", **kwargs: Any):
        super().__init__(**kwargs)
        check_positive("filters", filters)
        self.filters = filters
        self.standardization = standardization

    def build(self, images_shape: Shape) -> None:
        self.conv = _build_conv(self, "conv", images_shape[-1], self.filters, 7, 2, "fixed")

    def call(self, images: Tensor) -> Tensor:
        x = pad_fixed(self.conv(images), (3, 3))  # (B, H / 2 + 2, W / 2 + 2, filters)
        return ops.max_pool(x, 3, strides=2, padding="valid", data_format="channels_last")

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        return _strided(images_shape, 4, self.filters)

    def count_costs(self, images_shape: Shape) -> Cost:
        """Cost for one image."""
        maps = math.prod(self.conv.compute_output_shape(images_shape)[1:])  # before the pooling
        kernels = math.prod(self.conv.kernel.shape)
        return self.conv.count_costs(images_shape) + Cost(activations=maps, kernels=kernels)


class _Residual(Layer):
    """Arguments and shape of residual units, and of stages of them."""

    def __init__(
        self,
        filters: int,
        strides: int = 1,
        pre_activation: bool = False,
        norm_epsilon: float = 1e-6,
        standardization: str | None = "std",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("filters", filters)
        check_positive("strides", strides)
        self.filters = filters
        self.strides = strides
        self.pre_activation = pre_activation
        self.norm_epsilon = norm_epsilon
        self.standardization = standardization

    def compute_output_shape(self, maps_shape: Shape) -> Shape:
        return _strided(maps_shape, self.strides, _EXPANSION * self.filters)


@keras.saving.register_keras_serializable("keras_vit")
class ResidualUnit(_Residual):
    """A bottleneck of three convolutions, added to what came in.

    With `pre_activation=False` the unit of a hybrid's stem (https://arxiv.org/abs/1512.03385):
    each convolution is followed by its norm, and the sum by ReLU. With `pre_activation=True` that
    of BiT (https://arxiv.org/abs/1603.05027): norm and ReLU come before each convolution, and the
    sum stays as it is.

    Args:
        filters: Channels of the 3 x 3 convolution; the output has four times as many.
        strides: Steps of the 3 x 3 convolution along both axes.
        pre_activation: Whether norms come before convolutions.
        norm_epsilon: Added to the variance in the group norms.
        standardization: Of the kernels, see `StdConv2D`.

    Call arguments:
        maps: Float tensor of shape `(B, H, W, C)`.

    Returns:
        Float tensor of shape `(B, H / strides, W / strides, 4 filters)`.
    """

    def build(self, maps_shape: Shape) -> None:
        channels, narrow, wide = maps_shape[-1], self.filters, _EXPANSION * self.filters
        padding = "fixed" if self.pre_activation else "same"
        self.has_shortcut = channels != wide or self.strides != 1
        self.conv_1 = _build_conv(self, "conv_1", channels, narrow, padding=padding)
        self.conv_2 = _build_conv(self, "conv_2", narrow, narrow, 3, self.strides, padding)
        self.conv_3 = _build_conv(self, "conv_3", narrow, wide, padding=padding)
        if self.has_shortcut:
            self.shortcut = _build_conv(self, "shortcut", channels, wide, 1, self.strides, padding)
        before = self.pre_activation  # norms are before convolutions, or after them
        self.norm_1 = _build_norm(self, "norm_1", channels if before else narrow)
        self.norm_2 = _build_norm(self, "norm_2", narrow)
        if before:
            self.norm_3 = _build_norm(self, "norm_3", narrow)
            return
        self.norm_3 = _build_norm(self, "norm_3", wide, gamma=0.0)  # as in the official code
        if self.has_shortcut:
            self.shortcut_norm = _build_norm(self, "shortcut_norm", wide)

    def call(self, maps: Tensor) -> Tensor:
        return self._pre_activation(maps) if self.pre_activation else self._post_activation(maps)

    def _pre_activation(self, maps: Tensor) -> Tensor:
        x = ops.relu(self.norm_1(maps))
        shortcut = self.shortcut(x) if self.has_shortcut else maps
        x = ops.relu(self.norm_2(self.conv_1(x)))
        x = ops.relu(self.norm_3(self.conv_2(x)))
        return shortcut + self.conv_3(x)

    def _post_activation(self, maps: Tensor) -> Tensor:
        shortcut = self.shortcut_norm(self.shortcut(maps)) if self.has_shortcut else maps
        x = ops.relu(self.norm_1(self.conv_1(maps)))
        x = ops.relu(self.norm_2(self.conv_2(x)))
        return ops.relu(shortcut + self.norm_3(self.conv_3(x)))

    def count_costs(self, maps_shape: Shape) -> Cost:
        """Cost for one image."""
        batch, *size, channels = maps_shape
        after, F = self.compute_output_shape(maps_shape)[1:3], self.filters
        convs = [(self.conv_1, size, channels), (self.conv_2, size, F), (self.conv_3, after, F)]
        if self.has_shortcut:
            convs.append((self.shortcut, size, channels))
        costs = [conv.count_costs((batch, *sides, width)) for conv, sides, width in convs]
        # For every norm: its input, its normalised input, and the output of its ReLU.
        kept = 3 * math.prod(size) * (channels + F) + 3 * math.prod(after) * F
        kernels = 0
        if self.pre_activation:  # XLA recomputes the standardised kernels of the stem
            kernels = sum(math.prod(conv.kernel.shape) for conv, *_ in convs)
        else:
            kept += 6 * math.prod(after) * F
        macs = sum(cost.macs for cost in costs)
        return Cost(macs, kept, kernels=kernels, work=kept // 2)


@keras.saving.register_keras_serializable("keras_vit")
class ResNetStage(_Residual):
    """Residual units of one width, `unit_1` and on; the first one makes the step.

    Args:
        num_units: How many units.
        filters: Channels of the 3 x 3 convolutions; the output has four times as many.
        strides: Steps of the first unit along both axes.
        pre_activation: Whether norms come before convolutions, see `ResidualUnit`.
        norm_epsilon: Added to the variance in the group norms.
        standardization: Of the kernels, see `StdConv2D`.

    Call arguments:
        maps: Float tensor of shape `(B, H, W, C)`.

    Returns:
        Float tensor of shape `(B, H / strides, W / strides, 4 filters)`.
    """

    def __init__(
        self,
        num_units: int,
        filters: int,
        strides: int = 1,
        pre_activation: bool = False,
        norm_epsilon: float = 1e-6,
        standardization: str | None = "std",
        **kwargs: Any,
    ):
        super().__init__(filters, strides, pre_activation, norm_epsilon, standardization, **kwargs)
        check_positive("num_units", num_units)
        self.num_units = num_units

    def build(self, maps_shape: Shape) -> None:
        self.units = []
        for index in range(1, self.num_units + 1):
            unit = ResidualUnit(
                self.filters,
                strides=self.strides if index == 1 else 1,
                pre_activation=self.pre_activation,
                norm_epsilon=self.norm_epsilon,
                standardization=self.standardization,
                dtype=self.dtype_policy,
                name=f"unit_{index}",
            )
            unit.build(maps_shape)
            maps_shape = unit.compute_output_shape(maps_shape)
            self.units.append(unit)

    def call(self, maps: Tensor) -> Tensor:
        for unit in self.units:
            maps = unit(maps)
        return maps

    def count_costs(self, maps_shape: Shape) -> Cost:
        """Cost for one image."""
        cost = Cost(inputs=math.prod(maps_shape[1:]))
        for unit in self.units:
            cost += unit.count_costs(maps_shape)
            maps_shape = unit.compute_output_shape(maps_shape)
        return cost


def _build_conv(
    owner: keras.Layer,
    name: str,
    channels: int,
    filters: int,
    kernel_size: int = 1,
    strides: int = 1,
    padding: str = "same",
) -> StdConv2D:
    """A built convolution inside of another layer, with its standardisation and policy."""
    form, policy = owner.standardization, owner.dtype_policy
    conv = StdConv2D(filters, kernel_size, strides, padding, form, dtype=policy, name=name)
    conv.build((None, None, None, channels))
    return conv


def _build_norm(owner: keras.Layer, name: str, channels: int, gamma: float = 1.0) -> GroupNorm:
    norm = GroupNorm(owner.norm_epsilon, gamma, dtype=owner.dtype_policy, name=name)
    norm.build((None, None, None, channels))
    return norm


def _strided(shape: Shape, stride: int, channels: int) -> Shape:
    """Shape of feature maps after a stride, rounded up; unknown sizes stay unknown."""
    batch, *size, _ = shape
    return (batch, *(None if side is None else -(-side // stride) for side in size), channels)
