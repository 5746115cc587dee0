"""Models at other image sizes."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import RotaryPositions
from keras_vit.models.resizing import resize_model
from tests import reference
from tests.fixtures import images_for
from tests.models.test_pyramid import arrays_of, random_vit

SIZE = (48, 64)


KINDS = {
    "token": {},
    "map": {"pooling": "map", "class_token": False, "num_registers": 2},
    "learned_2d": {"position_embedding": "learned_2d"},
    "sincos": {"position_embedding": "sincos_2d"},
    "rotary": {"position_embedding": "none", "rope": RotaryPositions(coordinates="centered")},
    "rotary_and_learned": {"rope": RotaryPositions(reference_grid=(4, 4))},
    "pre_logits": {"pre_logits": 8, "classifier_activation": "softmax"},
}


def aligned_corners(table, old, new):
    """Linear interpolation of (N, D) at positions whose corners coincide, one cell at a time."""
    cells = table.reshape(*old, -1)
    result = np.zeros((*new, cells.shape[-1]))
    for row, column in np.ndindex(*new):
        y, x = row * (old[0] - 1) / (new[0] - 1), column * (old[1] - 1) / (new[1] - 1)
        top, left = min(int(y), old[0] - 2), min(int(x), old[1] - 2)
        for i, j in np.ndindex(2, 2):
            weight = (1 - abs(y - top - i)) * (1 - abs(x - left - j))
            result[row, column] += weight * cells[top + i, left + j]
    return result.reshape(-1, cells.shape[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_resized_model_has_the_same_head_and_resized_positions(kind):
    model = random_vit(**KINDS[kind])
    resized = resize_model(model, SIZE)
    assert resized.config == dataclasses.replace(model.config, image_size=SIZE)
    old, new = arrays_of(model), arrays_of(resized)
    moved = {path for path in old if path.startswith("position_embedding/")}
    assert all(np.array_equal(old[path], new[path]) for path in set(old) - moved)
    path = "position_embedding/embedding"
    if path in old:
        prefix = old[path].shape[1] - 16
        expected = aligned_corners(old[path][0, prefix:], (4, 4), (6, 8))
        np.testing.assert_allclose(new[path][0, prefix:], expected, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(new[path][0, :prefix], old[path][0, :prefix])
    elif moved:  # learned_2d: rows and columns are the halves of a table of the grid
        tables = [m.get_layer("position_embedding").table() for m in (model, resized)]
        before, after = (np.asarray(table, "float64")[0, 1:] for table in tables)
        expected = aligned_corners(before, (4, 4), (6, 8))
        np.testing.assert_allclose(after, expected, rtol=0, atol=1e-6)
    images = images_for(resized)
    fresh = keras_vit.build_vit(resized.config)  # its own fixed and rotary positions
    fresh.set_weights(resized.get_weights())
    np.testing.assert_array_equal(resized(images), fresh(images))


def test_the_resized_model_computes_the_equations():
    model = resize_model(random_vit(include_preprocessing=False), SIZE)
    images = images_for(model) / 127.5 - 1
    expected = reference.vit(arrays_of(model), images.astype("float64"), 8, 4)["logits"]
    np.testing.assert_allclose(model(images), expected, rtol=0, atol=2e-5)


def test_resizing_keeps_precision_and_refuses_what_it_cannot_resize():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = random_vit()
    finally:
        keras.config.set_dtype_policy("float32")
    assert resize_model(half, 64).get_layer("block_0").compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"
    with pytest.raises(ValueError, match=r"whole number of patches.*Crop to 40 pixels"):
        resize_model(half, 44)
    with pytest.raises(ValueError, match=r"relative_keys is .* and must be"):
        resize_model(random_vit(position_embedding="relative"), 64)
    with pytest.raises(ValueError, match=r"Only models of this package.*Resize what it was built"):
        resize_model(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), 64)
    with pytest.raises(ValueError, match=r"low-rank updates. Resize or adapt the plain model"):
        resize_model(keras_vit.models.add_lora(random_vit(), 2), 64)
    with pytest.raises(ValueError, match="has low-rank updates"):  # which it would leave out
        keras_vit.adapt_model(keras_vit.models.add_lora(random_vit(), 2), classes=3)
