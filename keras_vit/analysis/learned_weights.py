"""Learned weights of a model: patch filters and position similarity."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_vit.layers.patches import PatchEncoder
from keras_vit.layers.residual import BiTRoot, StemRoot
from keras_vit.layers.tokens import AddPositionEmbedding
from keras_vit.models.graph import find_layer


def patch_filters(model: keras.Model, count: int | None = None) -> np.ndarray:
    """Principal components of the filters of the first layer.

    Figure 7 (left) of https://arxiv.org/abs/2010.11929: the `D` filters of the patch encoder are
    vectors of `P * P * C` numbers, and their first principal components resemble a basis of the
    fine structure in a patch. In hybrids and ResNets, the filters are those of the first
    convolution.

    Args:
        model: A model of this package, or a model built on one.
        count: Number of components; `None` gives 28 as in the paper, or all if there are fewer.

    Returns:
        float32 array of shape `(count, P, P, C)`: components of length 1, the largest variance
        first. Their sign is arbitrary; the largest number of each is positive.

    Raises:
        ValueError: If there are fewer components, or the model has no first layer of this package.
    """
    kernel = _first_kernel(model)  # (P, P, C, D)
    filters = kernel.reshape(-1, kernel.shape[-1]).T.astype("float64")  # (D, P * P * C)
    most = min(filters.shape)
    count = min(28, most) if count is None else count
    if not 0 < count <= most:
        raise ValueError(
            f"{len(filters)} filters of {filters.shape[1]} numbers have 1 to {most} principal "
            f"components. Received: count={count}."
        )
    components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)[2][:count]
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(count), largest])[:, None]
    return components.reshape(count, *kernel.shape[:3]).astype("float32")


def position_similarity(model: keras.Model) -> np.ndarray:
    """Cosine similarity between the position embeddings of all patches.

    Figure 7 (centre) of https://arxiv.org/abs/2010.11929.

    Args:
        model: A Vision Transformer with position embeddings, or a model built on one.

    Returns:
        float32 array of shape `(rows, columns, rows, columns)` in [-1, 1]: `result[y, x]` is the
        map of similarities to the patch in row `y` and column `x`.

    Raises:
        ValueError: If the model has no position embeddings.
    """
    layer = find_layer(model, AddPositionEmbedding)
    if layer is None:
        raise ValueError(
            f"The model {model.name!r} has no position embeddings: its positions are relative, or "
            "it has none."
        )
    table = ops.convert_to_numpy(ops.cast(layer.table(), "float32"))[0]
    positions = table[layer.num_prefix_tokens :].astype("float64")  # (N, D)
    positions /= np.maximum(np.linalg.norm(positions, axis=1, keepdims=True), 1e-12)
    similarity = np.clip(positions @ positions.T, -1, 1)  # (N, N)
    return similarity.reshape(*layer.grid, *layer.grid).astype("float32")


def _first_kernel(model: keras.Model) -> np.ndarray:
    """Kernel of the first layer, of shape `(P, P, C, D)`."""
    root = find_layer(model, StemRoot) or find_layer(model, BiTRoot)
    encoder = find_layer(model, PatchEncoder)
    if root is None and encoder is None:
        raise ValueError(
            f"The model {model.name!r} has neither a PatchEncoder nor the root of a ResNet."
        )
    layer = encoder.projection if root is None else root.conv
    return ops.convert_to_numpy(ops.cast(layer.kernel, "float32"))
