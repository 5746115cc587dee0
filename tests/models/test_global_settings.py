"""Every builder under the global settings of Keras: data format, floats and policies."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.config import ResNetStem, RotaryPositions
from keras_vit.train.probe import _join
from tests.checks import quick
from tests.fixtures import fill_random, tiny_config

PALETTE = np.random.default_rng(0).uniform(-1, 1, (16, 3)).astype("float32")


def vit(**changes):
    return keras_vit.build_vit(tiny_config(**changes))


def backbone(**changes):
    return vit(**{"patch_size": 16, "image_size": 64, "classes": None, "pooling": None, **changes})


def resnet(**changes):
    return keras_vit.build_resnet(
        keras_vit.ResNetConfig(stages=(1, 1), **{"image_size": 32, "classes": 10, **changes})
    )


def segmenter(head):
    return keras_vit.segmentation.build_segmenter(backbone(depth=4), 3, head, channels=16)


def image_gpt():
    config = keras_vit.image_gpt.ImageGPTConfig(32, 1, 4, image_size=(4, 4), colors=16)
    return keras_vit.image_gpt.build_image_gpt(config, PALETTE)


def attentive_probe():
    head = keras.Sequential(
        [
            keras_vit.layers.AttentionPooling(4, 32, dtype="float32", name="probe_pooling"),
            keras.layers.Dense(3, dtype="float32", name="head"),
        ]
    )
    return _join(vit(), head, "encoder_norm", replaces_head=False)


def with_lora():
    return keras_vit.models.add_lora(vit(), 2)


ANY_ASPECT = {"max_num_patches": 16, "class_token": False, "position_resize": "bilinear"}
ROPE = {"position_embedding": "none", "rope": RotaryPositions("centered", 100.0)}
NO_CLASS_TOKEN = {"class_token": False, "pooling": "gap"}
BUILDERS = {
    "vit": vit,
    "hybrid": lambda: vit(patch_size=1, stem=ResNetStem((1, 1))),
    "bit": resnet,
    "bit maps": lambda: resnet(pooling=None, classes=None),
    "pyramid": lambda: keras_vit.models.build_pyramid(backbone(), 16),
    "linear": lambda: segmenter("linear"),
    "dpt": lambda: segmenter("dpt"),
    "feature maps": lambda: keras_vit.models.feature_maps(backbone(), 2),
    "image gpt": image_gpt,
    "pixel classifier": lambda: keras_vit.image_gpt.pixel_classifier(image_gpt(), 3),
    "any size": lambda: vit(any_size=True, num_registers=1, **ROPE),
    "any size bit": lambda: resnet(image_size=None),
    "any aspect": lambda: keras_vit.models.build_naflex(tiny_config(pooling="map", **ANY_ASPECT)),
    "attentive probe": attentive_probe,
    "low rank": with_lora,
    "masked": lambda: keras_vit.train.masked_patch_model(vit()),
    "distillation": lambda: keras_vit.train.distillation_model(
        vit(distillation_token=True, pooling="token"), vit()
    ),
    "rms": lambda: vit(norm="rms", qk_norm=True, layer_scale=0.01, swiglu=True),
    "merging": lambda: vit(num_merged_tokens=2, pooling="token_gap"),
    "windows": lambda: vit(window_size=2, rematerialize=True),
    "relative": lambda: vit(position_embedding="relative_bias"),
    "quadratic": lambda: vit(
        position_embedding="none", grid_attention="quadratic", **NO_CLASS_TOKEN
    ),
}
NAMES = quick(list(BUILDERS), "hybrid", "any aspect", "linear", "attentive probe")
# Settings, and the largest error of outputs over their largest value.
FLOATS = {
    "float64": ({"floatx": "float64", "dtype_policy": "float64"}, 1e-5),
    "float16": ({"floatx": "float16", "dtype_policy": "float16"}, 5e-3),
    "bfloat16": ({"floatx": "bfloat16", "dtype_policy": "bfloat16"}, 4e-2),
    "inputs in float16": ({"floatx": "float16"}, 5e-3),
    "mixed_bfloat16": ({"dtype_policy": "mixed_bfloat16"}, 4e-2),
    "mixed_float16": ({"dtype_policy": "mixed_float16"}, 5e-3),
}


def input_of(tensor):
    """Values for an input of a model."""
    rng = np.random.default_rng(0)
    shape = (2, *(32 if size is None else size for size in tensor.shape[1:]))
    if tensor.name == "grid":
        return np.array([[4, 4], [2, 3]], "int32")
    if tensor.name == "sources":
        return np.tile(np.arange(shape[1], dtype="int32"), (2, 1))
    return rng.uniform(0, 255, shape).astype("float32")


def outputs_of(name):
    keras.utils.set_random_seed(0)
    model = BUILDERS[name]()
    fill_random(model, 0.1)
    for weight in model.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(np.abs(weight) + 1)
    images = keras.tree.map_structure(input_of, model.input)
    outputs = keras.tree.flatten(model(images, training=False))
    return model, images, [np.asarray(x).astype("float64") for x in outputs]


@contextlib.contextmanager
def setting(**values):
    """Global settings of Keras, by the end of the names of their functions."""
    before = {name: getattr(keras.config, name)() for name in values}
    for name, value in values.items():
        getattr(keras.config, f"set_{name}")(value)
    try:
        yield
    finally:
        for name, value in before.items():
            getattr(keras.config, f"set_{name}")(value)


@pytest.mark.parametrize("name", NAMES)
def test_data_format(name, tmp_path):
    expected, _, outputs = outputs_of(name)
    with setting(image_data_format="channels_first"):
        model, images, received = outputs_of(name)
        assert [w.shape for w in model.weights] == [w.shape for w in expected.weights]
        if name != "low rank":  # files hold the merged kernels
            model.save(tmp_path / "model.keras")
            model = keras.saving.load_model(tmp_path / "model.keras")
        loaded = keras.tree.flatten(model(images, training=False))
    for x, y, z in zip(received, outputs, loaded, strict=True):
        assert np.isfinite(y).all()
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(z, y)


def test_detectors_need_channels_last():
    match = "need the data format 'channels_last'"
    with setting(image_data_format="channels_first"), pytest.raises(ValueError, match=match):
        keras_vit.detection.build_detector(backbone(), 2)


@pytest.mark.parametrize("floats", quick(list(FLOATS), "float16"))
@pytest.mark.parametrize("name", NAMES)
def test_floats(name, floats):
    """As in float32, to the precision of the type, and a step that trains."""
    settings, tolerance = FLOATS[floats]
    _, _, expected = outputs_of(name)
    with setting(**settings):
        model, images, received = outputs_of(name)
        for x, y in zip(received, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.abs(y).max())
        model.compile("sgd", "mse", run_eagerly=True)
        targets = keras.tree.map_structure(lambda x: np.zeros((2, *x.shape[1:])), model.output)
        (loss,) = model.fit(images, targets, verbose=0).history["loss"]
        assert np.isfinite(float(loss))


def test_readers_of_images_and_checkpoints_take_channels_last(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 40, 36, 3)).astype("uint8")
    for index, image in enumerate(pixels):
        (tmp_path / "images" / "ab"[index % 2]).mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(tmp_path / "images" / "ab"[index % 2] / f"{index}.png", image)
    model = vit(gelu="exact", classes=2)
    fill_random(model)
    model.save_pretrained(tmp_path / "model")

    def read():
        model = keras_vit.from_pretrained(tmp_path / "model")
        augmentation = keras_vit.data.Augmentation(rand_augment=(1, 5))
        arrays = keras_vit.read_arrays(pixels, np.arange(4) % 2, ["a", "b"])
        folder = keras_vit.read_folder(tmp_path / "images")
        yield from next(iter(keras_vit.data.eval_batches(folder, model, 4, one_hot=False)))
        yield from next(iter(keras_vit.data.train_batches(arrays, model, 4, augmentation)))
        yield from keras_vit.data.read_images(tmp_path / "images")
        yield model(np.stack(pixels)[:, :32, :32], training=False)

    expected = list(read())
    with setting(image_data_format="channels_first"):
        for x, y in zip(read(), expected, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hybrid", "dpt"])
def test_exports_under_channels_first(name, tmp_path):
    """Each compares the file with the model."""
    with setting(image_data_format="channels_first"):
        model, images, expected = outputs_of(name)
        keras_vit.export_saved_model(model, tmp_path / "saved", images=images)
        keras_vit.export_litert(model, tmp_path / "model.tflite", images=images)
        keras_vit.export_onnx(model, tmp_path / "model.onnx", images=images)
        model.export(tmp_path / "keras")
    loaded = tf.saved_model.load(tmp_path / "keras")
    atol = 1e-5 * np.abs(expected[0]).max()
    np.testing.assert_allclose(loaded.serve(images), expected[0], rtol=0, atol=atol)
