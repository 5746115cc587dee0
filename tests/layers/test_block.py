"""Attention, MLP and the block they make."""

from __future__ import annotations

import itertools
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from keras_vit.checks import check_heads
from keras_vit.layers import attention, fused_attention
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import LayerScale, TransformerBlock
from keras_vit.layers.mlp import MLP, gelu
from keras_vit.runtime.processors import describe_processor
from tests import reference
from tests.checks import check_layer
from tests.fixtures import fill_random

TOKENS = np.random.default_rng(7).normal(size=(2, 5, 16)).astype("float32")


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def built(layer, seed=0):
    layer.build(TOKENS.shape)
    fill_random(layer, seed=seed)
    return layer, {w.path: np.asarray(w.numpy(), "float64") for w in layer.weights}


@pytest.mark.parametrize("form", ["tanh", "exact"])
def test_gelu_is_the_form_it_says(form):
    x = np.linspace(-6, 6, 1001)
    value = numpy(gelu(keras.ops.convert_to_tensor(x, "float32"), form))
    np.testing.assert_allclose(value, reference.gelu(x, form), rtol=0, atol=1e-6)
    other = reference.gelu(x, {"tanh": "exact", "exact": "tanh"}[form])
    assert np.abs(value - other).max() == pytest.approx(4.73e-4, rel=0.01)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"relative_positions": True},
        {"qk_norm": True, "query_chunk_size": 2},
    ],
)
def test_attention_passes_check_layer(options):
    check_layer(SelfAttention(4, **options), (5, 16))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("form", ["tanh", "exact"])
def test_onednn_joins_product_bias_and_gelu(form, policy):
    if os.environ["TF_ENABLE_ONEDNN_OPTS"] != "1":
        pytest.skip("oneDNN is off")
    units = set(describe_processor().split())
    if policy == "mixed_bfloat16" and not units & {"avx512f", "avx_ne_convert"}:
        pytest.skip("oneDNN has no bfloat16 on this processor")
    layer, _ = built(MLP(24, gelu=form, dtype=policy, name="mlp"))
    context.enable_run_metadata()
    tf.function(layer)(TOKENS)
    graphs = context.export_run_metadata().partition_graphs
    context.disable_run_metadata()
    found = [tuple(node.attr["fused_ops"].list.s) for graph in graphs for node in graph.node]
    gelu = {"tanh": b"GeluApproximate", "exact": b"GeluExact"}[form]
    assert found.count((b"BiasAdd", gelu)) == found.count((b"BiasAdd",)) == 1


@pytest.mark.parametrize("options", [{}, {"gelu": "exact"}])
def test_mlp_passes_check_layer(options):
    check_layer(MLP(24, **options), (5, 16))


def test_layer_scale_passes_check_layer():
    check_layer(LayerScale(0.5), (5, 16))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gelu": "exact", "norm_epsilon": 1e-5},
        {"layer_scale": 0.1, "qk_norm": True},
        {"relative_positions": True},
    ],
)
def test_block_passes_check_layer(options):
    check_layer(TransformerBlock(4, 24, **options), (5, 16))


def test_attention_is_the_papers():
    layer, w = built(SelfAttention(4, name="attention"))
    expected, expected_scores = reference.attention(TOKENS.astype("float64"), w, "attention", 4)
    out, scores = layer(TOKENS, return_attention_scores=True)
    np.testing.assert_allclose(numpy(out), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(numpy(scores), expected_scores, rtol=0, atol=1e-6)
    np.testing.assert_allclose(numpy(scores).sum(-1), 1, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(numpy(layer(TOKENS)), numpy(out))


def outputs_and_gradients(layer):
    tokens = tf.constant(TOKENS)
    weights = [weight.value for weight in layer.trainable_weights]
    with tf.GradientTape() as tape:
        tape.watch(tokens)
        out = layer(tokens)
        loss = tf.reduce_sum(out * tf.reshape(tf.range(160.0), (2, 5, 16)))
    return [out, *tape.gradient(loss, [tokens, *weights])]


@pytest.mark.parametrize("way", ["fused", "chunks of 1", "chunks of 2"])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"relative_positions": True}], ids=str)
def test_fused_and_chunked_attention_equal_the_papers(way, options, monkeypatch):
    expected = outputs_and_gradients(built(SelfAttention(4, **options))[0])
    monkeypatch.setattr(attention, "fusion_pays", lambda queries: way == "fused")
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
    assert len(products) == (way == "fused" and "relative_positions" not in options)
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
        return kernel(queries, *args, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", counted)
    parts = np.random.default_rng(0).normal(size=(3, 2, num_tokens, 3, 8)).astype("float32")

    def plain(queries, keys, values):  # (B, T, A, d)
        logits = jax.numpy.einsum("bqad,bkad->baqk", queries, keys) * 8**-0.5
        return jax.numpy.einsum("baqk,bkad->bqad", jax.nn.softmax(logits), values)

    def results(function):
        def total(parts):
            return (function(*parts) ** 3).sum()

        return [function(*parts), *jax.grad(total)(tuple(parts))]

    received = results(lambda *parts: fused_attention._cudnn_attention(*parts, kernel="xla"))
    for value, expected in zip(received, results(plain), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=2e-5)
    assert set(counts) == {num_tokens + num_tokens % 2}
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


def test_relative_positions_add_a_key_for_every_distance():
    layer, w = built(SelfAttention(4, relative_positions=True, name="attention"))
    _, scores = layer(TOKENS, return_attention_scores=True)
    x = TOKENS.astype("float64")
    qkv = x @ w["attention/qkv/kernel"] + w["attention/qkv/bias"]
    distances = w["attention/relative_keys"].T  # (2 T - 1, d)
    for head in range(4):
        columns = slice(4 * head, 4 * head + 4)
        q, k = qkv[..., :16][..., columns], qkv[..., 16:32][..., columns]
        for query in range(5):
            keys = k + distances[[key - query + 4 for key in range(5)]]  # content and distance
            logits = np.einsum("bd,bkd->bk", q[:, query], keys) / 2
            expected = reference.softmax(logits)
            np.testing.assert_allclose(numpy(scores)[:, head, query], expected, rtol=0, atol=1e-6)


def test_queries_and_keys_are_normalised_per_head():
    layer, w = built(SelfAttention(4, qk_norm=True, name="attention"))
    _, scores = layer(TOKENS, return_attention_scores=True)
    qkv = TOKENS.astype("float64") @ w["attention/qkv/kernel"] + w["attention/qkv/bias"]
    q, k = (qkv[..., 16 * i : 16 * i + 16].reshape(2, 5, 4, 4) for i in range(2))
    q = reference.layer_norm(q, w["attention/query_norm/gamma"], 0)
    k = reference.layer_norm(k, w["attention/key_norm/gamma"], 0)
    expected = reference.softmax(np.einsum("bqhd,bkhd->bhqk", q, k) / 2)
    np.testing.assert_allclose(numpy(scores), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["tanh", "exact"])
def test_block_is_the_papers(form):
    layer, w = built(TransformerBlock(4, 24, gelu=form, name="block"))
    expected = reference.block(TOKENS.astype("float64"), w, "block", 4, form)
    np.testing.assert_allclose(numpy(layer(TOKENS)), expected, rtol=0, atol=1e-5)
    out, scores = layer(TOKENS, return_attention_scores=True)
    np.testing.assert_allclose(numpy(out), expected, rtol=0, atol=1e-5)
    assert scores.shape == (2, 4, 5, 5)


def test_layer_scale_multiplies_each_branch():
    layer, _ = built(TransformerBlock(4, 24, layer_scale=1e-4))
    layer.attention_scale.gamma.assign(np.zeros(16))
    layer.mlp_scale.gamma.assign(np.zeros(16))
    np.testing.assert_array_equal(numpy(layer(TOKENS)), TOKENS)
    fresh = TransformerBlock(4, 24, layer_scale=1e-4)
    fresh.build(TOKENS.shape)
    np.testing.assert_allclose(numpy(fresh.mlp_scale.gamma), 1e-4)


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean():
    layer, _ = built(TransformerBlock(4, 24, stochastic_depth_rate=0.5))
    tokens = np.tile(TOKENS[:1], (4000, 1, 1))
    branch = numpy(layer.attention(layer.attention_norm(TOKENS[:1])))[0]
    layer.mlp.output_projection.kernel.assign(np.zeros((24, 16)))
    layer.mlp.output_projection.bias.assign(np.zeros(16))
    added = numpy(layer(tokens, training=True)) - tokens
    dropped = np.abs(added).max(axis=(1, 2)) == 0
    assert dropped.mean() == pytest.approx(0.5, abs=0.04)  # five standard deviations
    kept = np.broadcast_to(2 * branch, added[~dropped].shape)
    np.testing.assert_allclose(added[~dropped], kept, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(numpy(layer(tokens)), numpy(layer(tokens)))


@pytest.mark.parametrize("rate", ["dropout_rate", "attention_dropout_rate"])
def test_dropout_is_active_only_in_training(rate):
    layer, _ = built(TransformerBlock(4, 24, **{rate: 0.5}))
    assert np.abs(numpy(layer(TOKENS, training=True)) - numpy(layer(TOKENS))).max() > 0.01
    np.testing.assert_array_equal(numpy(layer(TOKENS)), numpy(layer(TOKENS, training=False)))


def test_dropout_is_after_every_dense_layer_but_queries_keys_and_values():
    # Four decisions in a block that sees two of them in each branch: with the MLP's last kernel
    # and bias at zero, only the attention's own dropout is left to see.
    layer, _ = built(TransformerBlock(4, 24, dropout_rate=0.5))
    layer.mlp.output_projection.kernel.assign(np.zeros((24, 16)))
    layer.mlp.output_projection.bias.assign(np.zeros(16))
    branch = numpy(layer.attention(layer.attention_norm(TOKENS)))
    added = numpy(layer(TOKENS, training=True)) - TOKENS
    is_dropped = np.abs(added) < 1e-7
    assert 0.3 < is_dropped.mean() < 0.7
    np.testing.assert_allclose(added[~is_dropped], 2 * branch[~is_dropped], rtol=0, atol=1e-5)


def test_kernels_start_as_the_official_ones():
    layer = TransformerBlock(4, 512)
    layer.build((None, 5, 128))
    assert np.abs(numpy(layer.attention.qkv.kernel)).max() == pytest.approx(
        (6 / 256) ** 0.5, rel=0.01
    )
    assert np.abs(numpy(layer.attention.output_projection.kernel)).max() == pytest.approx(
        (6 / 256) ** 0.5, rel=0.01
    )
    for dense in (layer.mlp.hidden, layer.mlp.output_projection):
        assert np.abs(numpy(dense.kernel)).max() == pytest.approx((6 / 640) ** 0.5, rel=0.01)
        assert 0 < np.abs(numpy(dense.bias)).max() < 1e-5
    assert not numpy(layer.attention.qkv.bias).any()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_one_function_serves_every_batch_size(jit_compile):
    layer, _ = built(TransformerBlock(4, 24))
    signature = [tf.TensorSpec((None, 5, 16))]
    compiled = tf.function(layer, jit_compile=jit_compile, input_signature=signature)
    for batch in (1, 2):
        expected = numpy(layer(TOKENS[:batch]))
        np.testing.assert_allclose(compiled(TOKENS[:batch]), expected, rtol=0, atol=1e-5)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match=r"width=16, num_heads=5. The nearest that do: 2, 4, 8"):
        SelfAttention(5).build((None, 5, 16))
    with pytest.raises(ValueError, match=r"width=1000000000001, num_heads=7.* do: 1, 73, 137"):
        check_heads(10**12 + 1, 7)
    with pytest.raises(ValueError, match=r"num_heads=1000.* do: 32, 48, 96"):
        check_heads(96, 1000)
    with pytest.raises(ValueError, match=r"The nearest that do: 1\.$"):
        check_heads(2**127 - 1, 10**30)  # a prime
    with pytest.raises(ValueError, match=r"`num_heads` must be a positive integer"):
        TransformerBlock(0, 24)
    with pytest.raises(ValueError, match=r"`dropout_rate` must be a number in \[0, 1\)"):
        TransformerBlock(4, 24, dropout_rate=1)
    with pytest.raises(ValueError, match=r"no option `qk_nrm`. Did you mean qk_norm"):
        TransformerBlock(4, 24, qk_nrm=True)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_symbolic_outputs_are_those_of_the_call(policy):
    block = TransformerBlock(4, 64, dtype=policy)
    symbolic = block(keras.Input((5, 16)), return_attention_scores=True)
    computed = block(TOKENS, return_attention_scores=True)
    for promised, kept in zip(symbolic, computed, strict=True):
        assert promised.shape == (None, *kept.shape[1:])
        assert promised.dtype == keras.backend.standardize_dtype(kept.dtype)
    assert block(keras.Input((5, 16))).shape == (None, 5, 16)


@pytest.mark.parametrize("options", [{}, {"post_norm": True}, {"relative_positions": True}])
def test_a_step_that_would_leave_something_out_is_refused(options):
    block = TransformerBlock(2, 8, causal=bool(options), **options)
    block.build((None, 4, 8))
    with pytest.raises(ValueError, match="Tokens are added one by one"):
        block.step(np.zeros((1, 1, 8)), (np.zeros((1, 2, 4, 4)),) * 2, 0)
