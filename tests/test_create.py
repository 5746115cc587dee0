"""`create_model` and the constructors, as in keras.applications."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.create import create_model
from keras_vit.errors import CheckpointMismatchError
from keras_vit.models.resizing import resize_model
from keras_vit.variants import configure
from tests.fixtures import abstract_model, fill_random, images_for
from tests.official import GOLDEN

TINY = {"depth": 2, "width": 32, "num_heads": 4, "mlp_dim": 64, "input_shape": (32, 32, 3)}


def test_the_signature_is_that_of_keras_applications():
    ours = list(inspect.signature(keras_vit.ViTB16).parameters)
    theirs = list(inspect.signature(keras.applications.ConvNeXtBase).parameters)
    assert set(theirs) == set(ours) - {"options"}
    assert ours[:4] == ["include_top", "weights", "input_tensor", "input_shape"]


def test_a_constructor_is_create_model_with_its_name():
    model = abstract_model(lambda: keras_vit.ViTS32(classes=7, input_shape=(64, 96, 3)))
    assert model.name == "vit_s32"
    assert model.output_shape == (None, 7)
    assert model.input_shape == (None, 64, 96, 3)
    assert model.config.grid == (2, 3)


@pytest.mark.parametrize(
    ("pooling", "shape"),
    [(None, (None, 5, 32)), ("token", (None, 32)), ("gap", (None, 32)), ("map", (None, 32))],
)
def test_without_a_head_it_ends_in_features(pooling, shape):
    model = create_model("vit_b16", include_top=False, pooling=pooling, **TINY)
    assert model.output_shape == shape
    assert model.config.classes is None


@pytest.mark.parametrize("pooling", [None, "token", "gap", "map"])
def test_with_a_head_it_ends_in_logits_of_zero(pooling):
    model = create_model("vit_b16", pooling=pooling, classes=6, **TINY)
    logits = keras.ops.convert_to_numpy(model(images_for(model)))
    np.testing.assert_array_equal(logits, np.zeros((4, 6)))


def test_a_classifier_activation_makes_probabilities():
    model = create_model("B/16", classes=4, classifier_activation="softmax", **TINY)
    fill_random(model)
    probabilities = keras.ops.convert_to_numpy(model(images_for(model)))
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=0, atol=1e-6)


def test_preprocessing_is_inside_unless_left_out():
    inside = create_model("vit_b16", **TINY)
    fill_random(inside)
    outside = create_model("vit_b16", include_preprocessing=False, **TINY)
    outside.set_weights(inside.get_weights())
    pixels = images_for(inside)
    np.testing.assert_allclose(inside(pixels), outside((pixels - 127.5) / 127.5), rtol=0, atol=1e-5)
    with_bytes = inside(pixels.astype("uint8"))
    np.testing.assert_allclose(with_bytes, inside(np.floor(pixels)), rtol=0, atol=1e-5)


def test_statistics_are_per_channel():
    statistics = keras_vit.Preprocessing(mean=(1, 2, 3), std=(4, 5, 6))
    inside = create_model("vit_b16", preprocessing=statistics, **TINY)
    fill_random(inside)
    outside = create_model("vit_b16", include_preprocessing=False, **TINY)
    outside.set_weights(inside.get_weights())
    pixels = images_for(inside)
    expected = outside((pixels - np.array([1, 2, 3])) / np.array([4, 5, 6]))
    np.testing.assert_allclose(inside(pixels), expected, rtol=0, atol=1e-4)


def test_weights_of_a_file_are_loaded(tmp_path):
    model = create_model("vit_b16", **TINY)
    fill_random(model)
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = create_model("vit_b16", weights=tmp_path / "model.weights.h5", **TINY)
    images = images_for(model)
    np.testing.assert_array_equal(loaded(images), model(images))


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (64, 32, 3)),
        ({"num_registers": 2, "position_on_class_token": False, "pooling": "gap"}, (64, 32, 3)),
        ({"position_embedding": "learned_2d", "position_resize": "bicubic"}, (64, 32, 3)),
        ({"position_embedding": "relative_bias"}, (64, 96, 3)),
        ({"position_embedding": "sincos_2d"}, (64, 32, 3)),
        ({"pre_logits": 8}, (64, 32, 3)),
        ({}, (None, None, 3)),
    ],
)
def test_a_file_of_keras_is_resized(options, shape, tmp_path):
    """As `resize_model` does; without a shape the model has the size of the file."""
    options = {**TINY, **options, "classes": 3}
    model = create_model("vit_b16", **options)
    fill_random(model)
    model.save_weights(tmp_path / "model.weights.h5")
    options["weights"] = tmp_path / "model.weights.h5"
    loaded = create_model("vit_b16", **{**options, "input_shape": shape})
    expected = resize_model(model, None if shape[0] is None else shape[:2])
    assert loaded.config == expected.config
    for ours, theirs in zip(loaded.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), ours.path)
    report, resized = (
        loaded.load_report,
        [
            ours.path
            for ours, before in zip(loaded.weights, model.weights, strict=True)
            if ours.shape != before.shape
        ],
    )
    assert list(report.resized) == resized and not report.fresh
    assert all("2 x 2 to 4 x" in text for text in report.resized.values())
    del options["input_shape"]
    if "sincos_2d" not in options.values():  # which has no weights
        assert create_model("vit_b16", **options).input_shape == (None, 32, 32, 3)


@pytest.mark.parametrize("variant", ["vit_b16", "bit_r50x1"])
@pytest.mark.parametrize("classes", [None, 5])
def test_a_head_of_other_classes_in_a_file_of_keras_starts_at_zero(variant, classes, tmp_path):
    """As of any other file; so does one of a file without a head."""
    options = TINY if variant == "vit_b16" else {"stages": (1,), "input_shape": (32, 32, 3)}
    options = {**options, "include_top": classes is not None, "pooling": "gap"}
    model = create_model(variant, classes=classes or 1, **options)
    fill_random(model)
    model.save_weights(tmp_path / "model.weights.h5")
    options.update(weights=tmp_path / "model.weights.h5", include_top=True)
    loaded = create_model(variant, classes=7, **options)
    features = keras.Model(loaded.input, loaded.get_layer("head").input)
    images = images_for(model)
    expected = model if classes is None else keras.Model(model.input, model.get_layer("head").input)
    np.testing.assert_allclose(features(images), expected(images), rtol=0, atol=1e-6)
    assert not np.any(loaded.get_layer("head").kernel)
    assert loaded.load_report.fresh == ("head/kernel", "head/bias")
    options["include_top"] = False
    headless = create_model(variant, **options)
    np.testing.assert_allclose(headless(images), expected(images), rtol=0, atol=1e-6)
    assert not headless.load_report.fresh


@pytest.mark.parametrize(
    ("saved", "asked", "message"),
    [
        ((32, 48, 3), (64, 64, 3), "is of no square of patches; the model has 4 x 4"),
        ((64, 64, 3), (32, 128, 3), "is of 2 x 8 or 4 x 4 patches; the model has 2 x 8"),
    ],
)
def test_a_file_of_keras_of_an_unknown_size_is_refused(saved, asked, message, tmp_path):
    path = tmp_path / "model.weights.h5"
    create_model("vit_b16", **{**TINY, "input_shape": saved}).save_weights(path)
    with pytest.raises(CheckpointMismatchError, match=f"{message}.*resize_model"):
        create_model("vit_b16", weights=path, **{**TINY, "input_shape": asked})


def test_what_a_file_of_keras_does_not_hold_is_told(tmp_path, caplog):
    path = tmp_path / "model.weights.h5"
    model = create_model("vit_b16", **{**TINY, "depth": 2})
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(path)
    with pytest.raises(CheckpointMismatchError, match=r"has 32 weights, and the model 20.*`depth`"):
        create_model("vit_b16", weights=path, **{**TINY, "depth": 1})
    caplog.clear()
    options = {**TINY, "depth": 2, "gelu": "exact"}
    report = create_model("vit_b16", weights=path, **options).load_report
    assert report.settings["gelu"] == ("exact", "the caller") and len(report.loaded) == 32
    (message,) = caplog.messages
    assert "holds weights alone" in message and "norm_epsilon, pooling" in message
    assert "gelu" not in message and "preprocessing" in message


def test_every_field_of_the_configuration_is_an_option():
    config = configure("vit_b16", dropout_rate=0.1, position_embedding="sincos_2d", gelu="exact")
    assert (config.block.dropout_rate, config.position_embedding, config.block.gelu) == (
        0.1,
        "sincos_2d",
        "exact",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "vit_b15"}, r"There is no variant 'vit_b15'. Did you mean"),
        ({"dropout": 0.1}, r"There is no option `dropout`. Did you mean .*dropout_rate"),
        ({"image_size": 384}, r"Pass input_shape=\(height, width, channels\) in place of"),
        ({"input_shape": (225, 224, 3)}, r"height must be a whole number of patches.*Crop to 224"),
        ({"input_shape": (224, 224)}, r"`input_shape` must be \(height, width, channels\)"),
        ({"input_shape": (None, 224, 3)}, r"or \(None, None, channels\) for images of any size"),
        ({"any_size": True}, r"Pass input_shape=\(None, None, channels\) in place of `any_size`"),
        ({"input_shape": (3, 224, 224)}, r"channels last.*did you mean \(224, 224, 3\)"),
        ({"input_shape": (224, 224, 0)}, r"`channels` must be a positive integer"),
        ({"pooling": "max"}, r"`pooling` must be None or one of 'token', 'gap', 'map'"),
        ({"class_token": False}, r"reads the class token"),
        ({"classes": 0}, r"`classes` must be a positive integer"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(arguments, message):
    with pytest.raises(ValueError, match=message):
        create_model(**{"variant": "vit_b16", **arguments})


SMALL = {"patch_size": 8, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "classes": 10}
GOLDEN_FILE = GOLDEN / "vit_token.checkpoint.npz"


def test_an_input_tensor_is_the_input_of_the_model():
    images = keras.Input((64, 96, 3), name="photos")
    model = create_model("vit_ti16", input_tensor=images, input_shape=(64, 96, 3), classes=7)
    assert model.input is images
    assert model.output_shape == (None, 7)
    assert model.config.grid == (4, 6)
    resnet = keras_vit.BiTR50x1(
        input_tensor=images, input_shape=(None, None, 3), include_top=False, pooling="gap"
    )
    assert resnet.input is images and resnet.output_shape == (None, 2048)


@pytest.mark.parametrize(
    ("title", "shape", "options"),
    [
        ("ViTTi16", (64, 96, 3), {"depth": 1}),
        ("ViTTi16", (48, 48, 5), {"depth": 1}),
        ("ViTTi16", (None, None, 3), {"depth": 1}),
        ("BiTR50x1", (64, 48, 3), {"stages": (1,)}),
        ("BiTR50x1", (None, None, 1), {"stages": (1,)}),
        ("R26ViTS32", (64, 96, 3), {"depth": 1}),
        ("RViTTi16", (None, None, 3), {"depth": 1}),
    ],
)
def test_an_input_tensor_alone_gives_the_size(title, shape, options):
    """As in keras.applications."""
    images, options = keras.Input(shape), {**options, "classes": 7}
    constructor = getattr(keras_vit, title)
    model = abstract_model(lambda: constructor(input_tensor=images, **options))
    expected = abstract_model(lambda: constructor(input_shape=shape, **options))
    assert model.inputs[0] is images and model.config == expected.config
    assert [w.shape for w in model.weights] == [w.shape for w in expected.weights]


def test_an_input_tensor_gives_the_size_of_what_is_built_on_the_model():
    images = keras.layers.RandomFlip()(keras.Input((32, 64, 3)))
    backbone = create_model("vit_b16", **{**TINY, "input_shape": None}, input_tensor=images)
    maps = keras_vit.models.build_segmenter(backbone, classes=3)
    assert maps.output_shape == (None, 32, 64, 3)
    pyramid = keras_vit.models.build_pyramid(backbone)
    assert pyramid.output_shape[0][:3] == (None, 8, 16)
    model = keras_vit.from_pretrained(GOLDEN_FILE, input_tensor=keras.Input((64, 48, 3)))
    assert model.input_shape == (None, 64, 48, 3)


@pytest.mark.parametrize("weights", [None, "checkpoint", "keras"])
def test_layers_before_the_input_tensor_become_part_of_the_model(weights, tmp_path):
    plain = create_model("vit_ti16", weights=GOLDEN_FILE, input_shape=(32, 32, 3), **SMALL)
    path = {None: None, "checkpoint": GOLDEN_FILE, "keras": tmp_path / "plain.weights.h5"}[weights]
    if weights == "keras":
        plain.save_weights(path)
    photos = keras.Input((32, 32, 1), name="photos")
    colours = keras.layers.Conv2D(3, 1, kernel_initializer="ones", use_bias=False)(photos)
    model = create_model(
        "vit_ti16", weights=path, input_tensor=colours, input_shape=(32, 32, 3), **SMALL
    )
    assert model.input is photos and model.get_layer("block_1") is not None
    assert model.config is None  # the images of the model are not those of the configuration
    outer = keras.Model(photos, keras.layers.Softmax()(model.output))  # in another model's graph
    greys = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 1)).astype("float32")
    logits = keras.ops.convert_to_numpy(model(greys))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(outer(greys)), keras.ops.softmax(logits), rtol=0, atol=1e-6
    )
    if weights is not None:
        expected = keras.ops.convert_to_numpy(plain(np.repeat(greys, 3, axis=-1)))
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    if weights == "checkpoint":
        assert len(model.load_report.loaded) == len(plain.weights)
    model.save(tmp_path / "nested.keras")
    restored = keras.saving.load_model(tmp_path / "nested.keras")
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(restored(greys)), logits, rtol=0, atol=1e-6
    )


def test_from_pretrained_takes_an_input_tensor():
    photos = keras.Input((32, 32, 3), name="photos")
    model = keras_vit.from_pretrained(GOLDEN_FILE, input_tensor=photos)
    assert model.input is photos and model.config.grid == (4, 4)
    with pytest.raises(ValueError, match=r"or \(None, None, channels\)"):
        keras_vit.from_pretrained(GOLDEN_FILE, input_shape=(None, 64, 3))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (48, 32, 3),
            r"\(None, 32, 32, 3\). Received: \(None, 48, 32, 3\). Pass input_shape",
        ),
        ((32, 32, 1), r"Received: \(None, 32, 32, 1\)"),
        ((32, 32), r"Received: \(None, 32, 32\)"),
        ((None, 32, 3), r"Received: \(None, None, 32, 3\)"),
    ],
)
def test_an_input_tensor_of_another_shape_is_an_error(shape, message):
    with pytest.raises(ValueError, match=message):
        create_model("vit_ti16", input_tensor=keras.Input(shape), input_shape=(32, 32, 3), **SMALL)


def test_an_input_tensor_is_symbolic():
    with pytest.raises(ValueError, match=r"symbolic tensor.*Received: a ndarray"):
        create_model("vit_ti16", input_tensor=np.zeros((1, 224, 224, 3)))
