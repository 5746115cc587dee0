"""Attention in windows: the same as attention to all tokens with the other keys left out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import keras_vit
from keras_vit.config import RotaryPositions
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.relative import RelativeKeys
from keras_vit.layers.rotary import RotaryTable
from keras_vit.layers.windows import WindowAttention, Windows
from keras_vit.models import feature_maps, resize_model
from tests.checks import check_layer
from tests.fixtures import fill_random, images_for, tiny_config

RNG = np.random.default_rng(0)
GRIDS = [((4, 6), (2, 3), 0), ((4, 6), (2, 2), 3), ((5, 7), (3, 4), 2), ((5, 7), (14, 2), 1)]


@pytest.mark.parametrize(("grid", "size", "prefix"), GRIDS)
def test_windows_hold_every_patch_once(grid, size, prefix):
    windows = Windows(grid, size, prefix)
    tokens = prefix + grid[0] * grid[1]
    x = RNG.normal(size=(2, 3, tokens, 4)).astype("float32")
    np.testing.assert_array_equal(windows.join(windows.split(x[:, :, prefix:])), x[:, :, prefix:])
    inside = np.asarray(windows.around(x))
    beyond = windows.outside()
    assert inside.shape[0] == 2 * windows.number
    if beyond is not None:
        left_out = np.tile(beyond, (2, 1))
        assert (inside.transpose(0, 2, 1, 3)[left_out] == 0).all()
        assert (~beyond[:, prefix:]).sum() == grid[0] * grid[1]
    assert windows.apart().sum(1)[:prefix].tolist() == [0] * prefix


@pytest.mark.parametrize("rope", [None, RotaryPositions("centered", 100.0, interleaved=False)])
@pytest.mark.parametrize(("grid", "size", "prefix"), GRIDS)
def test_attention_leaves_other_windows_out(grid, size, prefix, rope):
    tokens = RNG.normal(size=(2, prefix + grid[0] * grid[1], 16)).astype("float32")
    given = {} if rope is None else {"rotation": RotaryTable(rope, 8, grid, prefix)(tokens)}
    layer = WindowAttention(2, grid, size, prefix, rope=rope)
    layer.build(tokens.shape)
    fill_random(layer, 0.5)
    found = layer(tokens, **given)
    expected, scores = layer(tokens, return_attention_scores=True, **given)  # of all pairs, masked
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    scores = np.asarray(scores)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    apart = Windows(grid, size, prefix).apart()
    assert (scores[:, :, apart] == 0).all() and (scores[:, :, ~apart] > 0).all()
    whole = SelfAttention(2, rope=rope)
    whole.build(tokens.shape)
    whole.set_weights(layer.get_weights())
    assert np.abs(whole(tokens, **given) - expected).max() > 1e-3
    covering = WindowAttention(2, grid, 99, prefix, rope=rope)
    covering.build(tokens.shape)
    covering.set_weights(layer.get_weights())
    np.testing.assert_allclose(covering(tokens, **given), whole(tokens, **given), rtol=0, atol=1e-5)


def test_the_layer_is_a_keras_layer():
    check_layer(WindowAttention(2, (3, 4), (2, 3), num_prefix_tokens=1), (13, 8))


def test_a_model_has_global_blocks_and_the_same_weights():
    config = tiny_config(depth=4, patch_size=4, image_size=(32, 48), window_size=4)
    assert [config.window_of(index) for index in range(4)] == [None] * 4  # quarters of one block
    config = dataclasses.replace(config, global_blocks=[3, 1])
    assert config.global_blocks == (1, 3)
    model = keras_vit.build_vit(config)
    fill_random(model)
    attentions = [model.get_layer(f"block_{index}").attention for index in range(4)]
    sizes = [x.window_size if isinstance(x, WindowAttention) else None for x in attentions]
    assert sizes == [(4, 4), None, (4, 4), None]
    plain = keras_vit.build_vit(dataclasses.replace(config, window_size=None, global_blocks=None))
    assert [w.path for w in model.weights] == [w.path for w in plain.weights]
    plain.set_weights(model.get_weights())
    images = images_for(model)
    assert np.abs(model(images) - plain(images)).max() > 1e-3
    small, covered = resize_model(plain, 16), resize_model(model, 16)
    np.testing.assert_allclose(covered(images[:, :16, :16]), small(images[:, :16, :16]), atol=1e-4)
    assert feature_maps(model, 2).output["block_2"].shape[1:3] == (8, 12)


def test_the_cost_of_windows_is_counted():
    config = keras_vit.find_config("vit_b16")
    config = dataclasses.replace(config, image_size=1024, class_token=False, pooling="gap")
    windowed = dataclasses.replace(config, window_size=16)
    assert [i for i in range(12) if windowed.window_of(i) is None] == [2, 5, 8, 11]
    count = keras_vit.evaluate.count_macs
    saved = 8 * 2 * 768 * (4096**2 - 16 * 256**2)  # of eight blocks, queries and values
    assert count(config) - count(windowed) == saved
    assert keras_vit.evaluate.count_parameters(config) == keras_vit.evaluate.count_parameters(
        windowed
    )
    memory = keras_vit.evaluate.training_memory
    assert memory(windowed, 1).total < 0.52 * memory(config, 1).total  # 12.9 of 25.0 GB
    tiny = tiny_config(window_size=(3, 3), global_blocks=())
    composed = feature_maps(keras_vit.build_vit(tiny), norm=False)
    blocks = [s for s in keras_vit.evaluate.count_stages(composed) if s.name.startswith("block")]
    assert [s.macs for s in blocks] == [
        s.macs for s in keras_vit.evaluate.count_stages(tiny) if s.name.startswith("block")
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_blocks": (7,), "window_size": 2}, r"some of the blocks 0 to 1.*\(7,\)"),
        ({"global_blocks": (0,)}, r"Without windows.*window_size=None"),
        ({"window_size": 0}, "`window_size` must be a positive integer"),
        (
            {"window_size": 2, "num_merged_tokens": 2},
            "num_merged_tokens=2; set num_merged_tokens to 0",
        ),
        ({"window_size": 2, "any_size": True}, "any_size=True; set any_size to False"),
        ({"window_size": 2, "patch_dropout_rate": 0.5}, "patch_dropout_rate=0.5"),
        ({"window_size": 2, "position_embedding": "relative"}, "choose another position"),
    ],
)
def test_what_windows_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**change)


def test_a_layer_needs_the_grid_of_its_patches():
    with pytest.raises(ValueError, match=r"Windows need the grid.*12 tokens, grid=\(3, 3\)"):
        WindowAttention(2, (3, 3), 2).build((None, 12, 8))
    with pytest.raises(ValueError, match="no relative positions"):
        WindowAttention(2, (3, 4), 2, positions=RelativeKeys())
    layer = WindowAttention(2, (3, 4), 2)
    layer.build((None, 12, 8))
    with pytest.raises(ValueError, match="Windows hold all patches"):
        layer(np.zeros((1, 12, 8), "float32"), attention_mask=np.ones((1, 1, 1, 12), bool))
