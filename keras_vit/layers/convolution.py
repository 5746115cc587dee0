"""Layers of the ResNets: standardised convolutions and group norm."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_choice, check_positive, pair
from keras_vit.config import STANDARDIZATIONS
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer, Tensor

_PADDINGS = ("same", "fixed", "valid")
_VARIANCE_EPSILONS = {"variance": 1e-10, "torch": 1e-8}
_NUM_GROUPS = 32  # of https://arxiv.org/abs/1803.08494, and of every published checkpoint


def standardize(kernel: Tensor, form: str) -> Tensor:
    """The kernel with mean 0 and variance 1 in every output channel.

    Weight standardisation, https://arxiv.org/abs/1903.10520. The two official codes guard the
    division in their own ways.

    Args:
        kernel: Float tensor of shape `(height, width, in, out)`.
        form: `"std"` adds 1e-5 to the standard deviation (the ViT paper's hybrids), `"variance"`
            adds 1e-10 to the variance (BiT), `"torch"` 1e-8 (both in timm and transformers).

    Returns:
        Tensor of the kernel's shape and type.
    """
    kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
    variance = ops.mean(ops.square(kernel), axis=(0, 1, 2), keepdims=True)
    if form in _VARIANCE_EPSILONS:
        return kernel * ops.rsqrt(variance + _VARIANCE_EPSILONS[form])
    # 1e-20 is too small to change a number, but gives a kernel of zeros a gradient.
    return kernel / (ops.sqrt(variance + 1e-20) + 1e-5)


@keras.saving.register_keras_serializable("keras_vit")
class StdConv2D(Layer):
    """A convolution without bias whose kernel is standardised each time it is used.

    https://arxiv.org/abs/1903.10520. The kernel is standardised in float32 under every dtype
    policy, once a call: once a step in training.

    Args:
        filters: Channels of the output.
        kernel_size: Height and width of the kernel; an integer means a square.
        strides: Steps along (height, width); an integer means both.
        padding: `"same"`, `"valid"`, or `"fixed"`: half the kernel on every side, whatever the
            image's size. With strides, that is not what `"same"` does.
        standardization: `"std"`, `"variance"` or `"torch"`, see `standardize`; `None` makes a plain
            convolution.

    Call arguments:
        images: Float tensor of shape `(B, H, W, C)`.

    Returns:
        Float tensor of shape `(B, H / stride, W / stride, filters)`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        strides: int | tuple[int, int] = 1,
        padding: str = "same",
        standardization: str | None = "std",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("filters", filters)
        check_choice("padding", padding, _PADDINGS)
        check_choice("standardization", standardization, (None, *STANDARDIZATIONS))
        self.filters = filters
        self.kernel_size = pair("kernel_size", kernel_size)
        self.strides = pair("strides", strides)
        self.padding = padding
        self.standardization = standardization

    def build(self, images_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, images_shape[-1], self.filters),
            initializer="lecun_normal",  # as in the official code
            autocast=False,  # it is standardised in float32
        )

    def call(self, images: Tensor) -> Tensor:
        padding = self.padding
        if padding == "fixed":
            images = pad_fixed(images, self.kernel_size)
            padding = "valid"
        kernel = ops.cast(self.effective_kernel(), images.dtype)
        return ops.conv(
            images, kernel, strides=self.strides, padding=padding, data_format="channels_last"
        )

    def effective_kernel(self) -> Tensor:
        """The kernel of the convolution: `(height, width, in, out)`, at least float32."""
        kernel = ops.convert_to_tensor(self.kernel)
        kernel = ops.cast(kernel, keras.backend.result_type(kernel.dtype, "float32"))
        return kernel if self.standardization is None else standardize(kernel, self.standardization)

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        batch, *size, _ = images_shape
        lost = {
            "same": (0, 0),
            "fixed": [k - 1 - 2 * ((k - 1) // 2) for k in self.kernel_size],
            "valid": [k - 1 for k in self.kernel_size],
        }[self.padding]
        sides = (
            None if pixels is None else -(-(pixels - less) // stride)
            for pixels, less, stride in zip(size, lost, self.strides, strict=True)
        )
        return (batch, *sides, self.filters)

    def count_costs(self, images_shape: Shape) -> Cost:
        """Cost for one image."""
        positions = math.prod(self.compute_output_shape(images_shape)[1:3])
        return Cost(positions * math.prod(self.kernel.shape), math.prod(images_shape[1:]))


def pad_fixed(images: Tensor, kernel_size: tuple[int, int]) -> Tensor:
    """Images with half a kernel of zeros on every side."""
    rows, columns = ((size - 1) // 2 for size in kernel_size)
    if rows == columns == 0:
        return images
    return ops.pad(images, ((0, 0), (rows, rows), (columns, columns), (0, 0)))


@keras.saving.register_keras_serializable("keras_vit")
class GroupNorm(keras.layers.Layer):
    """Normalises 32 groups of channels over the whole image.

    https://arxiv.org/abs/1803.08494. `keras.layers.GroupNormalization` computes the same on
    tensors of five dimensions; this one reduces each channel first and keeps to four, which on a
    CPU is 1.3 to 4.6 times as fast forward (docs/hybrids-and-resnets.md).

    Args:
        epsilon: Added to the variance.
        gamma: Start of the scale; 0 in the last norm of a residual branch.

    Call arguments:
        images: Float tensor of shape `(B, H, W, C)`.

    Returns:
        Float tensor of shape `(B, H, W, C)`.

    Raises:
        ValueError: If the channels are not a multiple of 32.
    """

    def __init__(self, epsilon: float = 1e-5, gamma: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.initial_gamma = gamma

    def build(self, images_shape: Shape) -> None:
        channels = images_shape[-1]
        if channels % _NUM_GROUPS:
            raise ValueError(
                f"Group norm needs a multiple of {_NUM_GROUPS} channels. Received: {channels}."
            )
        start = keras.initializers.Constant(self.initial_gamma)
        self.gamma = self.add_weight((channels,), start, autocast=False, name="gamma")
        self.beta = self.add_weight((channels,), "zeros", autocast=False, name="beta")

    def call(self, images: Tensor) -> Tensor:
        # Sums are over a whole image: in half precision, they and the weights are float32.
        dtype = keras.backend.result_type(images.dtype, "float32")
        x = ops.cast(images, dtype)
        x = x - self._spread(self._group_mean(x))
        variance = self._group_mean(ops.square(x))
        gamma = ops.reshape(ops.cast(self.gamma, dtype), (1, _NUM_GROUPS, -1))
        scale = gamma * ops.rsqrt(variance + self.epsilon)  # (B, groups, C / groups)
        x = x * ops.reshape(scale, (-1, 1, 1, x.shape[-1])) + ops.cast(self.beta, dtype)
        return ops.cast(x, self.compute_dtype)

    def _group_mean(self, x: Tensor) -> Tensor:
        """Mean over each group of each image: `(B, groups, 1)`."""
        channels = ops.mean(x, axis=(1, 2))  # (B, C)
        groups = ops.reshape(channels, (-1, _NUM_GROUPS, x.shape[-1] // _NUM_GROUPS))
        return ops.mean(groups, axis=-1, keepdims=True)

    def _spread(self, groups: Tensor) -> Tensor:
        """The value of its group for each channel: `(B, 1, 1, C)`."""
        channels = self.gamma.shape[0]
        each = ops.ones((1, 1, channels // _NUM_GROUPS), groups.dtype)
        return ops.reshape(groups * each, (-1, 1, 1, channels))

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        return images_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon, "gamma": self.initial_gamma}

    def count_costs(self, maps_shape: Shape) -> Cost:
        """Cost for one image: maps before and after they are normalised, and of the ReLU after."""
        return Cost(activations=3 * math.prod(maps_shape[1:]))
