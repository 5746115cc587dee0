"""Patch filters and position similarity against their definitions."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.analysis.learned_weights import patch_filters, position_similarity
from keras_vit.config import ResNetConfig, ResNetStem
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, tiny_config


def test_known_components_are_recovered():
    # Filters made of three orthogonal patterns, whose shares have standard deviations 3, 2 and 1.
    model = build_vit(tiny_config(width=512, patch_size=(4, 8)))
    rng = np.random.default_rng(0)
    patterns = np.linalg.qr(rng.normal(size=(4 * 8 * 3, 3)))[0]
    shares = rng.normal(size=(3, 512)) * np.array([[3], [2], [1]])
    kernel = (patterns @ shares + 0.7).reshape(4, 8, 3, 512)  # the mean filter is no component
    model.get_layer("patch_encoder").projection.kernel.assign(kernel)
    components = patch_filters(model, count=3)
    assert components.shape == (3, 4, 8, 3) and components.dtype == "float32"
    found = components.reshape(3, -1)
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-5)
    alike = np.abs(found @ patterns)
    assert alike.diagonal().min() > 0.97  # 512 samples mix them a little
    np.testing.assert_allclose((alike**2).sum(axis=1), 1, atol=1e-4)  # and span the same space
    assert (np.abs(found).max(axis=1) == found.max(axis=1)).all()


@pytest.mark.parametrize("kind", ["hybrid", "bit"])
def test_filters_of_resnets_are_their_first_convolution(kind):
    if kind == "hybrid":
        model = build_vit(tiny_config(stem=ResNetStem((1,)), patch_size=1))
    else:
        model = build_resnet(ResNetConfig(stages=(1,), image_size=32))
    fill_random(model)
    assert patch_filters(model, count=5).shape == (5, 7, 7, 3)


def test_impossible_counts_and_models():
    with pytest.raises(ValueError, match="32 filters of 192 numbers have 1 to 32"):
        patch_filters(build_vit(tiny_config()), count=33)
    x = keras.Input((8,))
    with pytest.raises(ValueError, match="neither a PatchEncoder nor"):
        patch_filters(keras.Model(x, keras.layers.Dense(2)(x)))


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos_2d"])
def test_similarity_is_the_cosine_of_two_positions(kind):
    config = tiny_config(image_size=(24, 32), position_embedding=kind, distillation_token=True)
    model = build_vit(config)
    fill_random(model)
    similarity = position_similarity(model)
    assert similarity.shape == (3, 4, 3, 4) and similarity.dtype == "float32"
    table = np.asarray(model.get_layer("position_embedding").table())[0, 2:].reshape(3, 4, -1)
    for y, x, v, u in ((0, 0, 0, 0), (1, 2, 2, 3), (2, 0, 0, 3)):
        a, b = table[y, x], table[v, u]
        expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert similarity[y, x, v, u] == pytest.approx(expected, abs=1e-5)


def test_models_without_position_embeddings():
    with pytest.raises(ValueError, match="has no position embeddings"):
        position_similarity(build_vit(tiny_config(position_embedding="relative")))
