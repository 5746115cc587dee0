"""Features of patches and images: token norms, principal components, nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.image_batches import ImageBatches, image_batches
from keras_vit.models.attention import geometry_of
from keras_vit.models.feature_extraction import (
    features_of,
    head_input_stage,
    stage_names,
    token_stage,
)
from keras_vit.models.graph import find_blocks


def image_features(
    model: keras.Model, images: ImageBatches, stage: str | None = None, batch_size: int = 16
) -> np.ndarray:
    """Feature vectors of images.

    Args:
        model: A model of this package, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        stage: Name of a layer; `None` takes the input of the head. Features are averaged over
            tokens, or over the positions of feature maps.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        float32 array of shape `(B, D)`.

    Raises:
        ValueError: If there is no such layer, or there are no images.
    """
    return np.concatenate(list(_feature_batches(model, images, stage, batch_size)))


def nearest_neighbors(
    model: keras.Model,
    images: ImageBatches,
    gallery: ImageBatches,
    count: int = 5,
    stage: str | None = None,
    batch_size: int = 16,
) -> tuple[np.ndarray, np.ndarray]:
    """Nearest neighbours of images in a gallery, by cosine similarity of features.

    Args:
        model: A model of this package, or a model built on one.
        images: Query images, array of shape `(Q, H, W, C)` or batches.
        gallery: Images to search, array of shape `(B, H, W, C)` or batches; only one batch is in
            memory.
        count: Neighbours per image.
        stage: As in `image_features`.
        batch_size: Images per batch, if `images` or `gallery` is an array.

    Returns:
        Indices in the gallery, int64 array of shape `(Q, count)`, the nearest first, and cosine
        similarities, float32 array of the same shape.

    Raises:
        ValueError: If the gallery has fewer than `count` images.
    """
    queries = _unit(image_features(model, images, stage, batch_size))
    indices = np.zeros((len(queries), 0), "int64")
    similarities = np.zeros((len(queries), 0), "float32")
    num_images = 0
    for features in _feature_batches(model, gallery, stage, batch_size):
        new = queries @ _unit(features).T  # (Q, b)
        new_indices = np.broadcast_to(np.arange(num_images, num_images + len(features)), new.shape)
        similarities = np.concatenate([similarities, new], axis=1)
        indices = np.concatenate([indices, new_indices], axis=1)
        best = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
        similarities = np.take_along_axis(similarities, best, axis=1)
        indices = np.take_along_axis(indices, best, axis=1)
        num_images += len(features)
    if count < 1 or num_images < count:
        raise ValueError(
            f"A gallery of {num_images} images has 1 to {num_images} neighbours, not {count}."
        )
    return indices, similarities


def token_norms(
    model: keras.Model, images: ImageBatches, stage: str | None = None, batch_size: int = 16
) -> np.ndarray:
    """Norm of every patch token.

    In large models, a few tokens have a norm many times that of the others and hold no local
    information; registers prevent this (https://arxiv.org/abs/2309.16588).

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        stage: Name of a layer; `None` takes the last block, before the last norm.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        float32 array of shape `(B, rows, columns)`.

    Raises:
        ValueError: If the layer does not exist or returns no tokens.
    """
    if stage is None:
        find_blocks(model)  # raises an error if there are none
        suffix = "/attention_scores"
        stage = [n for n in stage_names(model) if n.endswith(suffix)][-1].removesuffix(suffix)
    grids = _grid_batches(model, images, stage, batch_size)
    return np.concatenate([np.linalg.norm(x, axis=-1) for x in grids])


def patch_components(
    model: keras.Model,
    images: ImageBatches,
    count: int = 3,
    stage: str | None = None,
    batch_size: int = 16,
) -> np.ndarray:
    """Principal components of the patch tokens of all images together.

    Shown as red, green and blue, the first three give similar patches similar colours, as in
    https://arxiv.org/abs/2304.07193. The images are read twice: once for the components, which
    need memory for `D * D` numbers only, and once to project every patch.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches
            that can be read twice.
        count: Number of components.
        stage: Name of a layer; `None` takes the last norm before pooling, or the last block.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        float32 array of shape `(B, rows, columns, count)`, of mean 0 over all patches.

    Raises:
        ValueError: If the images can be read only once, the layer returns no tokens, or there are
            fewer components.
    """
    if iter(images) is images:
        raise ValueError(
            "`images` are read twice, but an iterator can be read once. Pass an array, a list of "
            "batches or a tf.data.Dataset."
        )
    mean, axes = principal_axes(model, images, count, stage, batch_size)
    return project_patches(model, images, mean, axes, stage, batch_size)


def principal_axes(
    model: keras.Model,
    images: ImageBatches,
    count: int = 3,
    stage: str | None = None,
    batch_size: int = 16,
) -> tuple[np.ndarray, np.ndarray]:
    """Principal axes of the patch tokens of all images, for `project_patches`.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        count: Number of axes.
        stage: As in `patch_components`.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        The mean of all patch tokens, float64 array of shape `(D,)`, and the axes, `(D, count)`.

    Raises:
        ValueError: If the layer returns no tokens, or there are fewer axes.
    """
    total, products, patches = 0.0, 0.0, 0
    for grid in _grid_batches(model, images, stage or token_stage(model), batch_size):
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
    images: ImageBatches,
    mean: np.ndarray,
    axes: np.ndarray,
    stage: str | None = None,
    batch_size: int = 16,
) -> np.ndarray:
    """Projects the patch tokens of images onto the axes of `principal_axes`.

    Args:
        model: A Vision Transformer, or a model built on one.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        mean: Mean of the patch tokens, of shape `(D,)`.
        axes: Principal axes, of shape `(D, count)`.
        stage: As in `patch_components`.
        batch_size: Images per batch, if `images` is an array.

    Returns:
        float32 array of shape `(B, rows, columns, count)`.
    """
    grids = _grid_batches(model, images, stage or token_stage(model), batch_size)
    return np.concatenate([((x - mean) @ axes).astype("float32") for x in grids])


def _feature_batches(
    model: keras.Model, images: ImageBatches, stage: str | None, batch_size: int
) -> Iterator[np.ndarray]:
    stage = stage or head_input_stage(model)
    extractor = features_of(model, stage)
    for batch in image_batches(images, batch_size):
        x = _to_numpy(extractor(batch, training=False)[stage])
        yield x.reshape(len(x), -1, x.shape[-1]).mean(axis=1)


def _grid_batches(
    model: keras.Model, images: ImageBatches, stage: str, batch_size: int
) -> Iterator[np.ndarray]:
    extractor = features_of(model, stage, grids=True)
    shape = extractor.output[stage].shape
    if len(shape) != 4 or shape[1:3] != geometry_of(model).grid:
        raise ValueError(
            f"The layer {stage!r} returns no patch tokens, but an output of shape {shape}."
        )
    for batch in image_batches(images, batch_size):
        yield _to_numpy(extractor(batch, training=False)[stage])


def _unit(features: np.ndarray) -> np.ndarray:
    """Scales vectors to length 1."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _to_numpy(x: keras.KerasTensor) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32"))
