"""Learned tokens, their positions, and patches that training leaves out."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.layers.patches import PatchDropout
from keras_vit.layers.tokens import AddPositionEmbedding, ClassToken
from keras_vit.resize import sincos_2d
from tests.checks import check_config, check_layer
from tests.fixtures import numpy


@pytest.mark.parametrize("options", [{}, {"num_tokens": 4, "insert_at": 1, "stddev": 0.1}])
def test_class_token_passes_check_layer(options):
    check_layer(ClassToken(**options), (5, 8), (5 + options.get("num_tokens", 1), 8))


def test_class_token_is_first_and_starts_at_zero():
    tokens = np.ones((2, 3, 4), "float32")
    out = numpy(ClassToken()(tokens))
    assert not out[:, 0].any()
    np.testing.assert_array_equal(out[:, 1:], tokens)


def test_tokens_are_inserted_where_asked():
    tokens = np.arange(24, dtype="float32").reshape(2, 3, 4)
    out = numpy(ClassToken(2, insert_at=1, stddev=0.5)(tokens))
    np.testing.assert_array_equal(out[:, [0, 3, 4]], tokens)
    np.testing.assert_array_equal(out[0, 1:3], out[1, 1:3])


def test_class_token_refuses_a_place_that_is_not_there():
    with pytest.raises(ValueError, match=r"0 to 3 of 3 tokens. Received: insert_at=4"):
        ClassToken(insert_at=4).build((None, 3, 8))


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos_2d"])
@pytest.mark.parametrize("num_prefix_tokens", [0, 1, 2])
def test_positions_pass_check_layer(kind, num_prefix_tokens):
    layer = AddPositionEmbedding((2, 3), num_prefix_tokens, kind)
    check_layer(layer, (num_prefix_tokens + 6, 8))


def test_learned_positions_start_with_the_official_deviation():
    layer = AddPositionEmbedding((14, 14))
    layer.build((None, 197, 768))
    assert numpy(layer.embedding).std() == pytest.approx(0.02, rel=0.02)


def test_positions_of_two_halves_are_the_column_then_the_row():
    layer = AddPositionEmbedding((2, 3), 1, "learned_2d")
    layer.build((None, 7, 8))
    table = numpy(layer.table())[0]
    columns, rows = numpy(layer.columns)[0], numpy(layer.rows)[0]
    np.testing.assert_array_equal(table[0], numpy(layer.prefix)[0, 0])
    for place in range(6):
        expected = np.concatenate([columns[place % 3], rows[place // 3]])
        np.testing.assert_array_equal(table[1 + place], expected)


def test_fixed_positions_are_those_of_big_vision():
    # Column 1, row 0 of a 2 x 2 grid.
    expected = [0.841471, 1e-4, 0.540302, 1, 0, 0, 1, 1]
    np.testing.assert_allclose(sincos_2d((2, 2), 8)[1], expected, rtol=0, atol=1e-6)


def test_fixed_positions_are_no_weights_and_leave_prefix_tokens_alone():
    layer = AddPositionEmbedding((2, 2), 1, "sincos_2d")
    out = numpy(layer(np.zeros((1, 5, 8), "float32")))[0]
    assert not layer.weights
    assert not out[0].any()
    np.testing.assert_array_equal(out[1:], sincos_2d((2, 2), 8))


def test_positions_name_the_tokens_that_they_expect():
    with pytest.raises(ValueError, match=r"2 x 3 patches and 1 prefix tokens make 7 tokens.*6"):
        AddPositionEmbedding((2, 3)).build((None, 6, 8))
    with pytest.raises(ValueError, match=r"one of 'learned', .*'sincos_2d'\. Received: 'rope'"):
        AddPositionEmbedding((2, 3), kind="rope")
    with pytest.raises(ValueError, match=r"multiple of 4 from 8 on. Received: width=6"):
        sincos_2d((2, 2), 6)


def test_patch_dropout_keeps_prefix_and_some_patches_in_training():
    layer = PatchDropout(0.5, num_prefix_tokens=2, seed=1)
    check_config(layer)
    tokens = np.arange(2 * 10, dtype="float32").reshape(2, 10, 1)
    np.testing.assert_array_equal(numpy(layer(tokens)), tokens)
    out = numpy(layer(tokens, training=True))
    assert out.shape == (2, 6, 1)
    np.testing.assert_array_equal(out[:, :2], tokens[:, :2])
    kept = [set(row[2:, 0]) for row in out]
    assert all(len(row) == 4 for row in kept)
    assert all(row <= set(image[2:, 0]) for row, image in zip(kept, tokens, strict=True))
    assert {value - 10 for value in kept[1]} != kept[0]  # every image its own


def test_patch_dropout_keeps_every_patch_equally_often():
    layer = PatchDropout(0.75, num_prefix_tokens=0, seed=0)
    tokens = np.tile(np.arange(8, dtype="float32").reshape(1, 8, 1), (2000, 1, 1))
    counts = np.bincount(numpy(layer(tokens, training=True)).astype(int).ravel(), minlength=8)
    np.testing.assert_allclose(counts / 2000, 0.25, atol=0.04)  # four standard deviations


def test_patch_dropout_refuses_rates_out_of_range():
    with pytest.raises(ValueError, match=r"`rate` must be a number in \[0, 1\)"):
        PatchDropout(1.0)
