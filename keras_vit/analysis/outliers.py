"""Outlier patches: tokens that distort maps of attention and relevance."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.image_batches import ImageBatches, image_batches
from keras_vit.models.attention import Attention

# https://arxiv.org/abs/2309.16588 finds ten times the usual norm in DINOv2's large models.
_MOST_NORM = 4  # times the median
# In a ViT-S/14, a patch of most photographs receives 50 to 100 % in block 0, and others up to 35 %.
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
    prefix = attention.geometry.num_prefix_tokens
    found = []
    for batch in image_batches(images, batch_size):
        tokens = attention.tokens(batch)
        outliers: Any = False
        for index in range(len(attention.blocks)):
            lengths = _patches(ops.norm(ops.cast(tokens[index + 1], "float32"), axis=-1), prefix)
            outliers |= lengths > _MOST_NORM * np.median(lengths, axis=1, keepdims=True)
            received = ops.mean(attention.scores(tokens, index), axis=2)  # (b, A, T)
            outliers |= _patches(ops.max(received, axis=1), prefix) > _MOST_ATTENTION
        found.append(outliers.reshape(-1, *attention.geometry.grid))
    return np.concatenate(found)


def _patches(values: keras.KerasTensor, prefix: int) -> np.ndarray:
    """Values of the patches alone, of shape `(B, N)`."""
    return ops.convert_to_numpy(values)[:, prefix:]
