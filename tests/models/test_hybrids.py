"""Hybrids and BiT ResNets as whole models: saved, compiled, trained, looked into."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.config import ResNetConfig, ResNetStem, make_config
from keras_vit.create import build, create_model
from keras_vit.models.feature_extraction import features_of
from keras_vit.runtime.model import Model
from tests.fixtures import abstract_model, fill_random, images_for, tiny_config
from tests.workers import python

CONFIGS = {
    "hybrid": tiny_config(patch_size=1, image_size=64, stem=ResNetStem((1, 1)), depth=1),
    "bit": ResNetConfig(stages=(1, 1), image_size=(40, 33), classes=5),
}


def numpy(x):
    return keras.ops.convert_to_numpy(keras.ops.cast(x, "float32"))


@pytest.fixture(params=CONFIGS)
def model(request):
    model = build(CONFIGS[request.param])
    fill_random(model)
    return model


def test_eager_graph_xla_and_reloaded_agree(model, tmp_path):
    images = images_for(model)
    expected = numpy(model(images))
    atol = 5e-6 * np.abs(expected).max()
    for jit_compile in (False, True):
        compiled = tf.function(model, jit_compile=jit_compile)
        np.testing.assert_allclose(compiled(tf.constant(images)), expected, rtol=0, atol=atol)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(reloaded) is Model
    assert reloaded.config == model.config
    assert [w.path for w in reloaded.weights] == [w.path for w in model.weights]
    np.testing.assert_array_equal(numpy(reloaded(images)), expected)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_gives_float32_logits_near_those_of_float32(model, policy):
    images = images_for(model)
    expected = numpy(model(images))
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        half = build(model.config)
    finally:
        keras.config.set_dtype_policy(before)
    assert {weight.dtype for weight in half.trainable_weights} == {"float32"}
    half.set_weights(model.get_weights())
    logits = half(images)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    stages = [layer for layer in half.layers if "stage" in layer.name]
    assert {layer.compute_dtype for layer in stages} == {policy.removeprefix("mixed_")}
    tolerance = {"mixed_bfloat16": 0.06, "mixed_float16": 0.008}[policy]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_every_variable_gets_a_gradient(model):
    images = images_for(model)
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_sum(logits * tf.random.stateless_normal(logits.shape, (1, 2)))
    weights = model.trainable_weights
    for weight, gradient in zip(
        weights, tape.gradient(loss, [w.value for w in weights]), strict=True
    ):
        assert gradient is not None, weight.path
        assert np.isfinite(gradient).all(), weight.path
        assert np.abs(gradient).max() > 0, weight.path


@pytest.mark.parametrize("family", ["bit", pytest.param("hybrid", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_new_model_starts_at_zero_and_learns(family):
    """Though its head and the last norm of every unit start at zero."""
    config = CONFIGS[family]
    model = build(config)
    images = images_for(model)
    assert not numpy(model(images)).any()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    labels = np.arange(4)
    losses = model.fit(images, labels, batch_size=4, epochs=12, verbose=0).history["loss"]
    assert losses[0] == pytest.approx(np.log(config.classes), abs=1e-4)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_two_replicas_train_as_one_does():
    """`fit` under MirroredStrategy on two logical processors ends in the weights of one."""
    script = """
import numpy as np
import tensorflow as tf
import keras
from keras_vit.create import build
from tests.fixtures import fill_random, images_for
from tests.models.test_hybrids import CONFIGS

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

def train(config, strategy):
    with strategy.scope():
        model = build(config)
        fill_random(model, stddev=0.05)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    model.fit(images_for(model), np.arange(4), batch_size=4, epochs=2, verbose=0)
    return model.get_weights()

mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # a second one would not train
for family, config in CONFIGS.items():
    two = train(config, mirrored)
    one = train(config, tf.distribute.OneDeviceStrategy("CPU:0"))
    start = build(config)
    fill_random(start, stddev=0.05)
    moved = max(np.abs(a - b).max() for a, b in zip(one, start.get_weights(), strict=True))
    apart = max(np.abs(a - b).max() for a, b in zip(one, two, strict=True))
    print(family, moved > 1e-3, apart < 1e-3 * moved)
"""
    assert python("-c", script).split() == ["hybrid", "True", "True", "bit", "True", "True"]


def test_feature_maps_of_the_stages_by_name(model):
    names = [layer.name for layer in model.layers if "stage" in layer.name]
    assert len(names) == 2
    images = images_for(model)
    features = features_of(model, names)(images)
    height, width = images.shape[1:3]
    for index, name in enumerate(names):
        stride = 4 * 2**index
        expected = (4, -(-height // stride), -(-width // stride), 256 * 2**index)
        assert features[name].shape == expected
        same = keras.Model(model.input, model.get_layer(name).output)(images)
        np.testing.assert_array_equal(numpy(features[name]), numpy(same))


@pytest.mark.parametrize("size", [(32, 32), (33, 50), (7, 90)])
def test_any_image_size(size):
    hybrid = tiny_config(patch_size=1, image_size=size, stem=ResNetStem((1, 1)), depth=1)
    stride = hybrid.stem.stride
    assert hybrid.grid == (-(-size[0] // stride), -(-size[1] // stride))
    model = build(hybrid)
    assert numpy(model(images_for(model))).shape == (4, 10)
    resnet = build(ResNetConfig(stages=(1, 1), image_size=size, classes=None, pooling=None))
    assert numpy(resnet(images_for(resnet))).shape == (4, *hybrid.grid, 512)


def test_one_resnet_takes_images_of_every_size():
    options = {"classes": 5, "stages": (1, 1)}
    model = create_model("bit_r50x1", input_shape=(None, None, 3), **options)
    assert model.input_shape == (None, None, None, 3)
    fill_random(model)
    for size in ((40, 33), (64, 48)):
        fixed = create_model("bit_r50x1", input_shape=(*size, 3), **options)
        fixed.set_weights(model.get_weights())
        images = images_for(fixed)
        expected = numpy(fixed(images))
        atol = 5e-6 * np.abs(expected).max()
        np.testing.assert_allclose(model(images), expected, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("patch_size", [1, 2, 4])
def test_small_patches_on_small_images_train(patch_size):
    """One to four pixels on 32 x 32 images: up to 1,024 tokens."""
    config = make_config(
        patch_size=patch_size,
        width=16,
        depth=1,
        num_heads=2,
        mlp_dim=32,
        image_size=32,
        classes=2,
        pooling="gap",
    )
    model = build(config)
    assert config.num_patches == (32 // patch_size) ** 2
    rng = np.random.default_rng(0)
    labels = np.arange(8) % 2
    images = rng.uniform(0, 100, (8, 32, 32, 3)) + 100 * labels[:, None, None, None]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=8, epochs=15, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["accuracy"][-1] == 1


@pytest.mark.slow
def test_the_relative_of_the_paper_trains():
    model = create_model("vit_cordonnier2", classes=4, depth=1, width=40, mlp_dim=48)
    images = images_for(model)
    assert model.config.grid == (16, 16)
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    losses = model.fit(images, np.arange(4), epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("pooling", "shape"), [(None, (None, 2, 2, 2048)), ("gap", (None, 2048))])
def test_a_resnet_without_a_head_ends_in_features(pooling, shape):
    arguments = {"include_top": False, "pooling": pooling, "input_shape": (64, 64, 3)}
    model = abstract_model(lambda: create_model("R50x1", **arguments))
    assert model.output_shape == shape
    assert model.name == "bit_r50x1"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNetStem((3, 0)), r"`stages` must be a positive integer"),
        (lambda: ResNetStem(width_factor=0), r"`width_factor` must be a positive integer"),
        (lambda: ResNetStem(standardization="yes"), r"must be one of 'std', 'variance'"),
        (lambda: ResNetConfig(()), r"A ResNet needs a stage"),
        (lambda: ResNetConfig((1,), pooling="token"), r"`pooling` must be None or one of 'gap'"),
        (lambda: ResNetConfig((1,), pooling=None), r'The head reads the mean.*pooling="gap"'),
        (lambda: ResNetConfig((1,), image_size=0), r"`image_size` must be a positive integer"),
        (
            lambda: create_model("R+Ti/16", input_shape=(250, 224, 3)),
            r"image_size=\(250, 224\).*\(7 positions of the stem's maps \(63, 56\) left over\)\. C",
        ),
        (lambda: create_model("R50x1", pooling="map"), r"`pooling` must be None or one of 'gap'"),
        (lambda: create_model("R50x1", depth=3), r"There is no option `depth`"),
        (lambda: create_model("R50x1", input_shape=(None, 64, 3)), r"or \(None, None, channels\)"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
