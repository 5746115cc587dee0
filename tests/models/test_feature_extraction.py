"""Intermediates and attention weights of models of every kind."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_vit.models.attention import attention_scores
from keras_vit.models.feature_extraction import features_of, stage_names
from keras_vit.models.vit import build_vit
from keras_vit.runtime.model import Model
from tests.fixtures import fill_random, images_for, tiny_config

KINDS = {
    "token": {},
    "not_square": {"image_size": (32, 48), "patch_size": (8, 16)},
    "gap": {"pooling": "gap", "class_token": False},
    "gap_with_class_token": {"pooling": "gap"},
    "map_registers": {"pooling": "map", "class_token": False, "num_registers": 2},
    "distilled_registers": {"distillation_token": True, "num_registers": 3},
    "relative": {"position_embedding": "relative"},
    "qk_norm": {"qk_norm": True, "layer_scale": 0.1},
    "no_head": {"classes": None, "pooling": None},
    "one_block": {"depth": 1},
}


def random_images(config, count=3, seed=1):
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 255, (count, *config.input_shape)).astype("float32")


def random_vit(**changes):
    config = tiny_config(**changes)
    model = build_vit(config)
    fill_random(model)
    return model, random_images(config)


def composed(kind):
    """A user's model on a backbone: flat, nested, or sequential."""
    backbone, images = random_vit(classes=None)
    flip = keras.layers.Rescaling(1.0, name="augment")
    head = keras.layers.Dense(3, name="mine")
    if kind == "flat":
        return backbone, Model(backbone.input, head(backbone.output)), images
    if kind == "nested":
        x = keras.Input((32, 32, 3))
        return backbone, Model(x, head(backbone(flip(x)))), images
    model = keras.Sequential([flip, backbone, head])
    model(images)
    return backbone, model, images


@pytest.mark.parametrize("kind", ["flat", "nested", "sequential"])
def test_models_that_users_build_show_their_insides(kind):
    backbone, model, images = composed(kind)
    expected = attention_scores(backbone, images)
    np.testing.assert_allclose(attention_scores(model, images), expected, atol=1e-6)
    names = ["block_0", "block_1/attention_scores"]
    features = features_of(model, names).predict(images, verbose=0)
    np.testing.assert_allclose(features[names[1]], expected, atol=1e-6)
    assert features["block_0"].shape == (3, 17, 32)


def test_a_backbone_in_two_models_is_seen_in_the_right_one():
    backbone, _, images = composed("nested")
    x = keras.Input((32, 32, 3))
    halved = Model(x, backbone(keras.layers.Rescaling(0.5)(x)))
    expected = attention_scores(backbone, images / 2)
    np.testing.assert_allclose(attention_scores(halved, images), expected, atol=1e-6)


def test_features_are_the_outputs_of_the_layers():
    model, images = random_vit()
    features = features_of(model, ["block_0", "head"])
    expected = model.get_layer("block_0")(model.get_layer("position_embedding").output)
    expected = keras.Model(model.input, expected)(images)
    outputs = features(images)
    np.testing.assert_allclose(outputs["block_0"], expected, atol=1e-6)
    np.testing.assert_allclose(outputs["head"], model(images), atol=1e-6)
    assert isinstance(features, Model)
    assert list(features_of(model, "block_1").output) == ["block_1"]


@pytest.mark.parametrize("kind", ["not_square", "distilled_registers", "map_registers"])
def test_grids_leave_out_what_is_no_patch(kind):
    model, images = random_vit(**KINDS[kind])
    names = ["patch_encoder", "block_1", "pooling"]
    tokens = features_of(model, names)(images)
    grids = features_of(model, names, grids=True)(images)
    rows, columns = model.config.grid
    prefix = model.config.num_prefix_tokens
    assert grids["block_1"].shape == grids["patch_encoder"].shape == (3, rows, columns, 32)
    for y, x in np.ndindex(rows, columns):
        token = tokens["block_1"][:, prefix + y * columns + x]
        np.testing.assert_array_equal(grids["block_1"][:, y, x], token)
    assert grids["pooling"].shape == (3, 32)


@pytest.mark.parametrize("kind", ["flat", "nested"])
def test_a_model_of_features_saves_and_loads(kind, tmp_path):
    _, model, images = composed(kind)
    features = features_of(model, ["block_0", "block_1/attention_scores"], grids=True)
    features.save(tmp_path / "features.keras")
    loaded = keras.saving.load_model(tmp_path / "features.keras")
    for name, value in features(images).items():
        np.testing.assert_allclose(loaded(images)[name], value, atol=1e-6)


def test_a_model_of_features_exports_as_saved_model(tmp_path):
    tf = pytest.importorskip("tensorflow")
    model, images = random_vit()
    features = features_of(model, ["block_0", "block_1/attention_scores"])
    features.export(tmp_path / "features", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "features")
    outputs = loaded.serve(images)
    for name, value in features(images).items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)


def test_a_loaded_model_shows_the_same(tmp_path):
    model, images = random_vit(num_registers=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(attention_scores(loaded, images), attention_scores(model, images))


def test_stage_names_are_names_of_features():
    _, model, _ = composed("nested")
    names = stage_names(model)
    assert [name.rpartition("/")[2] for name in names][:4] == [
        "augment",
        "preprocessing",
        "patch_encoder",
        "class_token",
    ]
    assert list(features_of(model, names).output) == names


def test_a_wrong_name_lists_the_right_ones():
    model, _ = random_vit()
    with pytest.raises(ValueError, match=r"no layer 'blok_1'. Did you mean 'block_1'"):
        features_of(model, ["blok_1"])
    with pytest.raises(ValueError, match="at least one layer"):
        features_of(model, [])
    with pytest.raises(IndexError, match="has 2 blocks, 0 to 1"):
        attention_scores(model, np.zeros((1, 32, 32, 3)), block=2)


def test_models_without_blocks_or_graph_are_errors():
    x = keras.Input((8, 8, 3))
    with pytest.raises(ValueError, match="has no TransformerBlock"):
        attention_scores(keras.Model(x, keras.layers.Flatten()(x)), np.zeros((1, 8, 8, 3)))
    backbone, _ = random_vit()
    with pytest.raises(ValueError, match="no graph of layers"):
        features_of(keras.Sequential([keras.layers.Rescaling(1.0), backbone]), ["block_0"])


def test_a_name_in_two_models_needs_a_path():
    one, images = random_vit(classes=None)
    two = build_vit(tiny_config(classes=None), name="other")
    x = keras.Input((32, 32, 3))
    model = Model(x, keras.layers.Concatenate()([one(x), two(x)]))
    with pytest.raises(ValueError, match="name of 2 layers"):
        features_of(model, ["block_0"])
    assert features_of(model, ["other/block_0"])(images)["other/block_0"].shape == (3, 17, 32)


def grad_cam(model, images, stage):
    """Shares `(B, rows, columns)` of the patches in the largest logit, by their gradients."""
    both = features_of(model, [stage, "classes"])
    with tf.GradientTape() as tape:
        outputs = both(images)
        score = ops.max(outputs["classes"], axis=-1)
    gradient = tape.gradient(score, outputs[stage])[:, 1:]  # (B, N, D)
    return ops.sum(gradient * outputs[stage][:, 1:], -1)


def test_gradients_reach_layers_of_nested_models():
    vit = build_vit(tiny_config(classes=None), name="vit")
    fill_random(vit)
    images = keras.Input((32, 32, 3))
    scaled = keras.layers.Rescaling(0.9, name="before")(images)
    bypass = keras.layers.GlobalAveragePooling2D("channels_last")(scaled)
    x = keras.layers.Concatenate(name="join")([vit(scaled), bypass])
    model = keras.Model(images, keras.layers.Dense(3, name="classes")(x))
    pixels = images_for(vit, 2)
    names = ["vit/block_0", "vit", "before", "join", "classes"]
    outputs = features_of(model, names)(pixels)
    np.testing.assert_allclose(outputs["classes"], model(pixels), atol=1e-5)
    np.testing.assert_allclose(outputs["join"][:, :32], outputs["vit"], atol=1e-6)
    assert np.abs(grad_cam(model, pixels, "vit/block_0")).max() > 0
    assert np.abs(grad_cam(model, pixels, "vit/block_1")).max() == 0  # of the class token alone
