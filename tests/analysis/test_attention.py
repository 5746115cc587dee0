"""Rollout and attention distance against their definitions and the paper's scale."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.analysis.attention import (
    attention_distance,
    attention_maps,
    attention_rollout,
    mean_attention_distance,
    patch_distances,
)
from keras_vit.config import ResNetStem
from keras_vit.models.attention import Attention, Geometry, attention_scores
from tests import reference, reference_resnet
from tests.models.test_feature_extraction import KINDS, composed, random_vit


def reference_rollout(model, images):
    """The whole product of matrices in float64, then its row for the pooled output."""
    attention = Attention(model)
    product = 1.0
    for index in range(len(attention.blocks)):
        scores = attention_scores(model, images, index).astype("float64")
        mixed = scores.mean(axis=1) + np.eye(scores.shape[-1])
        mixed = mixed / mixed.sum(-1, keepdims=True)
        product = mixed @ product if index else mixed
    share = np.asarray(attention.pooling_weights(attention.tokens(images)), "float64")
    row = np.einsum("bt,bts->bs", share, product)
    geometry = attention.geometry
    return row[:, geometry.num_prefix_tokens :].reshape(-1, *geometry.grid)


@pytest.mark.parametrize("kind", KINDS)
def test_rollout_is_the_product_of_all_blocks(kind):
    model, images = random_vit(**KINDS[kind])
    rollout = attention_rollout(model, images, batch_size=2)
    assert rollout.shape == (3, *model.config.grid) and rollout.dtype == "float32"
    np.testing.assert_allclose(rollout, reference_rollout(model, images), atol=1e-6)


def numpy_stages(model, images):
    """Input tokens of every block, in float64 NumPy from the weights alone."""
    config = model.config
    w = {x.path: np.asarray(x.value, "float64") for x in model.weights if "seed" not in x.path}
    x = images.astype("float64") / 127.5 - 1
    if config.stem is not None:
        _, x = reference_resnet.stem(w, x, config.stem.stages)  # (B, rows, columns, C)
    kernel = w["patch_encoder/projection/kernel"]
    x = reference.patches(x, config.patch_size[0]) @ kernel.reshape(-1, kernel.shape[-1])
    x = x + w["patch_encoder/projection/bias"]
    if config.class_token:
        token = np.broadcast_to(w["class_token/token"], (len(x), 1, x.shape[-1]))
        x = np.concatenate([token, x], axis=1)
    x = x + w["position_embedding/embedding"]
    for index in range(config.depth):
        yield index, w, x
        x = reference.block(x, w, f"block_{index}", config.block.num_heads)


def numpy_rollout(model, images):
    """Rollout by its definition, from the weights alone."""
    config = model.config
    product = 1.0
    for index, w, x in numpy_stages(model, images):
        norm = f"block_{index}/attention_norm"
        x = reference.layer_norm(x, w[f"{norm}/gamma"], w[f"{norm}/beta"])
        _, scores = reference.attention(x, w, f"block_{index}/attention", config.block.num_heads)
        mixed = (scores.mean(axis=1) + np.eye(scores.shape[-1])) / 2
        product = mixed @ product if index else mixed
    row = product[:, 0, 1:] if config.class_token else product.mean(axis=1)
    return row.reshape(-1, *config.grid)


AGAINST_NUMPY = {
    "wide": {"image_size": (32, 48)},
    "tall_gap": {"image_size": (40, 24), "pooling": "gap", "class_token": False},
    "hybrid_root": {"stem": ResNetStem(), "patch_size": 4, "image_size": (32, 64)},
    "hybrid": {"stem": ResNetStem((1, 2)), "patch_size": 1, "image_size": (48, 64)},
    "hybrid_patches": {"stem": ResNetStem((2, 1, 1)), "patch_size": 2, "image_size": (128, 64)},
}


@pytest.mark.parametrize("kind", AGAINST_NUMPY)
def test_rollout_of_hybrids_and_of_images_that_are_not_square(kind):
    model, images = random_vit(**AGAINST_NUMPY[kind])
    expected = numpy_rollout(model, images)
    rollout = attention_rollout(model, images)
    assert rollout.shape == expected.shape and rollout.shape[1] != rollout.shape[2]
    np.testing.assert_allclose(rollout, expected, rtol=1e-4, atol=1e-7)
    # The map is far from uniform.
    assert np.ptp(expected) > 0.1 * expected.mean()


def test_distance_in_a_hybrid_is_in_pixels_of_the_image():
    model, images = random_vit(**AGAINST_NUMPY["hybrid"])
    geometry = Attention(model).geometry
    assert geometry == Geometry((48, 64), (6, 8), 1) and geometry.cell_size == (8, 8)
    rows, columns = np.mgrid[:6, :8].reshape(2, -1) * 8
    apart = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    for index, w, x in numpy_stages(model, images):
        norm = f"block_{index}/attention_norm"
        x = reference.layer_norm(x, w[f"{norm}/gamma"], w[f"{norm}/beta"])
        _, scores = reference.attention(x, w, f"block_{index}/attention", 4)
        expected = (scores[:, :, 1:, 1:] * apart).sum(-1).mean(axis=(0, 2))
        found = mean_attention_distance(model, images)[index]
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_rollout_of_uniform_attention():
    # Queries of zero give uniform attention: A = 1 / T; (A + I) / 2 twice keeps 1 / 4.
    model, images = random_vit()
    for index in range(2):
        qkv = model.get_layer(f"block_{index}").attention.qkv
        qkv.kernel.assign(np.zeros(qkv.kernel.shape))
        qkv.bias.assign(np.zeros(qkv.bias.shape))
    rollout = attention_rollout(model, images)
    np.testing.assert_allclose(rollout, (3 / 4) / 17, rtol=1e-5)


@pytest.mark.parametrize("kind", ["flat", "nested", "sequential"])
def test_rollout_of_models_built_on_a_vit(kind):
    backbone, model, images = composed(kind)
    expected = attention_rollout(backbone, images)
    np.testing.assert_allclose(attention_rollout(model, images), expected, atol=1e-6)


def test_maps_are_rows_of_the_scores():
    model, images = random_vit(**KINDS["not_square"])
    maps = attention_maps(model, images, block=0, batch_size=2)
    scores = attention_scores(model, images, block=0)
    np.testing.assert_allclose(maps, scores[:, :, 0, 1:].reshape(3, 4, 4, 3), atol=1e-6)
    model, images = random_vit(**KINDS["gap"])
    expected = attention_scores(model, images).mean(axis=2).reshape(3, 4, 4, 4)
    np.testing.assert_allclose(attention_maps(model, images), expected, atol=1e-6)
    with pytest.raises(IndexError, match="has 2 blocks"):
        attention_maps(model, images, block=5)


@pytest.mark.parametrize(
    ("grid", "patch", "pixels"),
    [(14, 16, 116.49), (7, 32, 115.50), (16, 14, 116.57), (24, 16, 200.05)],
)
def test_distance_of_uniform_and_identical_attention(grid, patch, pixels):
    geometry = Geometry((grid * patch,) * 2, (grid, grid), 0)
    tokens = grid**2
    uniform = np.full((1, 1, tokens, tokens), 1 / tokens, "float32")
    assert attention_distance(uniform, geometry)[0, 0] == pytest.approx(pixels, abs=0.005)
    identity = np.eye(tokens, dtype="float32")[None, None]
    assert attention_distance(identity, geometry)[0, 0] == 0


def test_distance_with_a_class_token_is_not_renormalised():
    geometry = Geometry((224, 224), (14, 14), 1)
    uniform = np.full((2, 3, 197, 197), 1 / 197, "float32")
    expected = 116.49 * 196 / 197
    np.testing.assert_allclose(attention_distance(uniform, geometry), expected, atol=0.005)


def test_distances_of_a_grid_that_is_not_square():
    distances = patch_distances(Geometry((32, 48), (4, 3), 1))
    assert distances.shape == (12, 12)
    assert distances[0, 1] == 16 and distances[0, 3] == 8
    assert distances[0, 4] == pytest.approx(np.hypot(8, 16))
    np.testing.assert_array_equal(distances, distances.T)


def test_mean_distance_streams_over_images():
    model, images = random_vit(**KINDS["distilled_registers"])
    whole = mean_attention_distance(model, images)
    assert whole.shape == (2, 4) and whole.dtype == "float32"
    stream = ((batch[None], "label") for batch in images)
    np.testing.assert_allclose(mean_attention_distance(model, stream), whole, rtol=1e-5)
    scores = np.stack([attention_scores(model, images, i) for i in range(2)], axis=1)
    patches = scores[..., 5:, 5:]
    expected = (patches * patch_distances(Attention(model).geometry)).sum(-1).mean(-1).mean(0)
    np.testing.assert_allclose(whole, expected, rtol=1e-5)


def test_images_of_a_wrong_shape():
    model, images = random_vit()
    with pytest.raises(ValueError, match=r"For one image, pass `image\[None\]`"):
        attention_rollout(model, images[0])
    with pytest.raises(ValueError, match="at least one image"):
        attention_rollout(model, [])
