"""Exports of models inside of models: equal names, several inputs, sequences of images."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export.inference import prepare
from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.saved_model import export_saved_model
from tests.fixtures import fill_random, tiny_config

EXPORTS = [export_saved_model, export_litert, export_onnx, export_openvino]


def backbone(seed, **changes):
    config = tiny_config(depth=1, classes=3, **changes)
    model = keras_vit.build_vit(config, name=f"vit_{seed}")
    fill_random(model, seed=seed)
    return model


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_two_backbones_whose_weights_have_the_same_names(precision, tmp_path):
    images = keras.Input((32, 32, 3))
    both = keras.layers.Average()([backbone(0)(images), backbone(1)(images)])
    model = keras_vit.Model(images, both)
    paths = [variable.path for variable in model.variables]
    assert len(set(paths)) < len(paths)
    report = export_onnx(model, tmp_path / "m.onnx", precision)
    assert report.max_difference < {"float32": 1e-5, "float16": 5e-3, "int8": 0.05}[precision]


def test_an_inner_layer_with_the_name_of_the_head_keeps_its_activation():
    images = keras.Input((8, 8, 3))
    inner = keras.Sequential(
        [keras.layers.Flatten(), keras.layers.Dense(4, "tanh", name="head")], name="inner"
    )
    head = keras.layers.Dense(3, "softmax", name="head")
    model = keras_vit.Model(images, head(inner(images)))
    pixels = np.random.default_rng(0).uniform(0, 255, (4, 8, 8, 3)).astype("float32")
    inference = prepare(model, preprocessing=keras_vit.Preprocessing(0.0, 1.0))
    expected = model(pixels)
    np.testing.assert_allclose(inference.run(pixels)["probabilities"], expected, rtol=0, atol=1e-6)


def siamese():
    images, vit = [keras.Input((32, 32, 3), name=name) for name in ("left", "right")], backbone(0)
    return keras_vit.Model(images, keras.layers.Subtract()([vit(x) for x in images]))


def video():
    frames = keras.Input((2, 32, 32, 3), name="frames")
    x = keras.layers.TimeDistributed(backbone(0))(frames)
    return keras_vit.Model(frames, keras.layers.GlobalAveragePooling1D()(x))


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize(
    ("make", "received"),
    [
        (siamese, r"2 inputs of shape \(None, 32, 32, 3\), \(None, 32, 32, 3\)"),
        (video, r"an input of shape \(None, 2, 32, 32, 3\)"),
    ],
)
def test_what_is_not_one_batch_of_images_names_keras_export(make, received, export, tmp_path):
    with pytest.raises(ValueError, match=rf"one input, images.*{received}.*`model\.export\(path"):
        export(make(), tmp_path / "m.xml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [siamese, video])
def test_keras_export_does_as_the_message_says(make, tmp_path):
    model = make()
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0, 255, (2, *x.shape[1:])).astype("float32") for x in model.inputs]
    model.export(tmp_path / "m", format="tf_saved_model", verbose=False)
    given = arrays if len(arrays) > 1 else arrays[0]
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_allclose(
        loaded.serve(given), model.predict(given, verbose=0), rtol=0, atol=1e-5
    )
