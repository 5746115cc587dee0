"""Outlier patches: tokens that distort maps of attention and relevance."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.image_batches import ImageBatches, image_batches
from keras_vit.models.attention import Attention

# https://arxiv.org/abs/2309.16588 finds ten times the usual norm in DINOv2's large models.
_MOST_NORM = 4  # times the median
_MOST_ATTENTION = 0.25  # of a head, from three quarters of the tokens


def outlier_patches(model: keras.Model, images: ImageBatches, batch_size: int = 16) -> np.ndarray:
    """Finds patches whose tokens serve the network as storage, not the image.

    A patch is an outlier if, after some block, its token is more than 4 times as long as the median
    of the image's patches (https://arxiv.org/abs/2309.16588), or if three quarters of all tokens
    pay it more than a quarter of their attention in one head, whatever they show themselves
    (https://arxiv.org/abs/2309.17453). Such patches are bright in maps of attention and relevance
    wherever they are; `plot_attention` and `plot_maps` frame them.

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
        outliers: np.ndarray = np.False_
        for index in range(len(attention.blocks)):
            lengths = _patches(ops.norm(ops.cast(tokens[index + 1], "float32"), axis=-1), prefix)
            outliers |= lengths > _MOST_NORM * np.median(lengths, axis=1, keepdims=True)
            strong = ops.cast(attention.scores(tokens, index) > _MOST_ATTENTION, "float32")
            share = ops.max(ops.mean(strong, axis=2), axis=1)  # (b, T), of the tokens
            outliers |= _patches(share, prefix) > 0.75
        found.append(outliers.reshape(-1, *attention.geometry.grid))
    return np.concatenate(found)


def _patches(values: keras.KerasTensor, prefix: int) -> np.ndarray:
    """Values of the patches alone, of shape `(B, N)`."""
    return ops.convert_to_numpy(values)[:, prefix:]
