"""Masked autoencoder: patches that are hidden, and their pixels (https://arxiv.org/abs/2111.06377)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.checks import check_positive, pair
from keras_vit.layers.layer import Layer, Tensor
from keras_vit.layers.patches import MASKED, take_tokens

EPSILON = 1e-6  # added to the variance of a patch, as in the official code


@keras.saving.register_keras_serializable("keras_vit")
class HidePatches(Layer):
    """Keeps some patch tokens of every image and leaves out the others, in training and inference.

    Args:
        num_kept: Number `K` of patches that stay.
        num_prefix_tokens: Tokens before the patches, which always stay.
        seed: Seed of noise that is drawn here.

    Call arguments:
        tokens: Float tensor of shape `(B, num_prefix_tokens + N, D)`.
        noise: Optional float tensor of shape `(B, N)`: the patches of the smallest values stay,
            from the smallest on. `None` draws it.

    Returns:
        Tokens of shape `(B, num_prefix_tokens + K, D)`; and int32 of shape `(B, N)`, what
        `PatchMask` takes to put them back: the place of every patch among those that stay, or -1.

    Raises:
        ValueError: If `num_kept` is not positive.
    """

    def __init__(
        self, num_kept: int, num_prefix_tokens: int = 1, seed: int | None = None, **kwargs: Any
    ):
        super().__init__(autocast=False, **kwargs)
        check_positive("num_kept", num_kept)
        self.num_kept = num_kept
        self.num_prefix_tokens = num_prefix_tokens
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, tokens: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        if noise is None:
            shape = (ops.shape(tokens)[0], patches.shape[1])
            noise = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        order = ops.argsort(noise, axis=1)
        rank = ops.argsort(order, axis=1)  # of each patch
        patches = take_tokens(patches, order[:, : self.num_kept])
        places = ops.cast(ops.where(rank < self.num_kept, rank, MASKED), "int32")
        return ops.concatenate([prefix, patches], axis=1), places

    def compute_output_spec(
        self, tokens: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        batch, count, width = tokens.shape
        kept = (batch, self.num_prefix_tokens + self.num_kept, width)
        places = (batch, count - self.num_prefix_tokens)
        return keras.KerasTensor(kept, tokens.dtype), keras.KerasTensor(places, "int32")


@keras.saving.register_keras_serializable("keras_vit")
class PatchPixels(Layer):
    """Cuts images into patches: what a masked autoencoder predicts.

    Args:
        patch_size: Pixels along (height, width) of a patch; an integer means a square.
        is_normalized: Whether each patch has mean 0 and variance 1, which the paper found better.

    Call arguments:
        images: Float tensor of shape `(B, H, W, C)`.

    Returns:
        Float tensor of shape `(B, N, pixels * C)`: values by row, column and channel.
    """

    def __init__(self, patch_size: int | tuple[int, int], is_normalized: bool, **kwargs: Any):
        super().__init__(**kwargs)
        self.patch_size = pair("patch_size", patch_size)
        self.is_normalized = is_normalized

    def call(self, images: Tensor) -> Tensor:
        height, width = self.patch_size
        rows, columns = images.shape[1] // height, images.shape[2] // width
        x = ops.reshape(images, (-1, rows, height, columns, width * images.shape[3]))
        x = ops.transpose(x, (0, 1, 3, 2, 4))
        x = ops.reshape(x, (-1, rows * columns, height * width * images.shape[3]))
        if not self.is_normalized:
            return x
        x = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.sum(ops.square(x), axis=-1, keepdims=True) / (x.shape[-1] - 1)  # unbiased
        return x / ops.sqrt(variance + EPSILON)
