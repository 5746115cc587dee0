"""Patches of images: projected to tokens, left out or replaced in training."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_vit.checks import Shape, check_positive, check_rate, check_whole_patches, pair
from keras_vit.config import kept_of
from keras_vit.layers.any_size import pad_to_patches, size_of
from keras_vit.layers.costs import Cost
from keras_vit.layers.layer import Layer, Tensor

MASKED = -1  # in the sources of `PatchMask`: the mask token


@keras.saving.register_keras_serializable("keras_vit")
class PatchEncoder(Layer):
    """Cuts images into patches and projects each to a token.

    The `x_p E` of Eq. 1 in https://arxiv.org/abs/2010.11929, a convolution whose stride is its
    kernel. Patches come in row-major order. On the feature maps of a ResNet stem it makes the
    paper's hybrid.

    Args:
        patch_size: Pixels along (height, width) of a patch; an integer means a square.
        width: Dimension `D` of a token.
        use_bias: Whether the projection has a bias.
        any_size: Whether images may have any size. Zeros, the mean colour of normalised images, are
            added at the bottom and at the right to whole patches, and patches stay on their grid.

    Call arguments:
        images: Float tensor of shape `(B, H, W, C)`, or their patches, `(B, N, pixels of a patch *
            C)`, row by row.

    Returns:
        Float tensor of shape `(B, N, D)`, `N` the number of patches; with `any_size`
        `(B, rows, columns, D)`.

    Raises:
        ValueError: If an argument is not positive, or the image's size is unknown or not a whole
            number of patches, without `any_size`.
    """

    def __init__(
        self,
        patch_size: int | tuple[int, int],
        width: int,
        use_bias: bool = True,
        any_size: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("width", width)
        self.patch_size = pair("patch_size", patch_size)
        self.width = width
        self.use_bias = use_bias
        self.any_size = any_size
        self.grid: tuple[int, int] | None = None  # `any_size`: that of each image

    def build(self, images_shape: Shape) -> None:
        pixels = math.prod(self.patch_size)
        if len(images_shape) == 3 and images_shape[1] and images_shape[2] % pixels == 0:
            self.grid = (images_shape[1], 1)
            images_shape = (None, *self.patch_size, images_shape[2] // pixels)  # one patch
        needed = images_shape[3:] if self.any_size else images_shape[1:]
        if len(images_shape) != 4 or None in needed:
            raise ValueError(
                "PatchEncoder needs images of shape (batch, height, width, channels), all but the "
                f"batch known. Received: shape {tuple(images_shape)}. Pass any_size=True for "
                "images of any height and width."
            )
        if not self.any_size and self.grid is None:
            check_whole_patches(tuple(images_shape[1:3]), self.patch_size)
            self.grid = (
                images_shape[1] // self.patch_size[0],
                images_shape[2] // self.patch_size[1],
            )
        self.projection = keras.layers.Conv2D(
            self.width,
            self.patch_size,
            strides=self.patch_size,
            data_format="channels_last",
            use_bias=self.use_bias,
            kernel_initializer="lecun_normal",
            dtype=self.dtype_policy,
            name="projection",
        )
        self.projection.build(images_shape)

    def call(self, images: Tensor) -> Tensor:
        if self.any_size:
            images = pad_to_patches(images, self.patch_size)
            if self.compute_dtype == "float32":
                return self.projection(images)
            return self._project(self._split(images))  # there may be one column
        if len(images.shape) == 4 and self.grid is not None and self.grid[1] == 1:
            pixels = math.prod(self.patch_size) * images.shape[3]
            images = ops.reshape(images, (-1, self.grid[0], pixels))  # (B, N, pixels of a patch)
        if len(images.shape) == 3:
            return self._project(images)
        patches = self.projection(images)  # (B, rows, columns, D)
        return ops.reshape(patches, (-1, math.prod(self.grid or ()), self.width))  # (B, N, D)

    def _split(self, images: Tensor) -> Tensor:
        """Pixels of every patch, `(B, rows, columns, pixels of a patch * C)`."""
        (height, width), channels = self.patch_size, images.shape[3]
        rows, columns = (size_of(images, i + 1) // self.patch_size[i] for i in range(2))
        x = ops.reshape(images, (-1, rows, height, columns, width * channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4))
        return ops.reshape(x, (-1, rows, columns, height * width * channels))

    def _project(self, patches: Tensor) -> Tensor:
        """Patches `(..., pixels of a patch * C)` as tokens `(..., D)`.

        No convolution: in bfloat16 TensorFlow's is wrong on processors for one column of patches.
        """
        size = patches.shape[-1]
        grid = [size_of(patches, i) for i in range(1, len(patches.shape) - 1)]
        kernel = ops.reshape(self.projection.kernel, (size, self.width))
        x = ops.matmul(ops.reshape(patches, (-1, size)), kernel)
        x = x + self.projection.bias if self.use_bias else x
        return ops.reshape(x, (-1, *grid, self.width))

    def compute_output_spec(self, images: Tensor) -> Tensor:
        size = [
            None if side is None else -(-side // patch)
            for side, patch in zip(images.shape[1:3], self.patch_size, strict=True)
        ]
        shape = tuple(size) if self.any_size else (math.prod(self.grid or ()),)
        return keras.KerasTensor((images.shape[0], *shape, self.width), dtype=self.compute_dtype)

    def count_costs(self, images_shape: Shape) -> Cost:
        """Cost for one image."""
        size = math.prod(images_shape[1:])
        return Cost(size * self.width, size)


@keras.saving.register_keras_serializable("keras_vit")
class PatchDropout(Layer):
    """Leaves a random share of the patch tokens out of every training image.

    After https://arxiv.org/abs/2208.07220: training is cheaper by about the share, and inference
    sees every patch. The number that stays is fixed, so shapes are static under XLA.

    Args:
        rate: Share of the patch tokens that is left out, in [0, 1).
        num_prefix_tokens: Tokens before the patches, which always stay.
        seed: Seed of the random choice.

    Call arguments:
        tokens: Float tensor of shape `(B, num_prefix_tokens + N, D)`.
        training: Whether to leave tokens out.

    Returns:
        Float tensor of shape `(B, num_prefix_tokens + K, D)`, `K` at least 1 and about
        `(1 - rate) N` in training, `N` otherwise.

    Raises:
        ValueError: If `rate` is not in [0, 1).
    """

    def __init__(
        self, rate: float, num_prefix_tokens: int = 1, seed: int | None = None, **kwargs: Any
    ):
        super().__init__(autocast=False, **kwargs)
        check_rate("rate", rate)
        self.rate = rate
        self.num_prefix_tokens = num_prefix_tokens
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, tokens: Tensor, training: bool | None = False) -> Tensor:
        num_patches = tokens.shape[1] - self.num_prefix_tokens
        kept = kept_of(num_patches, self.rate)
        if not training or kept == num_patches:
            return tokens
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        noise = keras.random.uniform(
            (ops.shape(tokens)[0], num_patches), dtype="float32", seed=self.seed_generator
        )
        _, places = ops.top_k(noise, kept, sorted=False)  # (B, K)
        return ops.concatenate([prefix, take_tokens(patches, places)], axis=1)

    def compute_output_spec(self, tokens: Tensor, training: bool | None = False) -> Tensor:
        return keras.KerasTensor(tokens.shape, tokens.dtype)  # that of inference


@keras.saving.register_keras_serializable("keras_vit")
class PatchMask(Layer):
    """Replaces patch tokens by a learned mask token, or by other patches of their image.

    Masked patch prediction, Appendix B.1.2 of https://arxiv.org/abs/2010.11929. The layer
    stands between `PatchEncoder` and the class token. The data says which patches are replaced, so
    that batches are repeatable and losses know them: see `keras_vit.data.mask_patches`.

    Args:
        stddev: Standard deviation of the mask token's normal start, as BERT's.

    Call arguments:
        tokens: Float tensor of shape `(B, K, D)`, of all patches or of some.
        sources: Integer tensor of shape `(B, N)`: for each position the index of the patch
            whose token is used, in [0, K), or -1 for the mask token.

    Returns:
        Float tensor of shape `(B, N, D)`.
    """

    def __init__(self, stddev: float = 0.02, **kwargs: Any):
        super().__init__(**kwargs)
        self.stddev = stddev

    def build(self, tokens_shape: Shape, sources_shape: Shape | None = None) -> None:
        normal = keras.initializers.RandomNormal(stddev=self.stddev)
        self.token = self.add_weight((1, 1, tokens_shape[-1]), normal, name="token")

    def call(self, tokens: Tensor, sources: Tensor) -> Tensor:
        taken = take_tokens(tokens, ops.maximum(sources, 0))  # (B, N, D)
        is_masked = ops.equal(sources, MASKED)[:, :, None]
        return ops.where(is_masked, ops.cast(self.token, tokens.dtype), taken)

    def compute_output_shape(self, tokens_shape: Shape, sources_shape: Shape) -> Shape:
        return (*sources_shape, tokens_shape[-1])


def take_tokens(tokens: Tensor, places: Tensor) -> Tensor:
    """Takes tokens `(B, K, D)` of `(B, N, D)` at places `(B, K)`, whole rows at once."""
    batch, count, width = ops.shape(tokens)[0], tokens.shape[1], tokens.shape[2]
    first = ops.arange(batch, dtype=places.dtype)[:, None] * count
    return ops.take(ops.reshape(tokens, (-1, width)), places + first, axis=0)
