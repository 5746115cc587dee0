"""Attention of a few tokens and many, without keys and values of the many: the same results."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.layers.prompts import CrossAttention, FewKeys, FewQueries

RNG = np.random.default_rng(0)
FEW, MANY = (RNG.normal(size=(2, n, 32)).astype("float32") for n in (3, 20))
OTHER_FEW, OTHER_MANY = (RNG.normal(size=x.shape).astype("float32") for x in (FEW, MANY))


def pair(kind, inputs):
    layers = CrossAttention(4, 16), kind(4, 16)
    for layer in layers:
        layer(*inputs)
    weights = [RNG.normal(0, 0.3, x.shape) for x in layers[0].weights]
    for layer in layers:
        layer.set_weights(weights)
    return layers


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [(FewQueries, (FEW, MANY, OTHER_MANY)), (FewKeys, (MANY, FEW, OTHER_FEW))],
)
def test_kernels_multiply_the_few_tokens(kind, inputs):
    direct, other = pair(kind, inputs)
    expected = np.asarray(direct(*inputs))
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(np.asarray(other(*inputs)), expected, atol=2e-6)
    symbolic = [keras.Input(x.shape[1:]) for x in inputs]
    model = keras.Model(symbolic, other(*symbolic))
    np.testing.assert_allclose(model.predict(list(inputs), verbose=0), expected, atol=2e-6)
    for layer in (direct, other):
        for dense in (*layer.projections, layer.output_projection):
            dense.quantize("int8")
    np.testing.assert_allclose(np.asarray(other(*inputs)), np.asarray(direct(*inputs)), atol=2e-6)
