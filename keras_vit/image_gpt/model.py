"""Image GPT, a transformer that predicts the pixels of an image one after the other."""

from __future__ import annotations

import dataclasses
import os

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_heads, check_positive, check_rate, pair
from keras_vit.config import UNIT_RANGE
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.causal import CausalBlock
from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.norm import RMSNorm
from keras_vit.layers.pixels import ColorPalette, GenerativeLoss, PixelMask
from keras_vit.layers.pooling import MeanPooling
from keras_vit.layers.tokens import AddPositionEmbedding, ClassToken
from keras_vit.runtime.model import Model, Normalization

_EPSILON = 1e-5  # as in the official code
_DENSE = ("query", "key", "value", "projection", "mlp")  # none has a bias


@dataclasses.dataclass(frozen=True)
class ImageGPTConfig:
    """An Image GPT (Chen et al., 2020, https://github.com/openai/image-gpt).

    Args:
        width: Dimension `D` of a token.
        depth: Number of transformer blocks.
        num_heads: Attention heads, which divide `width`. The MLP's hidden dimension is `4 D`.
        image_size: Pixels along (height, width), each of which is a token; an integer means a
            square.
        channels: Channels of an image.
        colors: Colours of the palette.
        mask_rate: `None` predicts each pixel from those before it. Otherwise the model is the
            paper's BERT variant: training hides this share of the pixels and predicts them from
            all others; in (0, 1), 0.15 in the paper.
        rematerialize: As in `ViTConfig`, and so is the next.
        query_chunk_size: Queries whose attention weights are computed at a time.

    Raises:
        ValueError: If a value is out of its range or two do not fit together.
    """

    width: int
    depth: int
    num_heads: int
    image_size: tuple[int, int] = (32, 32)
    channels: int = 3
    colors: int = 512
    mask_rate: float | None = None
    rematerialize: bool = False
    query_chunk_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for field in ("width", "depth", "num_heads", "channels", "colors"):
            check_positive(field, getattr(self, field))
        check_heads(self.width, self.num_heads)
        if self.mask_rate is not None:
            check_rate("mask_rate", self.mask_rate)

    @property
    def num_tokens(self) -> int:
        """Pixels of an image."""
        height, width = self.image_size
        return height * width

    def build_model(self) -> Model:
        """Builds the model with a black palette, such as to count its costs."""
        return build_image_gpt(self, np.zeros((self.colors, self.channels)))


IMAGE_GPT_SIZES = {
    "S": ImageGPTConfig(width=512, depth=24, num_heads=8),
    "M": ImageGPTConfig(width=1024, depth=36, num_heads=8),
    "L": ImageGPTConfig(width=1536, depth=48, num_heads=16),
}
"""Configurations of the published checkpoints, by size: S, M and L."""


def build_image_gpt(
    config: ImageGPTConfig, palette: np.ndarray | str | os.PathLike[str], name: str | None = None
) -> Model:
    """Builds an Image GPT. `fit(images)` trains it with its generative loss.

    Layers have stable names: `preprocessing`, `palette`, `token_embedding`, `start_token` (or
    `pixel_mask` with a `mask_rate`), `position_embedding`, `block_0` and on, `encoder_norm`,
    `pixel_logits`, `generative_loss`. The loss is the cross-entropy of the pixels in nats, and
    `compile` needs an optimizer alone. With a `mask_rate` pixels are hidden in training alone, and
    the loss of an evaluation is 0: take `pixel_losses`.

    Args:
        config: The architecture, such as `IMAGE_GPT_SIZES["S"]`.
        palette: Colours in [-1, 1], float array of shape `(config.colors, channels)` as of
            `fit_palette`, or the path of a file of it: the official `kmeans_centers.npy`, or
            transformers' `preprocessor_config.json`.
        name: Name of the model.

    Returns:
        A functional `keras_vit.Model` from images of shape `(B, H, W, C)` with values in [0, 255]
        to float32 logits of the colours, of shape `(B, T, colors)`, `T` the number of pixels.

    Raises:
        ValueError: If the palette has another shape, or values outside of [-1, 1].

    Example:

    >>> palette = keras_vit.image_gpt.fit_palette(images, colors=16)
    >>> config = keras_vit.image_gpt.ImageGPTConfig(64, 4, 4, image_size=8, colors=16)
    >>> model = keras_vit.image_gpt.build_image_gpt(config, palette)
    >>> model.compile("adam")
    """
    images = keras.Input((*config.image_size, config.channels), name="images")
    preprocessing = Normalization(
        UNIT_RANGE, config.channels, dtype=Float32Policy(), name="preprocessing"
    )
    x = preprocessing(images)
    quantizer = ColorPalette(config.colors, name="palette")
    colors = quantizer(x)  # (B, T)
    quantizer.assign(palette)
    x = keras.layers.Embedding(
        config.colors,
        config.width,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
        name="token_embedding",
    )(colors)  # (B, T, D)
    masks = {}
    if config.mask_rate is None:
        x = ClassToken(stddev=0.02, name="start_token")(x[:, :-1])  # no pixel sees itself
    else:
        x, masks["masked"] = PixelMask(config.mask_rate, name="pixel_mask")(x)
    x = AddPositionEmbedding(config.image_size, 0, name="position_embedding")(x)
    kind = CausalBlock if config.mask_rate is None else TransformerBlock
    for index in range(config.depth):
        block = kind(
            config.num_heads,
            4 * config.width,
            gelu="quick",
            norm="rms",
            norm_epsilon=_EPSILON,
            without_bias=_DENSE,
            rematerialize=config.rematerialize,
            query_chunk_size=config.query_chunk_size,
            name=f"block_{index}",
        )
        x = block(x)
    x = RMSNorm(_EPSILON, name="encoder_norm")(x)
    logits = _logits(config.colors, "pixel_logits")(x)
    outputs = GenerativeLoss(name="generative_loss")(logits, logits, colors, **masks)
    return Model(images, outputs, name=name)


def _logits(count: int, name: str) -> keras.layers.Dense:
    """A dense layer that starts at zero, as in the official code."""
    options = {"use_bias": False, "kernel_initializer": "zeros", "dtype": Float32Policy()}
    return keras.layers.Dense(count, name=name, **options)


def pixel_classifier(model: Model, classes: int) -> Model:
    """Builds a classifier of images on an Image GPT, to fine-tune with the joint objective.

    The head reads the mean of all tokens after the last norm. `fit(images, labels)` minimises
    the classification loss that it was compiled with plus the generative loss, as the official
    code does. The layers are shared with `model`.

    Args:
        model: A model of `build_image_gpt`.
        classes: Number of classes.

    Returns:
        A functional `keras_vit.Model` from images to float32 logits of shape `(B, classes)`.
    """
    check_positive("classes", classes)
    layers = map(model.get_layer, ("encoder_norm", "pixel_logits", "palette"))
    tokens, logits, colors = (layer.output for layer in layers)
    masks = {}
    if "pixel_mask" in [layer.name for layer in model.layers]:
        masks["masked"] = model.get_layer("pixel_mask").output[1]
    x = GenerativeLoss(name="generative_loss")(tokens, logits, colors, **masks)
    x = MeanPooling(name="pooling")(x)  # (B, D)
    outputs = _logits(classes, "head")(x)
    return Model(model.inputs[0], outputs, name=f"{model.name}_classifier")


def pixel_losses(model: Model, images: np.ndarray, batch_size: int = 8) -> np.ndarray:
    """Computes the generative loss of every image.

    Args:
        model: A model of `build_image_gpt`. With a `mask_rate`, random pixels are hidden.
        images: Pixels in [0, 255], array of shape `(N, H, W, C)`.
        batch_size: Images per step.

    Returns:
        float64 array of shape `(N,)`, nats per predicted pixel.
    """
    outputs = [model.get_layer("palette").output, model.get_layer("pixel_logits").output]
    outputs += [layer.output[1] for layer in model.layers if layer.name == "pixel_mask"]
    network = keras.Model(model.inputs[0], outputs)
    found = []
    for start in range(0, len(images), batch_size):
        batch = network(images[start : start + batch_size], training=True)  # no dropout, but masks
        colors, logits, *masked = (ops.convert_to_numpy(x) for x in batch)
        logits = logits.astype("float64")
        logits -= logits.max(axis=-1, keepdims=True)
        right = np.take_along_axis(logits, colors[..., None], axis=-1)[..., 0]
        losses = np.log(np.exp(logits).sum(axis=-1)) - right  # (B, T)
        found.append(np.average(losses, axis=1, weights=masked[0] if masked else None))
    return np.concatenate(found)
