"""Pixels as tokens: colours of a palette, hidden pixels, and the generative loss."""

from __future__ import annotations

import math
import os
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import Shape, check_rate
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.reading import read_array, read_json


@keras.saving.register_keras_serializable("keras_vit")
class ColorPalette(Layer):
    """Replaces every pixel by the index of the nearest colour of a palette.

    Args:
        num_colors: Number of colours.

    Call arguments:
        images: Float tensor of shape `(B, H, W, C)` with values in [-1, 1].

    Returns:
        int32 tensor of shape `(B, H W)`, row by row.
    """

    def __init__(self, num_colors: int, **kwargs: Any):
        super().__init__(**{**kwargs, "dtype": "float32"})  # also under half-precision policies
        self.num_colors = num_colors

    def build(self, images_shape: Shape) -> None:
        shape = (self.num_colors, images_shape[-1])
        self.colors = self.add_weight(shape, "zeros", trainable=False, name="colors")

    def call(self, images: Tensor) -> Tensor:
        _, height, width, channels = images.shape
        pixels = ops.reshape(images, (-1, height * width, channels))  # (B, T, C)
        products = ops.matmul(pixels, ops.transpose(self.colors))  # (B, T, K)
        near = 2 * products - ops.sum(ops.square(self.colors), axis=-1)
        _, indices = ops.top_k(near, 1)  # LiteRT does not have all operations of Keras's argmax
        return ops.cast(indices[..., 0], "int32")

    def assign(self, palette: np.ndarray | str | os.PathLike[str]) -> None:
        """Takes colours in [-1, 1], or a file of them: `.npy`, or `.json` with `clusters`."""
        source = ""
        if isinstance(palette, str | os.PathLike):
            source = f"{os.fspath(palette)} with "
            palette = _read_palette(palette)
        shape = tuple(self.colors.shape)
        try:
            given = np.asarray(palette)
        except (TypeError, ValueError, OverflowError):  # lists of different lengths
            given = np.asarray(None)
        is_number = given.dtype.kind in "fiu"
        values = given.astype("float32") if is_number else np.zeros(0, "float32")
        if values.shape != shape or not is_number or not (np.abs(values) <= 1 + 1e-6).all():
            found = f"{given.dtype} of shape {given.shape}" if is_number else "no array of numbers"
            if is_number and values.size:
                found += f", values from {values.min():g} to {values.max():g}"
            raise ValueError(
                f"A palette has {shape[0]} colours of {shape[1]} values in [-1, 1]. Received: "
                f"{source}{found}. `fit_palette` makes one; or set `colors` of the configuration."
            )
        self.colors.assign(values)

    def decode(self, indices: np.ndarray) -> np.ndarray:
        """Pixels in [0, 255], uint8 of shape `(..., C)`, of indices of colours."""
        colors = np.rint(127.5 * (ops.convert_to_numpy(self.colors) + 1))
        return np.clip(colors, 0, 255).astype("uint8")[indices]

    def count_costs(self, images_shape: Shape) -> Cost:
        """Cost for one image: distances to the colours, without a backward pass."""
        macs = math.prod(images_shape[1:]) * self.num_colors
        return Cost(macs, math.prod(images_shape[1:3]), constant_macs=macs)


def _read_palette(path: str | os.PathLike[str]) -> Any:
    """The colours in an `.npy` file, or under `clusters` in a `.json` file."""
    if not os.fspath(path).endswith(".json"):
        return read_array(path)
    content = read_json(path)
    if not isinstance(content, dict) or "clusters" not in content:
        raise ValueError(f"{os.fspath(path)} has no palette: no object with `clusters`.")
    return content["clusters"]


@keras.saving.register_keras_serializable("keras_vit")
class PixelMask(Layer):
    """Hides random pixels in training: their embeddings become zero.

    Args:
        rate: Share of the pixels, in (0, 1).
        seed: Seed of the random choice.

    Call arguments:
        tokens: Float tensor of shape `(B, T, D)`.
        training: Whether to hide pixels.

    Returns:
        Float tensor of shape `(B, T, D)`, and one of shape `(B, T)` with 1 where pixels are hidden.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        check_rate("rate", rate)
        self.rate = rate
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, tokens: Tensor, training: bool | None = False) -> tuple[Tensor, Tensor]:
        shape = ops.shape(tokens)[:2]
        if not training:
            return tokens, ops.zeros(shape, "float32")
        noise = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        masked = ops.cast(noise < self.rate, "float32")
        return tokens * ops.cast(1 - masked, tokens.dtype)[:, :, None], masked


@keras.saving.register_keras_serializable("keras_vit")
class GenerativeLoss(keras.layers.Layer):
    """Adds the cross-entropy of the pixels to the losses of the model.

    Call arguments:
        outputs: Tensor that is returned, so that the layer is part of the model.
        logits: Float tensor of shape `(B, T, K)`.
        colors: Integer tensor of shape `(B, T)`.
        masked: Optional float tensor of shape `(B, T)`, 1 for the pixels to predict: the loss is
            the mean over images of their mean. 0 where there are none.

    Returns:
        `outputs`.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)

    def call(
        self, outputs: Tensor, logits: Tensor, colors: Tensor, masked: Tensor | None = None
    ) -> Tensor:
        losses = keras.losses.sparse_categorical_crossentropy(colors, logits, from_logits=True)
        if masked is not None:
            count = ops.maximum(ops.sum(masked, axis=1), 1)
            losses = ops.sum(losses * masked, axis=1) / count  # (B,)
        # Keras sums it with the other losses, which are of this type.
        self.add_loss(ops.cast(ops.mean(losses), keras.config.floatx()))
        return outputs

    def count_costs(self, outputs_shape: Shape, logits_shape: Shape, *_: Shape) -> Cost:
        """Cost for one image: the chances of all colours."""
        return Cost(activations=math.prod(logits_shape[1:]))
