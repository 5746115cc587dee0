"""What a model learned about places."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_vit.layers.tokens import AddPositionEmbedding
from keras_vit.models.graph import find_layer


def position_similarity(model: keras.Model) -> np.ndarray:
    """Cosine similarity of the embedding of each place with that of every other.

    Figure 7 (centre) of https://arxiv.org/abs/2010.11929.

    Args:
        model: A Vision Transformer with an embedding of places, or a model built on one.

    Returns:
        float32 array of shape `(rows, columns, rows, columns)` in [-1, 1]: `result[y, x]` is the
        map of similarities to the patch in row `y` and column `x`.

    Raises:
        ValueError: If the model has no embedding of places.
    """
    layer = find_layer(model, AddPositionEmbedding)
    if layer is None:
        raise ValueError(
            f"The model {model.name!r} has no layer with an embedding of places: its positions "
            "are relative, or it has none."
        )
    table = ops.convert_to_numpy(ops.cast(layer.table(), "float32"))[0]
    places = table[layer.num_prefix_tokens :].astype("float64")  # (N, D)
    places /= np.maximum(np.linalg.norm(places, axis=1, keepdims=True), 1e-12)
    similarity = np.clip(places @ places.T, -1, 1)  # (N, N)
    return similarity.reshape(*layer.grid, *layer.grid).astype("float32")
