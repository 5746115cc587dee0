"""Attention scores of models of every kind."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.models.attention import Attention, Geometry, attention_scores, geometry_of
from keras_vit.models.feature_extraction import features_of
from keras_vit.models.vit import build_vit
from tests import reference
from tests.fixtures import fill_random, tiny_config
from tests.models.test_feature_extraction import KINDS, random_vit


@pytest.mark.parametrize("block", [0, 1, -1])
def test_attention_scores_are_those_of_the_paper(block):
    model, images = random_vit(include_preprocessing=False)
    images = images / 127.5 - 1
    w = {x.path: np.asarray(x.value, "float64") for x in model.weights if "seed" not in x.path}
    stages = reference.vit(w, images.astype("float64"), 8, 4)
    index = block % 2
    x = stages["positions"] if index == 0 else stages["block_0"]
    norm = f"block_{index}/attention_norm"
    x = reference.layer_norm(x, w[f"{norm}/gamma"], w[f"{norm}/beta"])
    _, expected = reference.attention(x, w, f"block_{index}/attention", 4)
    np.testing.assert_allclose(attention_scores(model, images, block), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_attention_sum_to_1_in_models_of_every_kind(kind):
    model, images = random_vit(**KINDS[kind])
    tokens = model.get_layer("block_0").output.shape[1]
    scores = attention_scores(model, images)
    assert scores.shape == (3, 4, tokens, tokens) and scores.dtype == "float32"
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)


POST_NORM = {"post_norm": True}


GRID_ATTENTION = {
    "position_embedding": "none",
    "grid_attention": "relative_2d",
    "class_token": False,
    "pooling": "gap",
}


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("float32", POST_NORM),
        ("float32", {**POST_NORM, **GRID_ATTENTION}),  # of Cordonnier et al.
        ("mixed_bfloat16", POST_NORM),
    ],
)
def test_attention_scores_are_those_that_the_block_computes(policy, changes):
    keras.config.set_dtype_policy(policy)
    try:
        model, images = random_vit(**changes)
        found = features_of(model, "block_1/attention_scores")(images)["block_1/attention_scores"]
        attention = Attention(model)
        tokens = attention.tokens(images)
    finally:
        keras.config.set_dtype_policy("float32")
    expected = attention.blocks[1](tokens[1], return_attention_scores=True)[1]
    np.testing.assert_array_equal(attention.scores(tokens, 1), ops.cast(expected, "float32"))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_geometry_is_that_of_the_config(kind):
    config = tiny_config(**KINDS[kind])
    geometry = geometry_of(build_vit(config))
    assert geometry == Geometry(config.image_size, config.grid, config.num_prefix_tokens)
    assert geometry.cell_size == config.patch_size


def test_mixed_precision_gives_float32_scores():
    config = tiny_config()
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build_vit(config)
    finally:
        keras.config.set_dtype_policy(policy)
    fill_random(model)
    expected_model, images = random_vit()
    scores = attention_scores(model, images)
    assert scores.dtype == "float32"
    # bfloat16 has 8 bits; what is compared is that it is the same attention.
    np.testing.assert_allclose(scores, attention_scores(expected_model, images), atol=0.1)


def test_pooling_weights_of_each_head():
    for kind, expected in (("token", 1.0), ("gap", 1 / 16), ("gap_with_class_token", 1 / 16)):
        model, images = random_vit(**KINDS[kind])
        attention = Attention(model)
        share = np.asarray(attention.pooling_weights(attention.tokens(images)))
        np.testing.assert_allclose(share.sum(-1), 1, atol=1e-6)
        assert share[share > 0] == pytest.approx(expected)
    two = {"token_gap": [1 / 2, *[1 / 32] * 16], "distilled": [1 / 2, 1 / 2, *[0] * 16]}
    for kind, row in two.items():
        changes = {"distillation_token": True} if kind == "distilled" else {"pooling": kind}
        model, images = random_vit(**changes)
        attention = Attention(model)
        tokens = attention.tokens(images)
        np.testing.assert_allclose(attention.pooling_weights(tokens), [row] * 3, atol=1e-7)
        assert np.all(np.asarray(attention.output_weights(tokens))[:, 0] == 1)  # attention maps
    model, images = random_vit(**KINDS["map_registers"])
    attention = Attention(model)
    share = np.asarray(attention.pooling_weights(attention.tokens(images)))
    np.testing.assert_allclose(share.sum(-1), 1, atol=1e-5)
    assert len(np.unique(share[0])) == 18
