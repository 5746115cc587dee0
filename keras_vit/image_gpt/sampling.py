"""Palettes for Image GPT, and images that it draws pixel by pixel."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_positive
from keras_vit.layers.causal import CausalBlock
from keras_vit.layers.layer import Tensor
from keras_vit.runtime.model import Model

_FIRST = "start_token"
_UNKNOWN = -1  # colour of a pixel to draw
_ROUNDS = 50  # of k-means at most


def fit_palette(
    images: np.ndarray, colors: int = 512, *, seed: int = 0, max_pixels: int = 50_000
) -> np.ndarray:
    """Chooses a palette for images, by k-means of their pixels.

    Args:
        images: Pixels in [0, 255], array of shape `(N, H, W, C)`.
        colors: Number of colours, at most as many as the images have.
        seed: Seed of the start and of the choice of pixels.
        max_pixels: Pixels that are looked at, random ones of all images.

    Returns:
        float32 array of shape `(colors, C)` with values in [-1, 1].

    Raises:
        ValueError: If the images have fewer colours.
    """
    random = np.random.default_rng(seed)
    pixels = np.reshape(images, (-1, np.shape(images)[-1]))
    if len(pixels) > max_pixels:
        pixels = pixels[random.choice(len(pixels), max_pixels, replace=False)]
    points, counts = np.unique(pixels, axis=0, return_counts=True)
    if len(points) < colors:
        raise ValueError(
            f"The images have {len(points)} colours among {len(pixels)} pixels. Received: colors="
            f"{colors}. Choose fewer."
        )
    x = (points / 127.5 - 1.0).astype("float32")
    centers, nearest = x[:0], np.ones(len(x))  # squared distance to the nearest centre
    while len(centers) < colors:  # k-means++
        shares = nearest * counts
        centers = np.append(centers, x[[random.choice(len(x), p=shares / shares.sum())]], axis=0)
        distances = ((x - centers[-1]) ** 2).sum(axis=1)
        nearest = distances if len(centers) == 1 else np.minimum(nearest, distances)
    for _ in range(_ROUNDS):  # Lloyd's algorithm
        found = ((centers**2).sum(axis=1) - 2 * x @ centers.T).argmin(axis=1)
        weights = np.bincount(found, counts, minlength=colors)
        sums = [np.bincount(found, counts * each, minlength=colors) for each in x.T]
        means = np.stack(sums, axis=1) / np.maximum(weights, 1)[:, None]
        moved = np.where(weights[:, None] > 0, means, centers)
        if np.allclose(moved, centers, rtol=0, atol=1e-6):
            break
        centers = moved.astype("float32")
    return centers.astype("float32")


def sample_pixels(
    model: Model,
    images: np.ndarray | None = None,
    *,
    count: int = 16,
    rows: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> np.ndarray:
    """Draws images pixel by pixel, or completes images below their first rows.

    The keys and values of earlier pixels are kept, so that a pixel costs one token.

    Args:
        model: A model of `build_image_gpt` without a `mask_rate`.
        images: Images to complete, pixels in [0, 255] of shape `(B, H, W, C)`, or `None`.
        count: Number of images, without `images`.
        rows: Rows of `images` that stay; `None` takes the upper half.
        temperature: Logits are divided by it; 0 takes the most likely colour.
        seed: Seed of the random choice.

    Returns:
        uint8 array of shape `(B, H, W, C)`, in colours of the palette.

    Raises:
        ValueError: If the model does not predict pixels one after the other, or `rows` or
            `temperature` is out of its range.

    Example:

    >>> drawn = keras_vit.image_gpt.sample_pixels(model, images, rows=4)  # doctest: +SKIP
    >>> sheet = keras_vit.image_gpt.image_sheet(drawn)  # doctest: +SKIP
    >>> keras.utils.save_img("sheet.png", sheet, scale=False)  # doctest: +SKIP
    """
    if _FIRST not in [layer.name for layer in model.layers]:
        raise ValueError(
            "Pixels are drawn one after the other by an Image GPT without `mask_rate`. Received: "
            f"{model!r}."
        )
    height, width, _ = model.inputs[0].shape[1:]
    rows = height // 2 if rows is None else rows
    if temperature < 0 or not 0 <= rows <= height:
        raise ValueError(
            f"`temperature` must be 0 or more, and `rows` 0 to {height}. Received: temperature="
            f"{temperature}, rows={rows}."
        )
    quantizer = model.get_layer("palette")
    if images is None:
        check_positive("count", count)
        colors = np.full((count, height * width), _UNKNOWN, "int32")
    else:
        colors = np.array(quantizer(model.get_layer("preprocessing")(images)))
        colors[:, rows * width :] = _UNKNOWN
    # Numbers of NumPy: the same images on every backend.
    chances = np.random.default_rng(seed).random(colors.shape, np.float32)
    inputs = [keras.Input(colors.shape[1:], dtype=each) for each in ("int32", "float32")]
    network = keras.Model(inputs, _Sampling(model, temperature)(*inputs))
    network.compile(jit_compile=False)  # XLA compiles longer than a few images take
    drawn = np.asarray(network.predict_on_batch([colors, chances]))
    return quantizer.decode(drawn).reshape(-1, height, width, quantizer.colors.shape[1])


class _Sampling(keras.layers.Layer):
    """One pixel after the other, as a loop of the backend.

    Call arguments:
        colors: int32 tensor of shape `(B, T)`, `_UNKNOWN` for the pixels to draw.
        chances: Float tensor of shape `(B, T)` with random values in [0, 1).
    """

    def __init__(self, model: Model, temperature: float):
        super().__init__(autocast=False)
        self.network = model
        self.temperature = temperature

    def call(self, colors: Tensor, chances: Tensor) -> Tensor:
        find = self.network.get_layer
        blocks = [layer for layer in self.network.layers if isinstance(layer, CausalBlock)]
        embed, positions = find("token_embedding"), find("position_embedding").table()
        batch, num_tokens = ops.shape(colors)[0], colors.shape[1]
        first = find(_FIRST).token
        first = ops.broadcast_to(first, (batch, 1, first.shape[-1]))
        heads = blocks[0].options.num_heads
        empty = ops.zeros((batch, heads, num_tokens, first.shape[-1] // heads), embed.compute_dtype)

        def draw(index: Any, drawn: Any, token: Any, caches: Any) -> Any:
            x = ops.cast(token, positions.dtype) + ops.take(positions, [index], axis=1)  # (B, 1, D)
            kept = []
            for block, cache in zip(blocks, caches, strict=True):
                x, cache = block.step(x, cache, index)
                kept.append(cache)
            logits = find("pixel_logits")(find("encoder_norm")(x))[:, 0]  # (B, K)
            known = ops.take(colors, index, axis=1)
            color = self._choose(logits, ops.take(chances, [index], axis=1))
            color = ops.where(known >= 0, known, color)
            drawn = ops.where(ops.arange(num_tokens) == index, color[:, None], drawn)
            token = ops.cast(embed(color[:, None]), token.dtype)  # (B, 1, D)
            return index + 1, drawn, token, kept

        start = (0, colors, first, [(empty, empty)] * len(blocks))
        return ops.while_loop(lambda index, *_: index < num_tokens, draw, start)[1]

    def _choose(self, logits: Tensor, chance: Tensor) -> Tensor:
        """Colours `(B,)` of logits `(B, K)`: where the cumulative probability passes `chance`."""
        if self.temperature == 0:
            return ops.cast(ops.argmax(logits, axis=-1), "int32")
        shares = ops.cumsum(ops.softmax(logits / self.temperature), axis=-1)
        passed = ops.sum(ops.cast(shares <= chance * shares[:, -1:], "int32"), axis=-1)
        return ops.minimum(passed, logits.shape[-1] - 1)

    def compute_output_spec(self, colors: Tensor, chances: Tensor) -> Tensor:
        return keras.KerasTensor(colors.shape, dtype="int32")


def image_sheet(images: np.ndarray, columns: int = 8, scale: int = 4) -> np.ndarray:
    """Puts images side by side on a white sheet.

    Args:
        images: uint8 array of shape `(B, H, W, C)`.
        columns: Images in a row.
        scale: Pixels of the sheet along each side of a pixel.

    Returns:
        uint8 array of shape `(height, width, C)`.
    """
    images = np.repeat(np.repeat(images, scale, axis=1), scale, axis=2)
    images = np.pad(images, ((0, -len(images) % columns), (0, scale), (0, scale), (0, 0)),
                    constant_values=255)  # fmt: skip
    count, height, width, channels = images.shape
    grid = images.reshape(count // columns, columns, height, width, channels)
    return grid.transpose(0, 2, 1, 3, 4).reshape(-1, columns * width, channels)
