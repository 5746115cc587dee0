"""Tests the attentive head on frozen tokens."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.evaluate.probes import cross_validate, fit_head
from tests.evaluate.test_probes import clusters, softmax


def test_the_attentive_head_finds_a_token_and_is_the_forward_pass_in_numpy(monkeypatch):
    from keras_vit.evaluate import attentive

    monkeypatch.setattr(attentive, "STEPS", 60)
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 3
    x = rng.normal(size=(48, 5, 8))
    x[np.arange(48), rng.integers(0, 5, 48), labels] += 6  # one token tells, anywhere
    x = (x * np.linspace(0.1, 10, 8) + 5).astype("float32")
    head = fit_head("attentive", x, labels, 3, 1e-2)
    again = fit_head("attentive", x, labels, 3, 1e-2)
    scores = keras.ops.convert_to_numpy(head(x))
    np.testing.assert_array_equal(scores, keras.ops.convert_to_numpy(again(x)))
    assert (scores.argmax(axis=1) == labels).mean() > 0.9
    weights = {v.path.partition("/")[2]: np.asarray(v, "float64") for v in head.variables}
    w = lambda name: weights[next(k for k in weights if k.endswith(name))]  # noqa: E731
    query = w("probe").reshape(1, 8) @ w("query/kernel") + w("query/bias")
    keys, values = np.split(x @ w("key_value/kernel") + w("key_value/bias"), 2, axis=-1)
    y = (softmax(keys @ query[0] / 8**0.5)[..., None] * values).sum(axis=1)  # one head
    y = y @ w("pooling/output/kernel") + w("pooling/output/bias")
    z = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + 1e-6)
    z = (z * w("gamma") + w("beta")) @ w("hidden/kernel") + w("hidden/bias")
    z = 0.5 * z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))
    y = y + z @ w("mlp/output/kernel") + w("mlp/output/bias")
    kernel, bias = head.layers[-1].get_weights()
    np.testing.assert_allclose(scores, y @ kernel + bias, rtol=0, atol=2e-5)


def test_vectors_are_no_tokens():
    x, labels = clusters()
    with pytest.raises(ValueError, match=r"takes features of shape \(n, T, D\)"):
        cross_validate("attentive", x, labels, 3)
