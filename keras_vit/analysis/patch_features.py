"""Features of patches and images: norms, principal components, neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.image_batches import image_batches
from keras_vit.models.feature_extraction import (
    features_of,
    geometry_of,
    head_input_stage,
    stage_names,
)
from keras_vit.models.graph import find_blocks


def image_features(
    model: keras.Model, images: Any, stage: str | None = None, batch_size: int = 16
) -> np.ndarray:
    """One vector an image.

    Args:
        model: A model of this package, or one built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        stage: Name of a layer; `None` takes what the head reads. The mean is taken over tokens,
            or over places of maps.
        batch_size: Images at a time, where `images` is an array.

    Returns:
        float32 array of shape `(B, D)`.

    Raises:
        ValueError: If there is no such layer, or there are no images.
    """
    return np.concatenate(list(_feature_batches(model, images, stage, batch_size)))


def nearest_neighbors(
    model: keras.Model,
    images: Any,
    gallery: Any,
    count: int = 5,
    stage: str | None = None,
    batch_size: int = 16,
) -> tuple[np.ndarray, np.ndarray]:
    """The images of a gallery whose features point the same way as those of given images.

    Args:
        model: A model of this package, or one built on one.
        images: What to find neighbours of, array of shape `(Q, H, W, C)` or batches.
        gallery: Where to find them, array of shape `(B, H, W, C)` or batches, of which only one is
            in memory.
        count: Neighbours an image.
        stage: As in `image_features`.
        batch_size: Images at a time, of arrays.

    Returns:
        Places in the gallery, int64 array of shape `(Q, count)`, the nearest first, and cosine
        similarities, float32 array of the same shape.

    Raises:
        ValueError: If the gallery has fewer than `count` images.
    """
    queries = _unit(image_features(model, images, stage, batch_size))
    places = np.zeros((len(queries), 0), "int64")
    similarities = np.zeros((len(queries), 0), "float32")
    seen = 0
    for features in _feature_batches(model, gallery, stage, batch_size):
        found = queries @ _unit(features).T  # (Q, b)
        here = np.broadcast_to(np.arange(seen, seen + len(features)), found.shape)
        similarities = np.concatenate([similarities, found], axis=1)
        places = np.concatenate([places, here], axis=1)
        best = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
        similarities = np.take_along_axis(similarities, best, axis=1)
        places = np.take_along_axis(places, best, axis=1)
        seen += len(features)
    if count < 1 or seen < count:
        raise ValueError(f"A gallery of {seen} images has 1 to {seen} neighbours, not {count}.")
    return places, similarities


def token_norms(
    model: keras.Model, images: Any, stage: str | None = None, batch_size: int = 16
) -> np.ndarray:
    """Length of every patch token.

    A few tokens of large models grow many times as long as the others and hold no local
    information; registers take that over (https://arxiv.org/abs/2309.16588).

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        stage: Name of a layer; `None` takes the last block, before the last norm.
        batch_size: Images at a time, where `images` is an array.

    Returns:
        float32 array of shape `(B, rows, columns)`.

    Raises:
        ValueError: If the layer does not exist or gives no tokens.
    """
    if stage is None:
        find_blocks(model)  # for its message where there are none
        ending = "/attention_scores"
        stage = [n for n in stage_names(model) if n.endswith(ending)][-1].removesuffix(ending)
    grids = _grid_batches(model, images, stage, batch_size)
    return np.concatenate([np.linalg.norm(x, axis=-1) for x in grids])


def patch_components(
    model: keras.Model,
    images: Any,
    count: int = 3,
    stage: str = "encoder_norm",
    batch_size: int = 16,
) -> np.ndarray:
    """Principal components of the patch tokens of all images together.

    The first three, shown as red, green and blue, paint alike what the model finds alike, as in
    https://arxiv.org/abs/2304.07193. Two passes over the images: one for the components, which
    need no more memory than `D * D` numbers, and one to see every patch along them.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches
            that can be read twice.
        count: How many components.
        stage: Name of a layer.
        batch_size: Images at a time, where `images` is an array.

    Returns:
        float32 array of shape `(B, rows, columns, count)`, of mean 0 over all patches.

    Raises:
        ValueError: If the images can be read only once, the layer gives no tokens, or there are
            not as many components.
    """
    if iter(images) is images:
        raise ValueError(
            "`images` are read twice, and an iterator can be read once. Pass an array, a list of "
            "batches or a tf.data.Dataset."
        )
    mean, axes = principal_axes(model, images, count, stage, batch_size)
    return project_patches(model, images, mean, axes, stage, batch_size)


def principal_axes(
    model: keras.Model,
    images: Any,
    count: int = 3,
    stage: str = "encoder_norm",
    batch_size: int = 16,
) -> tuple[np.ndarray, np.ndarray]:
    """The axes that `patch_components` sees all patch tokens along, in one pass over the images.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        count: How many axes.
        stage: Name of a layer.
        batch_size: Images at a time, where `images` is an array.

    Returns:
        The mean of all patch tokens, float64 array of shape `(D,)`, and the axes, `(D, count)`.

    Raises:
        ValueError: If the layer gives no tokens, or there are not as many axes.
    """
    total, products, patches = 0.0, 0.0, 0
    for grid in _grid_batches(model, images, stage, batch_size):
        x = grid.reshape(-1, grid.shape[-1]).astype("float64")
        total, products, patches = total + x.sum(axis=0), products + x.T @ x, patches + len(x)
    mean = np.asarray(total / patches)
    if not 0 < count <= len(mean):
        raise ValueError(f"Tokens of width {len(mean)} have 1 to {len(mean)} components.")
    _, vectors = np.linalg.eigh(products / patches - np.outer(mean, mean))
    vectors = vectors[:, ::-1][:, :count]  # the largest variance first
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(count)])
    return mean, vectors * signs


def project_patches(
    model: keras.Model,
    images: Any,
    mean: np.ndarray,
    axes: np.ndarray,
    stage: str = "encoder_norm",
    batch_size: int = 16,
) -> np.ndarray:
    """The patch tokens of images along axes that `principal_axes` found in others.

    Returns:
        float32 array of shape `(B, rows, columns, count)`.
    """
    grids = _grid_batches(model, images, stage, batch_size)
    return np.concatenate([((x - mean) @ axes).astype("float32") for x in grids])


def _feature_batches(
    model: keras.Model, images: Any, stage: str | None, batch_size: int
) -> Iterator[np.ndarray]:
    stage = stage or head_input_stage(model)
    part = features_of(model, stage)
    for batch in image_batches(images, batch_size):
        x = _to_numpy(part(batch, training=False)[stage])
        yield x.reshape(len(x), -1, x.shape[-1]).mean(axis=1)


def _grid_batches(
    model: keras.Model, images: Any, stage: str, batch_size: int
) -> Iterator[np.ndarray]:
    part = features_of(model, stage, grids=True)
    shape = part.output[stage].shape
    if len(shape) != 4 or shape[1:3] != geometry_of(model).grid:
        raise ValueError(
            f"The layer {stage!r} gives no patch tokens, but an output of shape {shape}."
        )
    for batch in image_batches(images, batch_size):
        yield _to_numpy(part(batch, training=False)[stage])


def _unit(features: np.ndarray) -> np.ndarray:
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _to_numpy(x: Any) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32"))
