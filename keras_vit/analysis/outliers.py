"""Outlier patches: tokens that distort maps of attention and relevance."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.attention import on_grid
from keras_vit.analysis.image_batches import ImageBatches, image_batches
from keras_vit.models.attention import Attention

# https://arxiv.org/abs/2309.16588 finds ten times the usual norm in DINOv2's large models.
_MOST_NORM = 4  # times the median
# In a ViT-S/14, one patch of each of 8 photographs receives 50 to 100 %, the others up to 35 %.
_MOST_ATTENTION = 0.4  # of a head, mean over all tokens


def outlier_patches(model: keras.Model, images: ImageBatches, batch_size: int = 16) -> np.ndarray:
    """Finds patches whose tokens serve the network as storage, not the image.

    A patch is an outlier if, after some block, its token is more than 4 times as long as the median
    of the image's patches (https://arxiv.org/abs/2309.16588), or if it receives more than 40 % of
    the attention of all tokens in one head (https://arxiv.org/abs/2309.17453). Such patches are
    bright in maps of attention and relevance wherever they are; `plot_attention` and `plot_maps`
    frame them.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        Boolean array of shape `(B, rows, columns)`.

    Raises:
        ValueError: If the model has no transformer blocks, or there are no images.
    """
    attention = Attention(model)
    found = []
    for batch in image_batches(images, batch_size):
        tokens = attention.tokens(batch)
        outliers: Any = False
        for index in range(len(attention.blocks)):
            lengths = ops.norm(ops.cast(tokens[index + 1], "float32"), axis=-1)  # (b, T)
            norms = on_grid(lengths, attention.geometry)  # (b, rows, columns)
            outliers |= norms > _MOST_NORM * np.median(norms, axis=(1, 2), keepdims=True)
            received = ops.mean(attention.scores(tokens, index), axis=2)  # (b, A, T)
            most = on_grid(ops.max(received, axis=1), attention.geometry)
            outliers |= most > _MOST_ATTENTION
        found.append(outliers)
    return np.concatenate(found)
