"""Models that merge tokens: the same weights, fewer products, and what they cannot do."""

from __future__ import annotations

import pathlib

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vit.analysis.attention import attention_maps
from keras_vit.analysis.relevance import class_relevance
from keras_vit.config import make_config, replace_fields
from keras_vit.models.attention import attention_scores
from keras_vit.models.feature_extraction import features_of
from keras_vit.models.vit import build_vit
from keras_vit.train.masked_patches import masked_patch_model
from keras_vit.variants import find_config
from keras_vit.weights.load import load_weights
from tests.fixtures import images_for, numpy, tiny_config, tiny_vit

HEADS = {
    "token": {},
    "distilled": {"distillation_token": True, "num_registers": 2, "qk_norm": True},
    "gap": {"pooling": "gap", "class_token": False, "layer_scale": 0.5},
    "map": {"pooling": "map", "class_token": False},
}
slow = pytest.mark.slow


def build(**options):
    return tiny_vit(num_merged_tokens=3, **options)


def test_the_tokens_of_every_block():
    assert find_config("vit_b16").num_tokens == (197,) * 13
    merging = replace_fields(find_config("vit_b16"), num_merged_tokens=16)
    # As in the paper's Table 10 and its code: at most half in the last blocks.
    assert merging.num_tokens == (*range(197, 20, -16), 11)
    model = build(image_size=(32, 40))
    shapes = [model.get_layer(f"block_{i}").output[0].shape[1] for i in range(2)]
    assert (21, *shapes) == model.config.num_tokens == (21, 18, 15)


@pytest.mark.parametrize(
    "head", [pytest.param(name, marks=() if name == "map" else slow) for name in HEADS]
)
def test_weights_are_those_of_the_model_that_merges_nothing(head, tmp_path):
    model = build(**HEADS[head])
    plain = build_vit(replace_fields(model.config, num_merged_tokens=0))
    assert [w.path for w in plain.weights] == [w.path for w in model.weights]
    images = images_for(model)
    expected = numpy(model(images))
    model.save_weights(tmp_path / "model.weights.h5")
    plain.load_weights(tmp_path / "model.weights.h5")
    for ours, theirs in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    assert np.abs(numpy(plain(images)) - expected).max() > 1e-3  # it does merge
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.config == model.config
    np.testing.assert_array_equal(numpy(reloaded(images)), expected)


def test_one_color_merges_without_a_trace():
    """Patches that are alike, and without places: all heads read what they would have."""
    options = {"position_embedding": "none"}
    for head in ("token", "gap", "map"):
        model = build(**HEADS[head], **options)
        plain = build_vit(replace_fields(model.config, num_merged_tokens=0))
        plain.set_weights(model.get_weights())
        images = np.broadcast_to(np.float32([20, 120, 220]), (2, 32, 32, 3))
        np.testing.assert_allclose(model(images), plain(images), rtol=0, atol=2e-5)


@pytest.mark.parametrize("policy", ["float32", pytest.param("mixed_bfloat16", marks=slow)])
def test_every_weight_learns(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = build(pooling="map", patch_dropout_rate=0.25)
    finally:
        keras.config.set_dtype_policy("float32")
    before = [numpy(w) for w in model.trainable_weights]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    model.train_on_batch(images_for(model), np.arange(4))
    for weight, start in zip(model.trainable_weights, before, strict=True):
        assert np.abs(numpy(weight) - start).max() > 0, weight.path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_merged_tokens": -1}, "`num_merged_tokens` must be a positive integer"),
        ({"num_merged_tokens": 9}, "at most half of the patch tokens, here 8 of 16"),
        (
            {"num_merged_tokens": 3, "position_embedding": "relative"},
            "need every patch of one grid in its",
        ),
        ({"num_merged_tokens": 3, "pooling": None}, "tokens are of no single patch.*pooling=None"),
        ({"num_merged_tokens": 3, "rematerialize": True}, "set rematerialize to False"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**options)


@pytest.mark.parametrize(
    "look",
    [
        lambda model, images: attention_scores(model, images),
        lambda model, images: attention_maps(model, images),
        lambda model, images: class_relevance(model, images),
        lambda model, images: features_of(model, "block_1", grids=True),
        lambda model, images: features_of(model, "block_1/attention_scores"),
    ],
)
def test_what_needs_a_grid_says_how_to_get_one(look):
    model = build()
    with pytest.raises(ValueError, match=r"blocks of .* merge tokens.*num_merged_tokens=0"):
        look(model, images_for(model))


def test_tokens_of_blocks_can_be_read():
    model = build()
    outputs = features_of(model, ["block_0", "encoder_norm"]).predict(images_for(model), verbose=0)
    assert outputs["block_0"].shape == (4, 14, 32) and outputs["encoder_norm"].shape == (4, 11, 32)


def test_masked_patches_are_not_predicted_from_merged_ones():
    with pytest.raises(ValueError, match=r"num_merged_tokens=3\. Pre-train it with 0"):
        masked_patch_model(build(), "mean_color")


@pytest.mark.parametrize("merged", [7, pytest.param(20, marks=slow)])
def test_the_numbers_of_the_authors_code(merged, tmp_path):
    """scripts/golden/make_tome.py: timm's model, patched by the code of the paper."""
    golden = np.load(pathlib.Path(__file__).parents[1] / "golden/tome.npz")
    weights = {k.removeprefix("weights/"): golden[k] for k in golden if k.startswith("weights/")}
    save_file(weights, tmp_path / "model.safetensors")
    config = make_config(
        patch_size=4,
        width=16,
        depth=3,
        num_heads=2,
        mlp_dim=32,
        image_size=32,
        classes=5,
        gelu="exact",
        num_merged_tokens=merged,
        include_preprocessing=False,
    )
    model = build_vit(config)
    load_weights(model, tmp_path / "model.safetensors")
    expected = golden[f"logits/{merged}"]
    np.testing.assert_allclose(model(golden["images"]), expected, rtol=0, atol=1e-5)
    assert np.abs(expected - golden["logits/0"]).max() > 1e-2
    block = keras.Model(model.input, model.get_layer("block_2").output)
    np.testing.assert_array_equal(block(golden["images"])[1], golden[f"sizes/{merged}"])
