"""Vision Transformers of images of any aspect ratio, as the NaFlex models of SigLIP 2."""

from __future__ import annotations

import math

import keras

from keras_vit.config import ViTConfig
from keras_vit.layers.any_aspect import PaddingMask
from keras_vit.layers.tokens import AddPositionEmbedding
from keras_vit.models.heads import functional_model, preprocess
from keras_vit.models.vit import encode_patches, read_tokens, regularize, transformer_block
from keras_vit.runtime.model import Model


def build_naflex(config: ViTConfig, name: str | None = None) -> Model:
    """Builds a model of images of any aspect ratio (https://arxiv.org/abs/2502.14786).

    The model takes what `keras_vit.data.fit_patches` makes of an image, a dict of two inputs:
    `patches` of shape `(B, max_num_patches, pixels of a patch * C)`, row by row and then padding,
    and `grid`, integers of shape `(B, 2)`, rows and columns. Layers have the names of `build_vit`.

    Args:
        config: The architecture, with `max_num_patches`.
        name: Name of the model.

    Returns:
        A functional `keras_vit.Model`, with the outputs of `build_vit`.
    """
    pixels = math.prod(config.patch_size) * config.channels
    patches = keras.Input((config.num_patches, pixels), name="patches")
    grid = keras.Input((2,), dtype="int32", name="grid")
    x = encode_patches(preprocess(patches, config), config)  # (B, N, D)
    x = AddPositionEmbedding(config.grid, 0, name="position_embedding")(x, image_grids=grid)
    x = regularize(x, config)
    mask = PaddingMask(config.num_patches, name="padding_mask")(grid)  # (B, N)
    known = keras.ops.reshape(mask, (-1, 1, 1, config.num_patches))
    for index in range(config.depth):
        x = transformer_block(config, index)(x, attention_mask=known)
    outputs = read_tokens(x, config, mask)
    return functional_model({"patches": patches, "grid": grid}, outputs, config, name)
