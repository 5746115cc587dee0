"""Fused attention and attention in chunks of queries."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers import attention_kernels, fused_attention
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.relative import RelativeKeys
from tests.layers.test_block import TOKENS, built


def outputs_and_gradients(layer):
    tokens = tf.constant(TOKENS)
    weights = [weight.value for weight in layer.trainable_weights]
    with tf.GradientTape() as tape:
        tape.watch(tokens)
        out = layer(tokens)
        loss = tf.reduce_sum(out * tf.reshape(tf.range(160.0), (2, 5, 16)))
    return [out, *tape.gradient(loss, [tokens, *weights])]


@pytest.mark.parametrize("way", ["fused", "chunks of 1", "chunks of 2"])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"positions": RelativeKeys()}], ids=str)
def test_fused_and_chunked_attention_equal_the_papers(way, options, monkeypatch):
    expected = outputs_and_gradients(built(SelfAttention(4, **options))[0])
    monkeypatch.setattr(attention_kernels, "fusion_pays", lambda queries: way == "fused")
    size = None if way == "fused" else int(way[-1])
    products = []
    original = keras.ops.dot_product_attention
    monkeypatch.setattr(
        fused_attention.ops,
        "dot_product_attention",
        lambda *args: products.append(args) or original(*args),
    )
    layer = built(SelfAttention(4, query_chunk_size=size, **options))[0]
    for received, value in zip(outputs_and_gradients(layer), expected, strict=True):
        scale = np.abs(value).max()
        np.testing.assert_allclose(received / scale, value / scale, rtol=0, atol=2e-6)
    assert len(products) == (way == "fused" and "positions" not in options)
    layer(TOKENS, return_attention_scores=True)
    assert len(products) <= 1  # scores need the product itself


@pytest.mark.slow
@pytest.mark.parametrize("num_tokens", [4, 5])
def test_cudnn_gets_an_even_number_of_tokens_and_the_numbers_stay(num_tokens, monkeypatch):
    # By XLA's kernel of the same function of JAX: there is no cuDNN without a GPU.
    jax = pytest.importorskip("jax")
    kernel, counts = jax.nn.dot_product_attention, []

    def counted(queries, *args, **options):
        counts.append(queries.shape[1])
        return kernel(queries, *args, **{**options, "implementation": "xla"})

    monkeypatch.setattr(jax.nn, "dot_product_attention", counted)
    parts = np.random.default_rng(0).normal(size=(3, 2, num_tokens, 3, 8)).astype("float32")

    def plain(queries, keys, values):  # (B, T, A, d)
        logits = jax.numpy.einsum("bqad,bkad->baqk", queries, keys) * 8**-0.5
        return jax.numpy.einsum("baqk,bkad->bqad", jax.nn.softmax(logits), values)

    def results(function):
        def total(parts):
            return (function(*parts) ** 3).sum()

        return [function(*parts), *jax.grad(total)(tuple(parts))]

    received = results(lambda *parts: fused_attention._cudnn_attention(*parts))
    for value, expected in zip(received, results(plain), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=2e-5)
    assert set(counts) == {num_tokens + num_tokens % 2}
    monkeypatch.undo()
    assert not fused_attention._cudnn_takes(num_tokens, 3, 8, "bfloat16")  # on a processor


def test_a_chunk_of_queries_waits_for_the_one_before():
    layer = built(SelfAttention(4, query_chunk_size=2))[0]
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec((None, 5, 16))).graph
    softmaxes = [op for op in graph.get_operations() if op.type == "Softmax"]
    assert len(softmaxes) == 3
    for first, second in itertools.pairwise(softmaxes):
        before, found = [second], set()
        while before:
            op = before.pop()
            inputs = {x.op.name: x.op for x in op.inputs} | {x.name: x for x in op.control_inputs}
            before += [value for name, value in inputs.items() if name not in found]
            found |= inputs.keys()
        assert first.name in found
