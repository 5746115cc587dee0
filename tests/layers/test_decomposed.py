"""Attention with decomposed positions, in windows whose padding is attended to, in NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.costs import cost_of
from keras_vit.layers.decomposed import DecomposedPositions, PaddedWindowAttention

GRID, HEADS, WIDTH = (3, 5), 2, 8


def filled(layer, shape):
    layer.build(shape)
    random = np.random.default_rng(0)
    for weight in layer.weights:
        weight.assign(random.normal(0, 0.5, weight.shape))
    return layer


def reference(layer, tokens, grid):
    """Attention over all tokens of a grid, in float64, one query and one key at a time."""
    d = WIDTH // HEADS
    kernel, bias = (np.asarray(x, "float64") for x in (layer.qkv.kernel, layer.qkv.bias))
    queries, keys, values = np.split(tokens @ kernel + bias, 3, axis=-1)
    rows, columns = (np.asarray(x) for x in (layer.row_positions, layer.column_positions))
    places = [divmod(index, grid[1]) for index in range(len(tokens))]
    means = np.zeros((len(tokens), WIDTH))
    for head in range(HEADS):
        part = slice(head * d, (head + 1) * d)
        for q, (row, column) in enumerate(places):
            logits = [
                queries[q, part] @ (keys[k, part] * d**-0.5
                + rows[row - there[0] + grid[0] - 1] + columns[column - there[1] + grid[1] - 1])
                for k, there in enumerate(places)
            ]  # fmt: skip
            weights = np.exp(logits - np.max(logits))
            means[q, part] = weights / weights.sum() @ values[:, part]
    return means @ np.asarray(layer.output_projection.kernel) + np.asarray(
        layer.output_projection.bias
    )


def tokens_of(grid):
    return np.random.default_rng(1).normal(size=(2, grid[0] * grid[1], WIDTH))


def test_positions_by_row_and_column_are_those_of_the_equation():
    layer = filled(SelfAttention(HEADS, positions=DecomposedPositions(GRID)), (None, 15, WIDTH))
    tokens = tokens_of(GRID)
    expected = [reference(layer, image, GRID) for image in tokens]
    np.testing.assert_allclose(layer(tokens.astype("float32")), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [(2, 2), (4, 7)])  # the second is larger than the grid
def test_windows_attend_to_their_padding(window):
    layer = PaddedWindowAttention(HEADS, GRID, window, positions=DecomposedPositions(window))
    filled(layer, (None, 15, WIDTH))
    tokens = tokens_of(GRID)
    sides = [-(-side // step) * step for side, step in zip(GRID, window, strict=True)]
    padded = np.zeros((2, *sides, WIDTH))
    padded[:, : GRID[0], : GRID[1]] = tokens.reshape(2, *GRID, WIDTH)
    expected = np.zeros_like(padded)
    for row in range(0, sides[0], window[0]):
        for column in range(0, sides[1], window[1]):
            place = slice(row, row + window[0]), slice(column, column + window[1])
            for image in range(2):
                inside = padded[(image, *place)].reshape(-1, WIDTH)
                x = reference(layer, inside, window).reshape(*window, WIDTH)
                expected[(image, *place)] = x
    expected = expected[:, : GRID[0], : GRID[1]].reshape(2, 15, WIDTH)
    np.testing.assert_allclose(layer(tokens.astype("float32")), expected, rtol=0, atol=1e-5)


def test_costs_count_padding_and_positions():
    plain = SelfAttention(HEADS)
    plain.build((None, 6, WIDTH))
    layer = PaddedWindowAttention(HEADS, GRID, (2, 3), positions=DecomposedPositions((2, 3)))
    layer.build((None, 15, WIDTH))
    positions = 6 * WIDTH * (2 + 3)
    assert cost_of(layer, (1, 15, WIDTH)).macs == 4 * (
        cost_of(plain, (1, 6, WIDTH)).macs + positions
    )


def test_a_block_holds_it_in_its_configuration():
    positions = DecomposedPositions((2, 2))
    attention = PaddedWindowAttention(HEADS, GRID, 2, positions=positions, name="attention")
    block = TransformerBlock(HEADS, 16, attention=attention)
    again = TransformerBlock.from_config(block.get_config())
    again.build((None, 15, WIDTH))
    assert again.attention.positions == positions
    assert again.attention.get_config() == {**attention.get_config()}


def test_wrong_sizes_are_errors():
    with pytest.raises(ValueError, match=r"Positions of a grid of \(3, 5\) need 15 tokens"):
        SelfAttention(HEADS, positions=DecomposedPositions(GRID)).build((None, 9, WIDTH))
    with pytest.raises(ValueError, match=r"Windows need the grid of the patches\. Received: 9"):
        PaddedWindowAttention(HEADS, GRID, 2).build((None, 9, WIDTH))
    layer = filled(PaddedWindowAttention(HEADS, GRID, 2), (None, 15, WIDTH))
    with pytest.raises(ValueError, match="no attention weights between patches"):
        layer(keras.ops.ones((1, 15, WIDTH)), return_attention_scores=True)
