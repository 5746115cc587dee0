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


def nested(depth):
    """A model with others inside of it, sequential and functional in turn, and tokens beside it."""
    vit = build_vit(tiny_config(classes=None), name="vit")
    fill_random(vit)
    images = keras.Input((32, 32, 3))
    scaled = keras.layers.Rescaling(0.01, name="before")(images)
    bypass = keras.layers.GlobalAveragePooling2D("channels_last")(scaled)
    x = keras.layers.Concatenate(name="join")([vit(scaled, training=False), bypass])
    model = keras.Model(images, keras.layers.Dense(3, name="classes_0")(x), name="inside")
    paths = ["vit/block_0", "before", "join", "classes_0"]
    for level in range(1, depth):
        head = keras.layers.Dense(3, name=f"classes_{level}")
        paths = [f"{model.name}/{path}" for path in paths] + [model.name, head.name]
        if level % 2:
            images = keras.Input((32, 32, 3))
            model = keras.Sequential([images, model, head], name=f"level_{level}")
        else:
            images = keras.Input((32, 32, 3))
            model = keras.Model(images, head(model(images)), name=f"level_{level}")
    return model, paths, images_for(model, 2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gradients_reach_layers_at_any_depth(depth):
    model, paths, pixels = nested(depth)
    features = features_of(model, paths)
    images = tf.constant(pixels)
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = features(images)
        score = ops.max(outputs[paths[-1]], axis=-1)
    np.testing.assert_allclose(outputs[paths[-1]], model(pixels), atol=1e-5)
    gradients = tape.gradient(score, [outputs[path] for path in paths])
    for path, gradient in zip(paths, gradients, strict=True):
        assert gradient is not None and np.abs(gradient).max() > 0, path
    (block,) = (path for path in paths if path.endswith("block_0"))
    last = features_of(model, [block[:-1] + "1", paths[-1]])
    with tf.GradientTape() as tape:
        outputs = last(pixels)
    gradient = tape.gradient(outputs[paths[-1]], outputs[block[:-1] + "1"])
    assert np.abs(gradient[:, 0]).max() > 0
    assert np.abs(gradient[:, 1:]).max() == 0  # the class token alone is pooled


def test_the_first_call_of_a_model_that_is_called_twice_is_shown():
    backbone, _, images = composed("nested")
    inputs = {name: keras.Input((32, 32, 3), name=name) for name in ("left", "right")}
    x = keras.layers.Concatenate()([backbone(inputs["left"]), backbone(inputs["right"])])
    pair = keras.Model(inputs, keras.layers.Dense(3, name="join")(x), name="pair")
    model = keras.Model(inputs, keras.layers.Dense(2, name="classes")(pair(inputs)))
    names = [f"pair/{backbone.name}/block_0", f"pair/{backbone.name}", "pair/join", "classes"]
    batch = {"left": images, "right": images[::-1] / 2}
    with tf.GradientTape() as tape:
        outputs = features_of(model, names)(batch)
    np.testing.assert_allclose(outputs[names[1]], backbone(images), atol=1e-5)
    np.testing.assert_allclose(outputs["classes"], model(batch), atol=1e-5)
    gradients = tape.gradient(outputs["classes"], [outputs[name] for name in names[:3]])
    assert all(gradient is not None for gradient in gradients)


def test_a_layer_of_a_subclassed_model_is_an_error():
    class Subclassed(keras.Model):
        def __init__(self, inner):
            super().__init__(name="mine")
            self.inner = inner

        def call(self, x):
            return self.inner(x)

    backbone, images = random_vit(classes=None)
    x = keras.Input((32, 32, 3))
    model = keras.Sequential([x, Subclassed(backbone)])
    assert features_of(model, "mine")(images)["mine"].shape == (3, 32)
    for name in ("block_0", backbone.name):
        with pytest.raises(ValueError, match=r"'mine' has no graph.* Pass the functional model"):
            features_of(model, name)
