"""Outlier patches that are planted: they are found, and do not hide the rest of a map."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.analysis.attention import attention_rollout
from keras_vit.analysis.outliers import outlier_patches
from keras_vit.analysis.patch_features import token_norms
from keras_vit.analysis.plots import overlay_attention, plot_maps
from keras_vit.analysis.relevance import class_relevance
from keras_vit.models.attention import Attention
from tests.models.test_feature_extraction import random_vit

PLANTED = ((2, 7), (6, 1))  # row and column on a grid of 10 x 10


def vit_with_outliers(length=0.0, attracts=False, **changes):
    """A random ViT, where two patches have long tokens, or each attracts one head of block 0."""
    model, images = random_vit(image_size=(40, 40), patch_size=4, **changes)
    positions = model.get_layer("position_embedding").embedding
    patches = [10 * row + column - 100 for row, column in PLANTED]  # counted from the end
    values = np.array(positions)
    directions = np.random.default_rng(5).choice([-length, length], (2, values.shape[-1]))
    values.reshape(-1, values.shape[-1])[patches] += directions
    positions.assign(values)
    if attracts:
        attention = Attention(model)
        block, tokens = attention.blocks[0], attention.tokens(images)[0]
        qkv, normed = block.attention.qkv, np.asarray(block.attention_norm(tokens)).mean(axis=0)
        kernel, bias = np.array(qkv.kernel), np.array(qkv.bias)
        for head, index in enumerate(patches):  # of 8 channels: queries, then keys
            queries, keys = (slice(start, start + 8) for start in (8 * head, 32 + 8 * head))
            kernel[:, queries] = kernel[:, keys] = bias[keys] = 0
            kernel[:, keys.start] = normed[index]  # a long key for tokens like this one
            bias[queries] = 2  # of every token
        qkv.kernel.assign(kernel)
        qkv.bias.assign(bias)
    return model, images


KINDS = {
    "long": {"length": 14.0},
    "long_gap": {"length": 14.0, "pooling": "gap", "class_token": False},
    "attracting": {"length": 3.0, "attracts": True},
    "attracting_registers": {"length": 3.0, "attracts": True, "num_registers": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_planted_outliers_are_found_and_nothing_else(kind):
    model, images = vit_with_outliers(**KINDS[kind])
    found = outlier_patches(model, images, batch_size=2)
    assert found.shape == (3, 10, 10) and found.dtype == bool
    for each in found:
        assert tuple(map(tuple, np.argwhere(each))) == PLANTED
    plain, _ = vit_with_outliers(**{**KINDS[kind], "length": 0.0, "attracts": False})
    assert not outlier_patches(plain, images).any()


@pytest.mark.parametrize("compute", [attention_rollout, class_relevance])
def test_planted_outliers_do_not_hide_the_rest_of_a_map(compute):
    pytest.importorskip("matplotlib")
    model, images = vit_with_outliers(**KINDS["attracting"])
    maps, outliers = compute(model, images), outlier_patches(model, images)
    assert (np.median(maps, axis=(1, 2)) < 0.05 * maps.max(axis=(1, 2))).all()
    for each in maps:
        light = overlay_attention(np.full((80, 80, 3), 255, "uint8"), each)
        assert np.mean(light > 0.2) > 0.5
    figure = plot_maps(images, maps, "relevance", None, outliers, relative=True)
    axes = figure.axes[3:6]
    shown = np.stack([np.asarray(axis.images[0].get_array()) for axis in axes])
    for each, map_, found in zip(shown, maps, outliers, strict=True):
        assert each[~found].max() == 1
        plain = map_[~found] / map_.max()  # a scale to the maximum
        assert each[~found].mean() > 2 * plain.mean()
    corners = [{each.get_xy()[::-1] for each in axis.patches} for axis in axes]
    assert corners == [{(row - 0.5, column - 0.5) for row, column in PLANTED}] * 3
    assert figure.get_supxlabel() == "framed: outlier patches"


@pytest.mark.slow
def test_photographs_in_a_trained_network_have_outliers(real_network):
    """One head of block 0 attends to one patch, whose token is not long."""
    datasets = pytest.importorskip("sklearn.datasets")
    squares = np.stack([each[:, :427] for each in datasets.load_sample_images().images])
    images = np.asarray(keras.ops.image.resize(squares.astype("float32"), (224, 224)))
    model = keras_vit.from_pretrained(real_network / "network", input_shape=(224, 224, 3))
    outliers, rollout = outlier_patches(model, images), attention_rollout(model, images)
    assert [each.any() and each.sum() < 4 for each in outliers] == [True, True]
    for each, found in zip(rollout, outliers, strict=True):
        assert found.flat[each.argmax()] and each.max() > 20 * np.median(each)
    for block in range(12):
        norms = token_norms(model, images, f"block_{block}")
        assert norms.max() < 3 * np.median(norms)
