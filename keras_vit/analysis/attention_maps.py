"""Where a model looks: attention on the grid, rollout, mean attention distance."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.image_batches import image_batches
from keras_vit.models.feature_extraction import Attention, Geometry, check_block


def attention_maps(
    model: keras.Model, images: Any, block: int = -1, batch_size: int = 16
) -> np.ndarray:
    """How much each head of a block looks at each patch.

    Seen from the class token; in a model that averages the patches, from all of them.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        block: Index of the block; negative counts from the last.
        batch_size: Images at a time, where `images` is an array.

    Returns:
        float32 array of shape `(B, A, rows, columns)`. The tokens before the patches are left
        out and the rest is not scaled up, so a map sums to at most 1.

    Raises:
        IndexError: If there is no such block.
        ValueError: If the model has no transformer blocks, or there are no images.
    """
    attention = Attention(model)
    check_block(attention, block)
    maps = []
    for batch in image_batches(images, batch_size):
        tokens = attention.tokens(batch)
        scores = attention.scores(tokens, block)  # (b, A, T, T)
        share = attention.viewpoint(tokens)[:, None, None]  # (b, 1, 1, T)
        maps.append(_on_grid(ops.matmul(share, scores)[:, :, 0], attention.geometry))
    return np.concatenate(maps)


def attention_rollout(model: keras.Model, images: Any, batch_size: int = 16) -> np.ndarray:
    """From which patches what the head reads comes, through all blocks.

    Attention rollout (https://arxiv.org/abs/2005.00928), as in Figures 6 and 14 of
    https://arxiv.org/abs/2010.11929: with `A_l` the mean over heads of the attention of block `l`,
    `(A_l + I) / 2` with rows scaled to sum to 1 stands for the block and its residual, and the
    product over all blocks says how tokens mix. Read from the class token; from the mean of the
    patches, or the attention pooling, in models that have those.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        batch_size: Images at a time, where `images` is an array.

    Returns:
        float32 array of shape `(B, rows, columns)`, each map with a sum of at most 1: the share
        of the tokens before the patches is missing.

    Raises:
        ValueError: If the model has no transformer blocks, or there are no images.
    """
    attention = Attention(model)
    maps = []
    for batch in image_batches(images, batch_size):
        tokens = attention.tokens(batch)
        share = attention.readout(tokens)[:, None]  # (b, 1, T)
        # From the last block down, one row is enough: T^2 products a block in place of T^3.
        for index in reversed(range(len(attention.blocks))):
            mean = ops.mean(attention.scores(tokens, index), axis=1)  # (b, T, T)
            share = ops.matmul(share, with_residual(mean))
        maps.append(_on_grid(share[:, 0], attention.geometry))
    return np.concatenate(maps)


def with_residual(scores):
    """Half attention, half identity, for the residual connection: rows that sum to 1.

    Args:
        scores: Float tensor of shape `(B, T, T)`, the mean over heads.

    Returns:
        Float tensor of shape `(B, T, T)`.
    """
    scores = scores + ops.eye(scores.shape[-1], dtype=scores.dtype)
    return scores / ops.sum(scores, axis=-1, keepdims=True)


def mean_attention_distance(model: keras.Model, images: Any, batch_size: int = 16) -> np.ndarray:
    """How far each head looks on average, in pixels.

    Figures 7 (right) and 11 of https://arxiv.org/abs/2010.11929, there over 128 images.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches,
            of which only one is in memory.
        batch_size: Images at a time, where `images` is an array.

    Returns:
        float32 array of shape `(depth, A)`, in pixels.

    Raises:
        ValueError: If the model has no transformer blocks, or there are no images.
    """
    attention = Attention(model)
    depth, num_heads = len(attention.blocks), attention.blocks[0].num_heads
    total, count = np.zeros((depth, num_heads)), 0
    for batch in image_batches(images, batch_size):
        tokens = attention.tokens(batch)
        for index in range(depth):
            scores = attention.scores(tokens, index)
            total[index] += attention_distance(scores, attention.geometry).sum(axis=0)
        count += len(batch)
    return (total / count).astype("float32")


def attention_distance(scores: Any, geometry: Geometry) -> np.ndarray:
    """Mean distance from a patch to the patches it looks at, weighted by attention.

    Tokens before the patches are left out as queries and as keys, and the rest is not scaled up,
    as the paper's authors did: what a patch gives to the class token counts as distance 0.

    Args:
        scores: Attention weights of shape `(B, A, T, T)`.
        geometry: Where the patches lie.

    Returns:
        float32 array of shape `(B, A)`, in pixels.
    """
    prefix = geometry.num_prefix_tokens
    patches = scores[:, :, prefix:, prefix:]  # (B, A, N, N)
    distances = patch_distances(geometry)
    return ops.convert_to_numpy(ops.sum(patches * distances, axis=(2, 3)) / len(distances))


def patch_distances(geometry: Geometry) -> np.ndarray:
    """Euclidean distance in pixels between every two patches, float32 of shape `(N, N)`."""
    rows, columns = geometry.grid
    places = np.mgrid[:rows, :columns].reshape(2, -1).T  # (N, 2)
    places = places * np.array(geometry.cell_size)
    offsets = places[:, None] - places[None]  # (N, N, 2)
    return np.sqrt(np.sum(offsets**2, axis=-1)).astype("float32")


def _on_grid(share, geometry: Geometry) -> np.ndarray:
    """Shares of tokens `(..., T)` as shares of patches `(..., rows, columns)`."""
    x = ops.convert_to_numpy(share)[..., geometry.num_prefix_tokens :]
    return x.reshape(*x.shape[:-1], *geometry.grid)
