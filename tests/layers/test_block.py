"""Attention, MLP and the block they make."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_vit.checks import check_heads
from keras_vit.config import BlockOptions, RotaryPositions
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.causal import CausalAttention
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.relative import RelativeKeys
from tests import reference
from tests.checks import check_layer, quick
from tests.fixtures import fill_random, numpy

TOKENS = np.random.default_rng(7).normal(size=(2, 5, 16)).astype("float32")


def built(layer, seed=0):
    layer.build(TOKENS.shape)
    fill_random(layer, seed=seed)
    return layer, {w.path: np.asarray(w.numpy(), "float64") for w in layer.weights}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"positions": RelativeKeys()},
        {"qk_norm": True, "query_chunk_size": 2},
        {"qk_norm": True, "qk_norm_bias": True},
    ],
)
def test_attention_passes_check_layer(options):
    check_layer(SelfAttention(4, **options), (5, 16))


def test_layer_scale_passes_check_layer():
    check_layer(LayerScale(0.5), (5, 16))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gelu": "exact", "norm_epsilon": 1e-5},
        {"layer_scale": 0.1, "qk_norm": True},
        {"attention": SelfAttention(4, RelativeKeys())},
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


def test_relative_positions_add_a_key_for_every_distance():
    layer, w = built(SelfAttention(4, RelativeKeys(), name="attention"))
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
    first = numpy(layer(TOKENS, num_queries=2))
    np.testing.assert_allclose(first, numpy(layer(TOKENS))[:, :2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_queries_and_keys_are_normalised_per_head(bias):
    layer, w = built(SelfAttention(4, qk_norm=True, qk_norm_bias=bias, name="attention"))
    _, scores = layer(TOKENS, return_attention_scores=True)
    qkv = TOKENS.astype("float64") @ w["attention/qkv/kernel"] + w["attention/qkv/bias"]
    q, k = (qkv[..., 16 * i : 16 * i + 16].reshape(2, 5, 4, 4) for i in range(2))
    assert ("attention/key_norm/beta" in w) == bias
    q, k = (
        reference.layer_norm(
            x, w[f"attention/{part}_norm/gamma"], w.get(f"attention/{part}_norm/beta", 0)
        )
        for part, x in (("query", q), ("key", k))
    )
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


def test_attention_scores_of_a_block_leave_out_masked_tokens():
    block, tokens = TransformerBlock(4, 32), np.ones((1, 5, 16), "float32")
    block.build(tokens.shape)
    kept = np.array([True, True, False, True, False])[None, None]
    scores = numpy(block.attention_scores(tokens, attention_mask=kept))
    assert scores.shape == (1, 4, 5, 5) and (scores[..., ~kept[0, 0]] == 0).all()
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-6)
    assert block.attention_scores(tokens, num_queries=1).shape == (1, 4, 1, 5)


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


@pytest.mark.parametrize("options", [{"positions": RelativeKeys()}, {"rope": RotaryPositions()}])
def test_a_step_that_would_leave_something_out_is_refused(options):
    layer = CausalAttention(2, **options)
    layer.build((None, 4, 8))
    with pytest.raises(ValueError, match="Tokens are added one by one"):
        layer.step(np.zeros((1, 1, 8)), (np.zeros((1, 2, 4, 4)),) * 2, 0)


RATES = {"dropout_rate": 0.2, "attention_dropout_rate": 0.1, "stochastic_depth_rate": 0.3}


def steps(rematerialize, jit_compile):
    """Outputs, gradients and random states of two training steps."""
    keras.utils.set_random_seed(1)
    block = TransformerBlock(2, 32, rematerialize=rematerialize, **RATES)
    block.build((None, 5, 16))
    tokens = tf.constant(np.random.default_rng(0).normal(size=(3, 5, 16)), "float32")

    def step():
        with tf.GradientTape() as tape:
            tape.watch(tokens)
            outputs = block(tokens, training=True)
            loss = tf.reduce_sum(outputs**2)
        return outputs, tape.gradient(loss, [tokens, *(v.value for v in block.trainable_variables)])

    if jit_compile is not None:
        step = tf.function(step, jit_compile=jit_compile)
    return [(step(), [v.numpy() for v in block.non_trainable_variables]) for _ in range(2)]


@pytest.mark.parametrize(
    "jit_compile", quick([None, False, True], None, False), ids=["eager", "graph", "xla"]
)
def test_gradients_are_those_without_it(jit_compile):
    expected, received = steps(False, jit_compile), steps(True, jit_compile)
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-4), received, expected
    )
    (first, _), (second, states) = received
    assert np.abs(first[0] - second[0]).max() > 0.1  # the random numbers went on
    assert [state[1] for state in states] == [2, 2, 2, 2, 4]


def test_products_are_recomputed():
    def products(rematerialize):
        block = TransformerBlock(2, 32, rematerialize=rematerialize)
        block.build((None, 5, 16))

        @tf.function
        def forward(tokens):
            with tf.GradientTape() as tape:
                outputs = block(tokens, training=True)
            return tape.gradient(outputs, [v.value for v in block.trainable_variables])

        graph = forward.get_concrete_function(tf.TensorSpec((3, 5, 16))).graph
        return sum(
            operation.type in ("BatchMatMulV2", "MatMul") for operation in graph.get_operations()
        )

    assert products(True) > products(False) + 4  # its products are there twice


def test_inference_and_scores_do_without():
    block = TransformerBlock(2, 32, rematerialize=True)
    block.build((None, 5, 16))
    tokens = np.ones((1, 5, 16), "float32")
    outputs, scores = block(tokens, return_attention_scores=True, training=True)
    np.testing.assert_allclose(block(tokens), outputs, atol=1e-6)
    assert scores.shape == (1, 2, 5, 5)


@pytest.mark.parametrize("field", dataclasses.fields(BlockOptions), ids=lambda field: field.name)
def test_every_option_is_a_keyword_and_stands_in_the_docs(field):
    default = {"num_heads": 2, "mlp_dim": 8}.get(field.name, field.default)
    config = TransformerBlock(**{"num_heads": 2, "mlp_dim": 8, field.name: default}).get_config()
    assert config[field.name] == default
    page = pathlib.Path(__file__).parents[2] / "docs/configuration.md"
    assert f"`{field.name}`" in page.read_text().partition("## What excludes what")[0]


# Kinds of blocks that docs/architecture.md shows.
_PAGE = pathlib.Path(__file__).parents[2] / "docs/architecture.md"


@pytest.fixture(scope="module")
def shown():
    """What the code of the page defines."""
    names = {"keras": keras, "ops": ops, "np": np}
    names |= {"SelfAttention": SelfAttention, "TransformerBlock": TransformerBlock}
    for code in re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL):
        if "class " in code:
            exec(code, names)
    return names


def test_a_sink_takes_its_share_of_every_row(shown):
    layer, w = built(shown["SinkAttention"](4, name="attention"))
    x = TOKENS.astype("float64")
    qkv = x @ w["attention/qkv/kernel"] + w["attention/qkv/bias"]
    q, k, v = (qkv[..., 16 * i : 16 * i + 16].reshape(2, 5, 4, 4) for i in range(3))
    odds = np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) / 2)
    sinks = np.exp(w["attention/sinks"])[:, None, None]
    shares = odds / (odds.sum(-1, keepdims=True) + sinks)
    expected = np.einsum("bhqk,bkhd->bqhd", shares, v).reshape(2, 5, 16)
    expected = expected @ w["attention/output/kernel"] + w["attention/output/bias"]
    np.testing.assert_allclose(numpy(layer(TOKENS)), expected, rtol=0, atol=1e-5)
    check_layer(TransformerBlock(4, 24, attention=shown["SinkAttention"](4)), (5, 16))


def test_class_attention_leaves_the_patches_as_they_are(shown):
    layer, w = built(shown["ClassBlock"](4, 24, name="block"))
    expected = reference.block(TOKENS.astype("float64"), w, "block", 4, "tanh")
    received = numpy(layer(TOKENS))
    np.testing.assert_allclose(received[:, :1], expected[:, :1], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(received[:, 1:], TOKENS[:, 1:])
    check_layer(shown["ClassBlock"](4, 24), (5, 16))
