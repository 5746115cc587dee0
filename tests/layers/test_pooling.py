"""From tokens to one vector an image."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from tests import reference
from tests.checks import check_layer
from tests.fixtures import fill_random, numpy

TOKENS = np.random.default_rng(7).normal(size=(2, 5, 16)).astype("float32")


@pytest.mark.parametrize(
    "layer",
    [
        TokenPooling(),
        TokenPooling(1),
        MeanPooling(),
        MeanPooling(2),
        AttentionPooling(4, 24),
        AttentionPooling(4, None),
        AttentionPooling(2, 24, gelu="exact", norm_epsilon=1e-5),
    ],
    ids=lambda layer: layer.name,
)
def test_poolings_pass_check_layer(layer):
    check_layer(layer, (5, 16), (16,))


def test_token_and_mean_pooling_read_what_they_say():
    np.testing.assert_array_equal(numpy(TokenPooling(1)(TOKENS)), TOKENS[:, 1])
    expected = TOKENS[:, 2:].mean(axis=1)
    np.testing.assert_allclose(numpy(MeanPooling(2)(TOKENS)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mlp_dim", [24, None])
def test_attention_pooling_is_the_map_head_and_that_of_aim(mlp_dim):
    layer = AttentionPooling(4, mlp_dim, name="pooling")
    layer.build(TOKENS.shape)
    fill_random(layer)
    w = {weight.path: np.asarray(weight.numpy(), "float64") for weight in layer.weights}
    x = TOKENS.astype("float64")
    query, pairs = w["pooling/probe"][0, 0], x @ w["pooling/key_value/kernel"]
    if mlp_dim:
        query = query @ w["pooling/query/kernel"] + w["pooling/query/bias"]
        pairs = pairs + w["pooling/key_value/bias"]
    outputs = []
    for head in range(4):
        columns = slice(4 * head, 4 * head + 4)
        keys, values = pairs[..., :16][..., columns], pairs[..., 16:][..., columns]
        scores = reference.softmax(keys @ query[columns] / 2)  # (B, T)
        outputs.append(np.einsum("bt,btd->bd", scores, values))
    pooled = np.concatenate(outputs, -1) @ w["pooling/output/kernel"] + w["pooling/output/bias"]
    if mlp_dim:
        normed = reference.layer_norm(pooled, w["pooling/norm/gamma"], w["pooling/norm/beta"])
        pooled = pooled + reference.mlp(normed, w, "pooling/mlp", "tanh")
    np.testing.assert_allclose(numpy(layer(TOKENS)), pooled, rtol=0, atol=1e-5)


def test_attention_pooling_starts_as_the_official_one():
    layer = AttentionPooling(4, 24)
    layer.build((None, 5, 256))
    assert np.abs(numpy(layer.probe)).max() == pytest.approx((6 / 257) ** 0.5, rel=0.05)
    for dense in (layer.query, layer.key_value, layer.output_projection):
        assert np.abs(numpy(dense.kernel)).max() == pytest.approx((6 / 512) ** 0.5, rel=0.01)


def test_attention_pooling_refuses_heads_that_do_not_divide():
    with pytest.raises(ValueError, match=r"width=16, num_heads=3"):
        AttentionPooling(3, 24).build((None, 5, 16))
