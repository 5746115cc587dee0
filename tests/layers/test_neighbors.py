"""Tests the layer of nearest neighbours."""

from __future__ import annotations

import keras
import pytest

from keras_vit.layers.neighbors import NearestNeighbors
from tests.checks import check_config, check_saved
from tests.evaluate.test_probes import clusters


def test_nearest_neighbors_is_a_layer():
    layer = NearestNeighbors(3, 12, 5)
    check_config(layer)
    x, labels = clusters(12)
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layer(inputs))
    layer.examples.assign(x)
    layer.labels.assign(labels)
    assert model.output_shape == (None, 3) and not model.trainable_weights
    check_saved(model, x, keras.ops.convert_to_numpy(model(x)))
    half = NearestNeighbors(3, 12, 5, dtype="mixed_bfloat16")
    assert half(x).dtype == "float32"
    with pytest.raises(ValueError, match="12 examples have no 13 nearest"):
        NearestNeighbors(3, 12, 13)
