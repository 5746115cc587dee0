"""The model of Cordonnier et al. against the equations of its published code, in float64 NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.config import GRID_ATTENTIONS, replace_fields
from keras_vit.create import build
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.grid_attention import GridAttention
from keras_vit.variants import find_config
from keras_vit.weights.save import save_weights
from tests import reference
from tests.checks import check_layer
from tests.fixtures import fill_random, images_for, tiny_config

# Images of 6 x 8 pixels, 3 x 4 patches.
SIZES = {"width": 12, "depth": 2, "num_heads": 3, "head_width": 12, "mlp_dim": 20, "classes": 5}
NUMPY = keras.ops.convert_to_numpy


def scores_of(kind, x, w, heads, head_dim):
    """Logits `(B, i, j, A, k, l)` of the key in row `k` and column `l`, as in its `bert.py`."""
    rows, columns = x.shape[1:3]
    down = np.arange(rows)[None, :] - np.arange(rows)[:, None]  # (i, k)
    right = np.arange(columns)[None, :] - np.arange(columns)[:, None]  # (j, l)
    if kind == "quadratic":
        i, j, k, m = np.meshgrid(*(np.arange(n) for n in (rows, columns) * 2), indexing="ij")
        encoding = np.stack([k - i, m - j, (k - i) ** 2, (m - j) ** 2], -1)  # (i, j, k, l, 4)
        alpha, center = w["spreads"] ** 2, w["centers"].T
        target = -0.5 * np.stack([-2 * alpha * center[0], -2 * alpha * center[1], alpha, alpha], -1)
        return np.einsum("ijklr,ar->ijakl", encoding, target)[None]
    by_row, by_column = w["rows"][down + rows - 1], w["columns"][right + columns - 1]
    if kind == "offsets":
        first = np.einsum("ikd,da->iak", by_row, w["row_scores"])[:, None, :, :, None]
        second = np.einsum("jld,da->jal", by_column, w["column_scores"])[None, :, :, None, :]
        return (first + second)[None]
    q, k = np.split(x @ w["queries_keys/kernel"] + w["queries_keys/bias"], 2, -1)
    q, k = (y.reshape(*x.shape[:3], heads, head_dim) for y in (q, k))
    half = head_dim // 2
    first = np.einsum("bijad,ikd->bijak", q[..., :half], by_row)[..., None]
    second = np.einsum("bijad,jld->bijal", q[..., half:], by_column)[..., None, :]
    return (first + second + np.einsum("bijad,bklad->bijakl", q, k)) / np.sqrt(head_dim)


def expected_logits(model, images):
    config = model.config
    w = {v.path: NUMPY(v).astype("float64") for v in model.weights}
    mean, std = (np.array(x) for x in config.preprocessing.per_channel(3))
    x = reference.patches((images - mean) / std, 2)
    kernel = w["patch_encoder/projection/kernel"]
    x = x @ kernel.reshape(-1, kernel.shape[-1]) + w["patch_encoder/projection/bias"]
    x = x.reshape(len(x), *config.grid, -1)

    def norm(x, path):
        return reference.layer_norm(x, w[f"{path}/gamma"], w[f"{path}/beta"], 1e-12)

    for block in range(config.depth):
        of = {
            p.split("/", 2)[2]: v for p, v in w.items() if p.startswith(f"block_{block}/attention/")
        }
        scores = scores_of(config.grid_attention, x, of, config.block.num_heads, config.head_dim)
        flat = reference.softmax(scores.reshape(*scores.shape[:4], -1))
        probs = np.broadcast_to(flat.reshape(scores.shape), (len(x), *scores.shape[1:]))
        y = np.einsum("bijakl,bkld->bijad", probs, x).reshape(*x.shape[:3], -1)
        y = y @ of["value/kernel"] + of["value/bias"]
        y = y @ of["output/kernel"] + of["output/bias"]
        x = norm(x + y, f"block_{block}/attention_norm")
        x = norm(x + reference.mlp(x, w, f"block_{block}/mlp", "exact"), f"block_{block}/mlp_norm")
    return x.mean((1, 2)) @ w["head/kernel"] + w["head/bias"]


@pytest.mark.parametrize("kind", GRID_ATTENTIONS)
def test_logits_are_those_of_the_published_code(kind):
    config = find_config("vit_cordonnier2")
    assert config.grid_attention == "relative_2d" and config.head_dim == config.width == 400
    config = replace_fields(config, **SIZES, image_size=(6, 8), grid_attention=kind)
    model = build(config)
    fill_random(model, stddev=0.3)
    images = images_for(model, 2)
    expected = expected_logits(model, images.astype("float64"))
    np.testing.assert_allclose(NUMPY(model(images)), expected, rtol=0, atol=1e-5)
    assert not [w for w in model.weights if w.path.startswith("encoder_norm")]
    pre_norm = build(replace_fields(config, post_norm=False))
    for weight in pre_norm.weights:
        twin = [w for w in model.weights if w.path == weight.path]
        weight.assign(twin[0] if twin else weight)
    assert np.abs(NUMPY(pre_norm(images)) - expected).max() > 1e-2  # the switch is seen


@pytest.mark.parametrize("kind", GRID_ATTENTIONS)
def test_grid_attention_passes_check_layer(kind):
    check_layer(GridAttention(3, (2, 3), kind, dropout_rate=0.1), (6, 8), atol=2e-5)


def test_a_block_takes_the_attention_that_it_is_handed():
    attention = GridAttention(3, (2, 3), "quadratic", name="attention")
    block = TransformerBlock(2, 24, attention=attention, name="block")
    check_layer(block, (6, 8), atol=2e-5)
    assert "block/attention/centers" in {weight.path for weight in block.weights}
    with pytest.raises(ValueError, match="GridAttention computes all tokens"):
        block(np.zeros((1, 6, 8), "float32"), num_queries=1)


def test_heads_of_another_width_than_their_share():
    layer = SelfAttention(3, head_width=5)  # 3 does not divide 16
    tokens = np.random.default_rng(0).normal(size=(2, 4, 16)).astype("float32")
    layer.build(tokens.shape)
    fill_random(layer)
    w = {v.path.split("/", 1)[-1]: NUMPY(v).astype("float64") for v in layer.weights}
    assert w["qkv/kernel"].shape == (16, 45) and w["output/kernel"].shape == (15, 16)
    qkv = (tokens @ w["qkv/kernel"] + w["qkv/bias"]).reshape(2, 4, 3, 3, 5)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    x = reference.softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(5)) @ v
    x = x.transpose(0, 2, 1, 3).reshape(2, 4, 15) @ w["output/kernel"] + w["output/bias"]
    np.testing.assert_allclose(NUMPY(layer(tokens)), x, rtol=0, atol=1e-5)


def test_what_grid_positions_cannot_have_is_an_error():
    with pytest.raises(ValueError, match="class_token=True; set class_token to False"):
        tiny_config(grid_attention="quadratic", position_embedding="none")
    with pytest.raises(ValueError, match="num_registers=2"):
        tiny_config(
            grid_attention="offsets",
            position_embedding="none",
            class_token=False,
            pooling="gap",
            num_registers=2,
        )
    with pytest.raises(ValueError, match=r"12 tokens\. Received: 6"):
        GridAttention(2, (3, 4)).build((None, 6, 8))


@pytest.mark.parametrize("changes", [{"post_norm": True}, {"head_width": 6}])
def test_no_published_layout_has_the_parts(changes, tmp_path):
    model = build(tiny_config(depth=1, **changes))
    with pytest.raises(ValueError, match=f"have no {next(iter(changes))}, and would give other"):
        save_weights(model, tmp_path / "m.npz")
