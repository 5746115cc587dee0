"""Switches of the block against float64 NumPy, written from their papers."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from keras_vit.config import RotaryPositions
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.causal import CausalAttention
from keras_vit.layers.merging import MergingBlock
from keras_vit.layers.mlp import MLP, gelu
from keras_vit.layers.pooling import AttentionPooling, MeanPooling
from keras_vit.layers.relative import RelativeBias
from keras_vit.layers.rotary import RotaryTable
from tests import reference
from tests.checks import check_layer
from tests.fixtures import fill_random, numpy

GRID, PREFIX, HEADS, WIDTH = (3, 4), 2, 2, 16
TOKENS = np.random.default_rng(7).normal(size=(2, 14, WIDTH)).astype("float32")
DINOV3 = RotaryPositions("centered", 100.0, interleaved=False)
EVA02 = RotaryPositions(reference_grid=(6, 5))
PERCEPTION = RotaryPositions(offset=1.0, reference_grid=(6, 6), order="wh")
# Of the same 14 tokens 4 registers and 9 patches.
VIT5 = {
    "rope": RotaryPositions(register_base=100.0),
    "norm": "rms",
    "qk_norm": True,
    "without_bias": ("query", "key", "value"),
}


def rotation(rope, grid=GRID, prefix=PREFIX, registers=0, head_dim=WIDTH // HEADS):
    """The call argument of a layer with this option."""
    if rope is None:
        return {}
    return {"rotation": RotaryTable(rope, head_dim, grid, prefix, registers)(TOKENS)}


def built(layer, seed=0):
    layer.build(TOKENS.shape)
    fill_random(layer, seed=seed)
    return layer, {w.path: np.asarray(w.numpy(), "float64") for w in layer.weights}


def angles(rope, row, column, head_dim):
    """Angles of a patch, one for each pair of channels."""
    per_axis = head_dim // 4
    if rope.coordinates == "centered":  # RoPE of DINOv3: centres in [-1, 1], 2 pi radians a unit
        y, x = (2 * np.pi * (2 * (p + 0.5) / n - 1) for p, n in ((row, GRID[0]), (column, GRID[1])))
    else:
        scale = [1, 1] if rope.reference_grid is None else np.divide(rope.reference_grid, GRID)
        y, x = (row + rope.offset) * scale[0], (column + rope.offset) * scale[1]
    first, second = (y, x) if rope.order == "hw" else (x, y)
    return np.array(
        [p / rope.base ** (k / per_axis) for p in (first, second) for k in range(per_axis)]
    )


def turned(rope, q, turns=None):
    """Queries or keys `(B, T, d)` of one head, each pair of channels as a complex number.

    `turns` has the angles of each token that is turned; else they are those of the patches.
    """
    q = q.copy()
    head_dim = q.shape[-1]
    pairs = [
        (2 * i, 2 * i + 1) if rope.interleaved else (i, i + head_dim // 2)
        for i in range(head_dim // 2)
    ]
    if turns is None:
        places = [divmod(index, GRID[1]) for index in range(GRID[0] * GRID[1])]
        turns = {PREFIX + i: angles(rope, *place, head_dim) for i, place in enumerate(places)}
    for token, turn in turns.items():
        for (a, b), angle in zip(pairs, turn, strict=True):
            z = (q[:, token, a] + 1j * q[:, token, b]) * np.exp(1j * angle)
            q[:, token, a], q[:, token, b] = z.real, z.imag
    return q


def norm(x, w, path, epsilon=1e-6):
    if f"{path}/beta" in w:
        return reference.layer_norm(x, w[f"{path}/gamma"], w[f"{path}/beta"], epsilon)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w[f"{path}/gamma"]


def attention(x, w, prefix, rope=None, sizes=None, turns=None, biases=None):
    """Attention with any of the switches, of which the weights tell the rest."""
    qkv = x @ w[f"{prefix}/qkv/kernel"] + w.get(f"{prefix}/qkv/bias", 0)
    q, k, v = (
        qkv[..., i * WIDTH : (i + 1) * WIDTH] + w.get(f"{prefix}/{part}_bias", 0)
        for i, part in enumerate(("query", "key", "value"))
    )
    outputs = []
    for head, columns in enumerate(np.split(np.arange(WIDTH), HEADS)):
        queries, keys = (y[..., columns] for y in (q, k))
        if f"{prefix}/query_norm/gamma" in w:
            queries = norm(queries, w, f"{prefix}/query_norm")
            keys = norm(keys, w, f"{prefix}/key_norm")
        if rope is not None:
            queries, keys = turned(rope, queries, turns), turned(rope, keys, turns)
        logits = queries @ keys.transpose(0, 2, 1) / np.sqrt(len(columns))
        odds = np.exp(logits if biases is None else logits + biases[..., head])
        odds = odds if sizes is None else odds * sizes[:, None]
        outputs.append(odds / odds.sum(-1, keepdims=True) @ v[..., columns])
    x = np.concatenate(outputs, -1)
    if f"{prefix}/norm/gamma" in w:
        x = norm(x, w, f"{prefix}/norm")
    return x @ w[f"{prefix}/output/kernel"] + w.get(f"{prefix}/output/bias", 0)


def mlp(x, w, prefix, form, swiglu):
    x = x @ w[f"{prefix}/hidden/kernel"] + w.get(f"{prefix}/hidden/bias", 0)
    if swiglu:
        gate, x = np.split(x, 2, -1)
        x = gate / (1 + np.exp(-gate)) * x
    else:
        x = x / (1 + np.exp(-1.702 * x)) if form == "quick" else reference.gelu(x, form)
    if f"{prefix}/norm/gamma" in w:
        x = norm(x, w, f"{prefix}/norm")
    return x @ w[f"{prefix}/output/kernel"] + w.get(f"{prefix}/output/bias", 0)


def block(x, w, options):
    x = x + attention(norm(x, w, "block/attention_norm"), w, "block/attention", options.get("rope"))
    form = options.get("gelu", "tanh")
    return x + mlp(norm(x, w, "block/mlp_norm"), w, "block/mlp", form, options.get("swiglu"))


ALL = ("query", "key", "value", "projection", "mlp")
SWITCHES = {
    "quick": {"gelu": "quick"},
    "swiglu": {"swiglu": True},
    "rms": {"norm": "rms"},
    "no key bias": {"without_bias": ("key",)},
    "no value bias": {"without_bias": ("query", "value", "projection")},
    "no bias": {"without_bias": ALL},
    "inner norms": {"inner_norms": ("attention", "mlp")},
    "dinov3": {"rope": DINOV3, "without_bias": ("key",)},
    "dinov3 plus": {"rope": DINOV3, "swiglu": True, "without_bias": ALL[:3]},
    "eva02": {
        "rope": EVA02,
        "swiglu": True,
        "inner_norms": ("mlp", "attention"),
        "without_bias": ("key",),
    },
    "perception": {"rope": PERCEPTION, "gelu": "exact"},
    "aimv2": {"norm": "rms", "swiglu": True, "without_bias": ALL},
    "everything": {
        "rope": DINOV3,
        "norm": "rms",
        "swiglu": True,
        "inner_norms": ("attention", "mlp"),
        "without_bias": ("key", "projection"),
    },
}


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_is_its_papers(name):
    layer, w = built(TransformerBlock(HEADS, 24, name="block", **SWITCHES[name]))
    expected = block(TOKENS.astype("float64"), w, SWITCHES[name])
    received = layer(TOKENS, **rotation(SWITCHES[name].get("rope")))
    np.testing.assert_allclose(numpy(received), expected, rtol=0, atol=2e-5)
    plain = {"gelu": SWITCHES[name].get("gelu", "tanh")} if name != "quick" else {"gelu": "tanh"}
    if name in ("quick", "dinov3", "eva02", "perception"):  # the switch is seen
        other = block(TOKENS.astype("float64"), w, {**SWITCHES[name], "rope": None, **plain})
        assert np.abs(other - expected).max() > 1e-3


def test_registers_turn_on_a_square_grid_of_their_own():
    """As in ViT-5, in whose sequence the registers follow the patches."""
    layer, w = built(SelfAttention(HEADS, name="attention", **VIT5))
    order = [0, *range(5, 14), *range(1, 5)]
    patches = {1 + i: angles(VIT5["rope"], i // 3, i % 3, 8) for i in range(9)}
    base = RotaryPositions(base=100.0)
    registers = {10 + i: angles(base, i // 2, i % 2, 8) for i in range(4)}
    tokens = TOKENS.astype("float64")[:, order]
    outputs = numpy(layer(TOKENS, **rotation(VIT5["rope"], (3, 3), 5, 4)))[:, order]
    for turns, same in (({**patches, **registers}, True), (patches, False)):
        expected = attention(tokens, w, "attention", base, turns=turns)
        assert np.allclose(outputs, expected, rtol=0, atol=2e-5) == same


def biases(table, class_token):
    """Biases `(T, T, A)` of queries and keys, each of BEiT's table by the words of its paper."""
    rows, columns = GRID
    count = rows * columns + class_token
    found = np.zeros((count, count, HEADS))
    for query, key in itertools.product(range(count), repeat=2):
        if class_token and 0 in (query, key):
            found[query, key] = table[-1 if query == key else -2 if key == 0 else -3]
            continue
        (y, x), (v, u) = (divmod(token - class_token, columns) for token in (query, key))
        found[query, key] = table[(y - v + rows - 1) * (2 * columns - 1) + x - u + columns - 1]
    return found


@pytest.mark.parametrize("class_token", [1, 0])
def test_position_biases_are_of_rows_and_columns_between_two_patches(class_token):
    tokens = TOKENS[:, : 12 + class_token]
    layer = SelfAttention(HEADS, RelativeBias(GRID, bool(class_token)), name="attention")
    layer.build(tokens.shape)
    fill_random(layer, 0.5)
    w = {w.path: np.asarray(w.numpy(), "float64") for w in layer.weights}
    table = w["attention/position_bias"]
    assert table.shape == (5 * 7 + 3 * class_token, HEADS)
    x = tokens.astype("float64")
    expected = attention(x, w, "attention", biases=biases(table, class_token))
    np.testing.assert_allclose(numpy(layer(tokens)), expected, rtol=0, atol=2e-5)
    other = attention(x, w, "attention", biases=biases(table, class_token).swapaxes(0, 1))
    assert np.abs(other - expected).max() > 1e-2  # towards the key, not from it
    first = numpy(layer(tokens, num_queries=3))
    np.testing.assert_allclose(first, expected[:, :3], rtol=0, atol=2e-5)
    positions = RelativeBias(GRID, bool(class_token))
    chunks = SelfAttention(HEADS, positions, query_chunk_size=5)
    chunks.build(tokens.shape)
    chunks.set_weights(layer.get_weights())
    np.testing.assert_allclose(numpy(chunks(tokens)), expected, rtol=0, atol=2e-5)


def test_a_block_with_position_biases_passes_check_layer():
    attention = SelfAttention(HEADS, RelativeBias(GRID, True))
    check_layer(TransformerBlock(HEADS, 24, attention=attention), (13, WIDTH), atol=2e-5)


def test_blocks_with_rotations_are_traced_saved_and_compiled():
    inputs = keras.Input(TOKENS.shape[1:])
    for options, places in ((SWITCHES["eva02"], (GRID, PREFIX)), (VIT5, ((3, 3), 5, 4))):
        rotation = RotaryTable(options["rope"], WIDTH // HEADS, *places)(inputs)
        model = keras.Model(inputs, TransformerBlock(HEADS, 24, **options)(inputs, rotation))
        fill_random(model)
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        expected = numpy(model(TOKENS))
        np.testing.assert_array_equal(numpy(copy(TOKENS)), expected)
        model.compile(jit_compile=True)
        np.testing.assert_allclose(model.predict(TOKENS, verbose=0), expected, atol=2e-5)


def test_quick_gelu_is_far_from_the_others():
    x = np.linspace(-6, 6, 1001)
    value = numpy(gelu(keras.ops.convert_to_tensor(x, "float32"), "quick"))
    np.testing.assert_allclose(value, x / (1 + np.exp(-1.702 * x)), rtol=0, atol=1e-6)
    assert np.abs(value - reference.gelu(x, "exact")).max() == pytest.approx(0.0203, rel=0.02)


@pytest.mark.parametrize("rope", [DINOV3, EVA02, PERCEPTION, RotaryPositions(base=100.0)])
def test_tables_are_the_angles_and_leave_prefix_tokens_alone(rope):
    cosine, sine = map(numpy, RotaryTable(rope, 16, GRID, PREFIX)(TOKENS))
    assert cosine.dtype == sine.dtype == np.float32
    np.testing.assert_array_equal(cosine[:PREFIX], 1)
    np.testing.assert_array_equal(sine[:PREFIX], 0)
    expected = np.array([angles(rope, i // 4, i % 4, 16) for i in range(12)])
    np.testing.assert_allclose(cosine[PREFIX:], np.cos(expected), rtol=0, atol=3e-6)
    np.testing.assert_allclose(sine[PREFIX:], np.sin(expected), rtol=0, atol=3e-6)


def test_queries_and_keys_turn_in_float32_under_bfloat16():
    """Turned in bfloat16, large angles would be off by their rounding."""
    layer, _ = built(SelfAttention(HEADS, rope=DINOV3, dtype="mixed_bfloat16"))
    keys = layer.project(TOKENS, **rotation(DINOV3))[1]
    twin, _ = built(SelfAttention(HEADS, dtype="mixed_bfloat16"))
    plain = twin.project(TOKENS)[1]
    assert keras.backend.standardize_dtype(keys.dtype) == "bfloat16"
    plain = numpy(keras.ops.cast(plain, "float32")).astype("float64")
    expected = np.stack([turned(DINOV3, plain[:, head]) for head in range(HEADS)], 1)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(  # one rounding of the result, 2 ** -9
        numpy(keras.ops.cast(keys, "float32")), expected, rtol=0, atol=2**-8 * largest
    )


def test_keys_that_the_mask_leaves_out_are_not_seen():
    known = np.ones((2, 14), bool)
    known[0, 9:], known[1, 12:] = False, False
    mask = {"attention_mask": known[:, None, None]}
    layer, w = built(SelfAttention(HEADS, name="attention"))
    out, scores = layer(TOKENS, return_attention_scores=True, **mask)
    expected = attention(TOKENS.astype("float64"), w, "attention", sizes=known)
    np.testing.assert_allclose(numpy(out), expected, rtol=0, atol=1e-5)
    assert not numpy(scores)[0, ..., 9:].any()
    chunks, _ = built(SelfAttention(HEADS, query_chunk_size=5))
    np.testing.assert_allclose(numpy(chunks(TOKENS, **mask)), expected, rtol=0, atol=1e-5)
    rows = np.broadcast_to(known[:, None, None], (2, 1, 14, 14))  # one row for each query
    np.testing.assert_allclose(
        numpy(chunks(TOKENS, attention_mask=rows)), expected, rtol=0, atol=1e-5
    )
    first = numpy(layer(TOKENS, num_queries=3, **mask))
    np.testing.assert_allclose(first, expected[:, :3], rtol=0, atol=1e-5)
    other = np.where(known[..., None], TOKENS, 100.0).astype("float32")
    full, _ = built(TransformerBlock(HEADS, 24, name="block"))
    kept = known[..., None]
    np.testing.assert_array_equal(
        numpy(full(TOKENS, **mask)) * kept, numpy(full(other, **mask)) * kept
    )
    mean = numpy(MeanPooling()(TOKENS, sizes=known))
    np.testing.assert_allclose(mean[0], TOKENS[0, :9].mean(0), rtol=0, atol=1e-6)
    pooling, _ = built(AttentionPooling(HEADS, 24))
    for sizes in (known, known.astype("int32")):
        np.testing.assert_allclose(
            numpy(pooling(TOKENS[:1, :9]))[0], numpy(pooling(TOKENS, sizes=sizes))[0], atol=1e-5
        )


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", [SelfAttention, CausalAttention])
def test_a_row_without_any_allowed_key_gives_numbers(policy, kind):
    layer, _ = built(kind(HEADS, dtype=policy))
    mask = np.zeros((2, 1, 1, 14), bool)
    mask[1] = True
    out, scores = layer(TOKENS, attention_mask=mask, return_attention_scores=True)
    plain = layer(TOKENS, attention_mask=mask)
    scores = numpy(keras.ops.cast(scores, "float32"))
    assert all(np.isfinite(numpy(keras.ops.cast(x, "float32"))).all() for x in (out, plain))
    np.testing.assert_allclose(scores[0], 1 / 14, rtol=1e-2)
    pooling, _ = built(AttentionPooling(HEADS, 24, dtype=policy))
    pooled = pooling(TOKENS, sizes=mask[:, 0, 0])
    assert np.isfinite(numpy(keras.ops.cast(pooled, "float32"))).all()


def test_the_gate_comes_first():
    layer, w = built(MLP(24, swiglu=True, name="mlp"))
    swapped = {**w, "mlp/hidden/kernel": np.roll(w["mlp/hidden/kernel"], 24, axis=1)}
    x = TOKENS.astype("float64")
    np.testing.assert_allclose(numpy(layer(TOKENS)), mlp(x, w, "mlp", "", True), atol=1e-5)
    assert np.abs(numpy(layer(TOKENS)) - mlp(x, swapped, "mlp", "", True)).max() > 0.01


def test_rope_and_rotation_belong_together():
    layer, _ = built(SelfAttention(HEADS, rope=DINOV3))
    plain, _ = built(SelfAttention(HEADS))
    for call in (lambda: layer(TOKENS), lambda: plain(TOKENS, **rotation(DINOV3))):
        with pytest.raises(ValueError, match=r"belong together. Received: rope=.*rotation="):
            call()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RotaryTable(VIT5["rope"], 8, (3, 3), 5, 3), r"square grid: 1, 4, 9, .*rs=3, reg"),
        (lambda: RotaryTable(VIT5["rope"], 8, (3, 3), 5), "num_registers=0, register_base=100.0"),
        (
            lambda: SelfAttention(HEADS, RelativeBias(GRID)).build(TOKENS.shape),
            r"grid of \(3, 4\) need 12 tokens, with class_token=False. Received: 14 tokens. Set",
        ),
    ],
)
def test_positions_need_grids(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_merging_and_rotary_positions_exclude_each_other():
    with pytest.raises(ValueError, match=r"hands on their sizes, has no rotary positions"):
        MergingBlock(HEADS, 24, 2, rope=DINOV3)
