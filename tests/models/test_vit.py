"""Whole models: every option, compiled, in half precision, saved and read elsewhere."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.config import RotaryPositions
from keras_vit.models.attention import attention_scores
from keras_vit.models.lora import add_lora
from keras_vit.models.vit import build_vit
from keras_vit.runtime.model import Model
from keras_vit.train.new_head import adapt_model
from tests.checks import quick
from tests.fixtures import fill_random, images_for, numpy, tiny_config, tiny_vit

# Every option, alone and with others, in one block.
OPTIONS = {
    "default": {},
    "rectangle": {"image_size": (16, 40), "patch_size": (4, 8)},
    "one_channel": {"channels": 1},
    "gap": {"pooling": "gap", "class_token": False, "pre_logits": 16},
    "gap_of_patches": {"pooling": "gap", "norm_after_pooling": True},
    "map": {"pooling": "map", "class_token": False},
    "tokens": {"pooling": None, "classes": None},
    "logits_per_token": {"pooling": None},
    "none": {"position_embedding": "none"},
    "learned_2d": {"position_embedding": "learned_2d"},
    "relative": {"position_embedding": "relative"},
    "sincos_2d": {"position_embedding": "sincos_2d", "position_on_class_token": False},
    "registers": {"num_registers": 3, "layer_scale": 0.1, "qk_norm": True},
    "distilled": {"distillation_token": True, "gelu": "exact"},
    "clip": {
        "norm_before_blocks": True,
        "gelu": "quick",
        "without_bias": ("patch",),
        "head_bias": None,
    },
    "dinov3": {
        "rope": RotaryPositions("centered", 100.0, interleaved=False),
        "position_embedding": "none",
        "without_bias": ("key",),
        "swiglu": True,
        "num_registers": 2,
        "layer_scale": 0.1,
    },
    "eva02": {
        "rope": RotaryPositions(reference_grid=(2, 2)),
        "inner_norms": ("attention", "mlp"),
        "swiglu": True,
        "pooling": "gap",
        "norm_after_pooling": True,
    },
    "aimv2": {
        "norm": "rms",
        "norm_patches": True,
        "swiglu": True,
        "without_bias": ("query", "key", "value", "projection", "mlp"),
        "pooling": "map",
    },
    "beit": {
        "position_embedding": "relative_bias",
        "without_bias": ("key",),
        "pooling": "gap",
        "norm_after_pooling": True,
    },
    "vit5": {
        "rope": RotaryPositions(register_base=100.0),
        "num_registers": 4,
        "norm": "rms",
        "qk_norm": True,
        "layer_scale": 0.1,
        "gelu": "exact",
    },
    "regularised": {
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        "stochastic_depth_rate": 0.1,
        "patch_dropout_rate": 0.25,
    },
}
OPTIONS["everything"] = {
    **OPTIONS["registers"],
    **OPTIONS["regularised"],
    "pooling": "map",
    "pre_logits": 16,
}
# Every layer is compiled alone in its own test; these cover the whole.
COMPILED = ("relative", "everything", "eva02")  # `fit` compiles the default below


def build(name):
    return build_vit(tiny_config(depth=1, **OPTIONS[name]))


@pytest.fixture
def policy(request):
    """Sets a global dtype policy for one test."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
    "name",
    quick([*OPTIONS], "rectangle", "map", "learned_2d", "relative", "distilled", "everything"),
)
def test_eager_graph_xla_and_reloaded_agree(name, tmp_path):
    model = build(name)
    fill_random(model)
    images = images_for(model)
    expected = numpy(model(images))
    assert np.isfinite(expected).all()
    for jit_compile in (False, True) if name in COMPILED else (False,):
        compiled = tf.function(model, jit_compile=jit_compile)
        np.testing.assert_allclose(compiled(tf.constant(images)), expected, rtol=0, atol=2e-5)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(reloaded) is Model
    assert reloaded.config == model.config
    assert [w.path for w in reloaded.weights] == [w.path for w in model.weights]
    np.testing.assert_array_equal(numpy(reloaded(images)), expected)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param("relative", "mixed_bfloat16", marks=pytest.mark.slow),
        ("dinov3", "mixed_bfloat16"),
        pytest.param("everything", "mixed_bfloat16", marks=pytest.mark.slow),
        pytest.param("relative", "mixed_float16", marks=pytest.mark.slow),
        pytest.param("everything", "mixed_float16", marks=pytest.mark.slow),
    ],
    indirect=["policy"],
)
def test_half_precision_trains_and_ends_in_float32(name, policy):
    model = build(name)
    assert model.get_layer("block_0").compute_dtype == policy.removeprefix("mixed_")
    assert all(w.dtype == "float32" for w in model.trainable_weights)
    assert model.get_layer("block_0").output.dtype == "float32"  # the residual stream
    assert model.get_layer("block_0").mlp_norm.compute_dtype == policy.removeprefix("mixed_")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = images_for(model)
    history = model.fit(images, np.arange(4), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert model.predict(images, verbose=0).dtype == np.float32


@pytest.mark.parametrize(
    ("name", "jit_compile"),
    [
        ("default", True),
        pytest.param("registers", False, marks=pytest.mark.slow),
        pytest.param("everything", False, marks=pytest.mark.slow),
        pytest.param("gap", False, marks=pytest.mark.slow),
        pytest.param("relative", False, marks=pytest.mark.slow),
        *(
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in ("clip", "dinov3", "eva02", "aimv2", "beit", "vit5")
        ),
    ],
)
def test_fit_learns_and_every_weight_moves(name, jit_compile):
    model = build(name)
    fill_random(model, stddev=0.05)
    before = [numpy(w) for w in model.trainable_weights]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=jit_compile)
    images, labels = images_for(model, count=8), np.arange(8)
    history = model.fit(images, labels, epochs=12, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0]
    for weight, start in zip(model.trainable_weights, before, strict=True):
        assert np.abs(numpy(weight) - start).max() > 0, weight.path


@pytest.mark.parametrize("name", ["dinov3", "eva02", "vit5"])
def test_rotary_positions_are_constants_of_the_graph(name):
    """Exports need no sine, and no angle is computed again for an image."""
    model = build(name)
    spec = tf.TensorSpec((2, *model.input_shape[1:]))
    graph = tf.function(model).get_concrete_function(spec).graph
    kinds = {op.type for op in graph.get_operations()}
    assert "ConcatV2" in kinds and not kinds & {"Sin", "Cos", "Pow", "Range"}


@pytest.mark.parametrize("name", ["dinov3", "eva02", "vit5"])
def test_attention_scores_are_those_of_the_rotated_model(name):
    """Pictures and rollout use the layers of the model: all blocks again from their inputs."""
    model = build(name)
    fill_random(model)
    images = images_for(model, 2)
    block = model.get_layer("block_0")
    tokens, *rotation = keras.Model(model.input, block.input)(images)
    _, expected = block(tokens, tuple(rotation), return_attention_scores=True)
    scores = attention_scores(model, images, block=0)
    np.testing.assert_allclose(scores, numpy(expected), rtol=0, atol=1e-6)
    features = keras_vit.models.features_of(model, ["block_0/attention_scores"])
    np.testing.assert_allclose(features(images)["block_0/attention_scores"], scores, atol=1e-6)
    still = tuple(
        np.full(x.shape, value, "float32") for x, value in zip(rotation, (1, 0), strict=True)
    )
    assert np.abs(block(tokens, still, return_attention_scores=True)[1] - scores).max() > 1e-3


@pytest.mark.parametrize("name", ["clip", "dinov3", "eva02", "aimv2", "beit"])
def test_newer_models_adapt_to_other_classes_and_sizes(name):
    model = build(name)
    fill_random(model)
    adapted = adapt_model(model, classes=3, image_size=(48, 32))
    assert adapted.output_shape == (None, 3) and adapted.config.grid == (6, 4)
    assert adapted.config.head_bias == 0.0
    assert not numpy(adapted(images_for(adapted, 1))).any()  # the new head is zero
    same = adapt_model(model, classes=3)
    for weight in same.weights:
        old = {w.path: w for w in model.weights}.get(weight.path)
        if old is not None and not weight.path.startswith("head"):
            np.testing.assert_array_equal(numpy(weight), numpy(old))
    images = images_for(model, 1)
    expected = numpy(model(images))
    updated = add_lora(model, rank=2, targets="all-linear")
    np.testing.assert_allclose(numpy(updated(images)), expected, rtol=0, atol=1e-5)
    assert any("lora" in weight.path for weight in updated.trainable_weights)


def test_predict_takes_a_partial_last_batch_with_xla():
    model = build_vit(tiny_config())
    model.compile("sgd", "mse", jit_compile=True)
    assert model.predict(images_for(model, count=5), batch_size=3, verbose=0).shape == (5, 10)


def test_the_two_readings_of_norm_and_mean_differ():
    images = images_for(build_vit(tiny_config()))
    outputs = []
    for norm_after_pooling in (False, True):
        model = tiny_vit(pooling="gap", norm_after_pooling=norm_after_pooling)
        outputs.append(numpy(model(images)))
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


def test_registers_are_ignored_by_the_mean():
    model = tiny_vit(pooling="gap", num_registers=2, classes=None)
    images = images_for(model)
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)(images)
    np.testing.assert_allclose(numpy(model(images)), numpy(tokens)[:, 3:].mean(1), atol=1e-5)


def test_stochastic_depth_grows_linearly():
    model = build_vit(tiny_config(depth=5, stochastic_depth_rate=0.2))
    rates = [model.get_layer(f"block_{i}").stochastic_depth_rate for i in range(5)]
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.15, 0.2])


def test_the_head_starts_at_zero_and_its_bias_where_asked():
    model = build_vit(tiny_config(head_bias=-10.0, pre_logits=32))
    logits = numpy(model(images_for(model)))
    np.testing.assert_array_equal(logits, np.full((4, 10), -10.0))


def test_layers_have_stable_names():
    config = tiny_config(pre_logits=8, num_registers=1, distillation_token=True)
    names = [layer.name for layer in build_vit(config).layers]
    assert names == [
        *("images", "preprocessing", "patch_encoder", "distillation_token", "class_token"),
        *("position_embedding", "registers", "embedding_dropout", "block_0", "block_1"),
        *("encoder_norm", "pooling", "pre_logits", "distillation_pooling"),
        *("head", "head_distillation", "mean_logits"),
    ]


def test_users_compose_models_of_the_same_class():
    backbone = build_vit(tiny_config(classes=None))
    outputs = keras.layers.Dense(3)(backbone.output)
    model = Model(backbone.input, outputs, name="mine")
    assert model.config is None
    assert model.get_layer("block_1") is backbone.get_layer("block_1")
    copy = Model.from_config(model.get_config())
    assert copy.output_shape == (None, 3)


@pytest.mark.parametrize("shape", [(2, 33, 32, 3), (2, 32, 32, 1), (32, 32, 3)])
def test_a_wrong_image_at_call_time_gets_the_expected_shape(shape):
    model = build_vit(tiny_config(depth=1))
    with pytest.raises(ValueError, match=r"takes inputs of shape \(None, 32, 32, 3\)"):
        model(np.zeros(shape, "float32"))
    with pytest.raises(ValueError, match=r"takes inputs of shape \(None, 32, 32, 3\)"):
        model.predict(np.zeros((2, *shape[1:]), "float32"), verbose=0)


def test_a_single_image_is_told_to_bring_a_batch_axis():
    model = build_vit(tiny_config(depth=1))
    with pytest.raises(ValueError, match=r"Add the batch axis: images\[None\]"):
        model(np.zeros((32, 32, 3), "float32"))


def test_channels_first_settings_do_not_change_the_model():
    model = tiny_vit()
    images = images_for(model)
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    try:
        twin = build_vit(tiny_config())
        twin.set_weights(model.get_weights())
        np.testing.assert_array_equal(numpy(twin(images)), numpy(model(images)))
    finally:
        keras.config.set_image_data_format(before)


def test_frozen_layers_stay_frozen_in_a_file_and_can_be_unfrozen(tmp_path):
    model = build_vit(tiny_config(depth=1))
    count = len(model.trainable_variables)
    for layer in model.layers:
        layer.trainable = layer.name == "head"
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.trainable_variables] == ["head/kernel", "head/bias"]
    for layer in loaded.layers:
        layer.trainable = True
    assert len(loaded.trainable_variables) == count
