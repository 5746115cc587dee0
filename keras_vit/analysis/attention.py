"""Attention maps, attention rollout and mean attention distance."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.image_batches import ImageBatches, image_batches
from keras_vit.models.attention import Attention, Geometry, check_block


def attention_maps(
    model: keras.Model, images: ImageBatches, block: int = -1, batch_size: int = 16
) -> np.ndarray:
    """Attention maps: attention weights of each head of a block on the grid of patches.

    The query is the class token. In models with mean pooling, the result is the mean over the
    queries of all patches.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        block: Index of the block; negative counts from the last.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        float32 array of shape `(B, A, rows, columns)`. Prefix tokens are left out without
        renormalisation, so a map sums to at most 1.

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
        share = attention.output_weights(tokens)[:, None, None]  # (b, 1, 1, T)
        maps.append(on_grid(ops.matmul(share, scores)[:, :, 0], attention.geometry))
    return np.concatenate(maps)


def attention_rollout(model: keras.Model, images: ImageBatches, batch_size: int = 16) -> np.ndarray:
    """Attention rollout: how much each patch contributes to the pooled output.

    https://arxiv.org/abs/2005.00928, as in Figures 6 and 14 of https://arxiv.org/abs/2010.11929.
    With `A_l` the attention of block `l`, averaged over heads, `(A_l + I) / 2` with rows that sum
    to 1 describes the block with its residual connection. The product over all blocks describes
    how tokens mix. Its row for the class token is returned; in models with mean or attention
    pooling, the rows are averaged with the weights of the pooling. If the head takes two tokens, or
    a token and the mean, the result is the mean of the two.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        float32 array of shape `(B, rows, columns)`. The share of prefix tokens is left out, so a
        map sums to at most 1.

    Raises:
        ValueError: If the model has no transformer blocks, or there are no images.
    """
    attention = Attention(model)
    maps = []
    for batch in image_batches(images, batch_size):
        tokens = attention.tokens(batch)
        share = attention.pooling_weights(tokens)[:, None]  # (b, 1, T)
        # From the last block to the first, one row is enough: T^2 products per block, not T^3.
        for index in reversed(range(len(attention.blocks))):
            mean = ops.mean(attention.scores(tokens, index), axis=1)  # (b, T, T)
            mixed = mean + ops.eye(mean.shape[-1], dtype=mean.dtype)  # the residual connection
            share = ops.matmul(share, mixed / ops.sum(mixed, axis=-1, keepdims=True))
        maps.append(on_grid(share[:, 0], attention.geometry))
    return np.concatenate(maps)


def mean_attention_distance(
    model: keras.Model, images: ImageBatches, batch_size: int = 16
) -> np.ndarray:
    """Mean attention distance of each head, in pixels.

    Figures 7 (right) and 11 of https://arxiv.org/abs/2010.11929, there over 128 images.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches;
            only one batch is in memory.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        float32 array of shape `(depth, A)`, in pixels.

    Raises:
        ValueError: If the model has no transformer blocks, or there are no images.
    """
    attention = Attention(model)
    depth, num_heads = len(attention.blocks), attention.blocks[0].options.num_heads
    total, count = np.zeros((depth, num_heads)), 0
    for batch in image_batches(images, batch_size):
        tokens = attention.tokens(batch)
        for index in range(depth):
            scores = attention.scores(tokens, index)
            total[index] += attention_distance(scores, attention.geometry).sum(axis=0)
        count += len(batch)
    return (total / count).astype("float32")


def attention_distance(scores: keras.KerasTensor, geometry: Geometry) -> np.ndarray:
    """Mean distance between query patch and key patches, weighted by attention.

    Prefix tokens are left out as queries and as keys without renormalisation, as the paper's
    authors did: attention to the class token counts as distance 0.

    Args:
        scores: Attention weights of shape `(B, A, T, T)`.
        geometry: Geometry of the patches.

    Returns:
        float32 array of shape `(B, A)`, in pixels.
    """
    prefix = geometry.num_prefix_tokens
    patches = scores[:, :, prefix:, prefix:]  # (B, A, N, N)
    distances = patch_distances(geometry)
    return ops.convert_to_numpy(ops.sum(patches * distances, axis=(2, 3)) / len(distances))


def patch_distances(geometry: Geometry) -> np.ndarray:
    """Euclidean distances between patches in pixels, float32 of shape `(N, N)`."""
    rows, columns = geometry.grid
    positions = np.mgrid[:rows, :columns].reshape(2, -1).T  # (N, 2)
    positions = positions * np.array(geometry.cell_size)
    offsets = positions[:, None] - positions[None]  # (N, N, 2)
    return np.sqrt(np.sum(offsets**2, axis=-1)).astype("float32")


def on_grid(share: keras.KerasTensor, geometry: Geometry) -> np.ndarray:
    """Converts shares of tokens `(..., T)` to shares of patches `(..., rows, columns)`."""
    x = ops.convert_to_numpy(share)[..., geometry.num_prefix_tokens :]
    return x.reshape(*x.shape[:-1], *geometry.grid)
