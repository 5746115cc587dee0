"""Token merging: the paper's, one token at a time, and equal tokens that merge without a trace."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.merging import MergingBlock, TokenMerging
from keras_vit.layers.pooling import AttentionPooling, MeanPooling
from tests import reference_merging
from tests.checks import check_config
from tests.fixtures import fill_random, numpy

CASES = [(2, 1, 9), (3, 0, 9), (4, 0, 9), (1, 2, 10), (5, 3, 13), (9, 1, 7)]


def draw(num_tokens, seed=0):
    """Tokens of two images, keys of three heads, and sizes."""
    random = np.random.default_rng(seed)
    tokens = random.normal(size=(2, num_tokens, 6)).astype("float32")
    keys = random.normal(size=(2, 3, num_tokens, 4)).astype("float32")
    return tokens, keys, random.integers(1, 9, (2, num_tokens)).astype("int32")


def build_block(tokens, **options):
    kind = MergingBlock if "num_merged_tokens" in options else TransformerBlock
    block = kind(4, 24, **options)
    block.build(tokens.shape)
    fill_random(block)
    return block


@pytest.mark.parametrize(("count", "prefix", "num_tokens"), CASES)
@pytest.mark.parametrize("has_sizes", [False, True])
def test_merging_is_the_papers(count, prefix, num_tokens, has_sizes):
    tokens, keys, sizes = draw(num_tokens)
    layer = TokenMerging(count, prefix)
    merged = min(count, (num_tokens - prefix) // 2)
    found, found_sizes = layer(tokens, keys, sizes if has_sizes else None)
    assert found.shape == (2, num_tokens - merged, 6) and found_sizes.dtype == "int32"
    for image in range(2):
        counts = sizes[image] if has_sizes else np.ones(num_tokens, int)
        expected = reference_merging.merge(
            tokens[image].astype("float64"), keys[image].mean(0), counts, merged, prefix
        )
        np.testing.assert_allclose(found[image], expected[0], rtol=0, atol=1e-6)
        np.testing.assert_array_equal(found_sizes[image], expected[1])
    symbolic = layer(*(keras.KerasTensor((None, *x.shape[1:])) for x in (tokens, keys)))
    assert [x.shape[1:] for x in symbolic] == [found.shape[1:], found_sizes.shape[1:]]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graphs_merge_the_same(jit_compile):
    tokens, keys, sizes = draw(12)
    layer = TokenMerging(3, 1)
    compiled = tf.function(layer, jit_compile=jit_compile)
    for found, expected in zip(
        compiled(tokens, keys, sizes), layer(tokens, keys, sizes), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_a_block_that_merges_is_the_papers():
    random = np.random.default_rng(0)
    tokens, sizes = random.normal(size=(2, 11, 16)), random.integers(1, 9, (2, 11))
    block = build_block(tokens, num_merged_tokens=3, num_prefix_tokens=1, name="block_0")
    w = {variable.path: numpy(variable).astype("float64") for variable in block.weights}
    expected, expected_sizes = reference_merging.block(tokens, sizes, w, "block_0", 4, 3, 1)
    out, out_sizes, scores = block(
        tokens.astype("float32"), sizes=sizes.astype("int32"), return_attention_scores=True
    )
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(out_sizes, expected_sizes)
    assert scores.shape == (2, 4, 11, 11)
    np.testing.assert_allclose(numpy(scores).sum(-1), 1, rtol=0, atol=1e-6)
    ignored = block(tokens.astype("float32"))[0]  # sizes count
    assert np.abs(numpy(ignored) - expected).max() > 1e-3


@pytest.mark.parametrize("pooling", [MeanPooling(1), AttentionPooling(4, 24)])
def test_tokens_that_are_alike_merge_without_a_trace(pooling):
    """One or two of each patch: what is read in the end is as if none had merged."""
    random = np.random.default_rng(0)
    patches = np.repeat(random.normal(size=(2, 6, 16)), [2, 2, 2, 2, 1, 1], axis=1)
    tokens = np.concatenate([random.normal(size=(2, 1, 16)), patches], axis=1).astype("float32")
    plain = build_block(tokens)
    expected = plain(plain(tokens))
    merged, sizes = build_block(tokens, num_merged_tokens=4, num_prefix_tokens=1)(tokens)
    assert sorted(np.asarray(sizes)[0]) == [1, 1, 1, 2, 2, 2, 2]
    # Without a patch that could be merged, the next block only counts sizes.
    block = build_block(merged, num_merged_tokens=1, num_prefix_tokens=7)
    out, sizes = block(merged, sizes=sizes)
    np.testing.assert_allclose(out[:, 0], expected[:, 0], rtol=0, atol=1e-5)
    pooling.build(tokens.shape)
    fill_random(pooling)
    whole = pooling(expected)
    np.testing.assert_allclose(pooling(out, sizes=sizes), whole, rtol=0, atol=1e-5)
    assert np.abs(numpy(pooling(out)) - numpy(whole)).max() > 1e-3  # sizes count


def test_half_precision_merges_the_same_tokens():
    tokens, keys, sizes = draw(12)
    expected, expected_sizes = TokenMerging(4, 1)(tokens, keys, sizes)
    for policy, tolerance in (("mixed_bfloat16", 2e-2), ("mixed_float16", 2e-3)):
        layer = TokenMerging(4, 1, dtype=policy)
        found, found_sizes = layer(tokens, keys, 100 * sizes)
        assert found.dtype == policy.removeprefix("mixed_")
        np.testing.assert_array_equal(found_sizes, 100 * expected_sizes)
        np.testing.assert_allclose(
            numpy(keras.ops.cast(found, "float32")), expected, rtol=0, atol=tolerance
        )


def test_configurations_survive_a_round_trip():
    check_config(TokenMerging(3, 2))
    check_config(MergingBlock(4, 24, num_merged_tokens=3, num_prefix_tokens=2))


def test_arguments_that_cannot_be():
    with pytest.raises(ValueError, match="`num_merged_tokens` must be a positive integer"):
        TokenMerging(0)
    with pytest.raises(ValueError, match=r"hands on their sizes.*rematerialize=True"):
        MergingBlock(4, 24, num_merged_tokens=3, rematerialize=True)
