"""Names and values of outputs that are no class scores, and of dicts, in every format."""

from __future__ import annotations

import io
import itertools
import json
import pathlib
import runpy
import zipfile

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from keras import layers

import keras_vit
from keras_vit.export import serving
from keras_vit.export.formats import FORMATS
from keras_vit.export.inference import check_labels, check_outputs, prepare
from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from tests.checks import quick
from tests.export.conftest import LABELS
from tests.fixtures import fill_random, tiny_config

ROOT = pathlib.Path(keras_vit.__file__).parents[1]
EXPORTS = {"saved_model": export_saved_model, "litert": export_litert, "onnx": export_onnx}


def named(model, activation=None):
    """A model with one named output: the logits of `model`, or probabilities."""
    features = model.get_layer("head").input
    head = keras.layers.Dense(10, activation, name="head")
    renamed = keras_vit.Model(model.input, {"species": head(features)})
    head.set_weights(model.get_layer("head").get_weights())
    return renamed


def staged(model):
    return keras_vit.features_of(model, ["block_0", "pooling"])


def softmax(model):
    return named(model, "softmax")


CASES = list(itertools.product((named, softmax, staged), EXPORTS))


# Each model and each format once in the quick tests.
@pytest.mark.parametrize(("make", "format"), quick(CASES, CASES[2]))
def test_names_and_values_stay(make, format, model, pixels, tmp_path):
    model = make(model)
    pixels = pixels[:2]
    report = EXPORTS[format](model, tmp_path / "m", images=pixels)
    outputs = FORMATS[format].load(report.path)(pixels)
    expected = {name: np.asarray(value) for name, value in model(pixels).items()}
    if format != "saved_model":
        assert set(outputs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=0, atol=1e-5)
    assert report.max_difference < 1e-5
    assert report.top1_agreement == (1.0 if "species" in expected else None)
    assert keras_vit.verify_export(report.path, model, pixels).max_difference < 1e-5


@pytest.mark.slow
def test_a_named_output_of_a_head_has_labels_too(model, pixels, tmp_path):
    report = export_saved_model(named(model, "softmax"), tmp_path / "m", labels=LABELS)
    outputs = FORMATS["saved_model"].load(report.path)(pixels)
    np.testing.assert_allclose(outputs["logits"], model(pixels), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(outputs["species"], outputs["probabilities"])
    best = outputs["species"].argmax(-1)
    assert outputs["classes"][:, 0].tolist() == [LABELS[i].encode() for i in best]
    card = json.loads((report.path / "assets.extra" / "model_card.json").read_text())
    assert card["output"] == "species" and len(card["golden"]["species"]) == 10


def test_probabilities_are_not_exported_as_logits(model):
    """Of a softmax that is not the activation of the last layer."""
    outer = keras.Model(model.input, keras.layers.Softmax()(model.output))
    with pytest.raises(ValueError, match=r"ends in softmax, not in a layer.*activation=\"linear\""):
        prepare(outer)
    assert prepare(outer, activation="linear").model.output.keys() >= {"logits"}


def test_names_are_chosen_and_checked(model, tmp_path):
    inference = prepare(named(model))
    assert check_outputs(inference, None) == ("species",)
    assert check_outputs(inference, ("logits", "species")) == ("logits", "species")
    with pytest.raises(ValueError, match=r"`outputs` must be some of .*'species'\. Received"):
        check_outputs(inference, ("scores",))
    taken = keras_vit.Model(model.input, {"scores": model.output, "more": model.output})
    with pytest.raises(ValueError, match=r"outputs scores, more\. Rename: scores"):
        export_saved_model(taken, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_stage_with_an_activation_is_no_head(model):
    outputs = {"tokens": keras.layers.Dense(4, "tanh", name="tokens")(model.output)}
    inference = prepare(
        keras_vit.Model(model.input, outputs), preprocessing=model.config.preprocessing
    )
    assert list(inference(tf.zeros((1, 32, 32, 3)))) == ["tokens"]


@pytest.fixture(scope="module")
def maps():
    """A backbone of others' decoders: images, and maps of shape `(B, 4, 4, 32)`."""
    backbone = keras_vit.build_vit(tiny_config(depth=1, classes=None, pooling=None))
    fill_random(backbone)
    return backbone.input, keras_vit.models.feature_maps(backbone).output["block_0"]


def decoder(maps):
    inputs = keras.Input(maps.shape[1:])
    enlarged = layers.Conv2DTranspose(1, 8, 8, activation="sigmoid", name="heat")(inputs)
    return keras.Model(inputs, enlarged)(maps)


def importance(maps):
    """As a decoder that was trained in PyTorch ends."""
    x = layers.BatchNormalization()(layers.Conv2DTranspose(4, 4, 2, "same")(maps))
    x = layers.Resizing(32, 32)(layers.Conv2D(1, 1)(x))
    return layers.Activation("sigmoid", name="importance")(x)


def mean(maps):
    return layers.GlobalAveragePooling2D()(maps)


# What users build on feature maps, and the name of its output in files.
KINDS = {
    "importance": importance,
    "heat": decoder,
    "depth": layers.Conv2D(1, 1, activation="softplus", name="depth"),
    "parts": layers.Conv2D(3, 1, activation="softmax", name="parts"),
    "conv2d": lambda x: layers.Conv2D(2, 1)(x),  # without the number that Keras adds
    "sigmoid": lambda x: keras.ops.sigmoid(layers.Conv2D(2, 1)(x)),
    "tokens": layers.Reshape((16, 32), name="tokens"),
    "age": lambda x: layers.Dense(1, "relu", name="age")(mean(x)),
    "re_lu": lambda x: layers.ReLU()(layers.Dense(1)(mean(x))),
    "exp": lambda x: keras.ops.exp(layers.Dense(1)(mean(x))),
    "unit_normalization": lambda x: layers.UnitNormalization()(layers.Dense(4)(mean(x))),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_class_scores_stays_as_it_is_under_its_own_name(name, maps, pixels):
    images, features = maps
    model = keras_vit.Model(images, KINDS[name](features))
    inference = prepare(model)
    outputs = inference(tf.constant(pixels))
    assert list(outputs) == [name] == list(check_outputs(inference, None))
    np.testing.assert_allclose(outputs[name], model(pixels), rtol=0, atol=1e-6)
    assert inference.classes is None and not inference.has_probabilities
    assert inference.smallest_scale < 1e-6  # a map of small values is compared with its own


def test_features_of_a_nested_backbone_are_no_logits(pixels):
    backbone = keras_vit.build_vit(tiny_config(depth=1, classes=None))
    images = keras.Input((32, 32, 3))
    assert list(prepare(keras.Model(images, backbone(images)))(pixels)) == ["features"]


def test_a_user_may_say_that_maps_are_logits(maps, pixels):
    images, features = maps
    model = keras_vit.Model(images, layers.Conv2D(3, 1, activation="softmax")(features))
    outputs = prepare(model, activation="softmax")(tf.constant(pixels))
    assert set(outputs) == {"logits", "probabilities"}
    np.testing.assert_allclose(outputs["probabilities"], model(pixels), rtol=0, atol=1e-6)
    assert not np.allclose(outputs["logits"], model(pixels), atol=0.1)


def test_probabilities_are_not_activated_again(maps, pixels):
    images, features = maps
    shares = layers.Conv2D(3, 1, activation="softmax", name="logits")(features)
    for outputs in (shares, {"logits": shares}):
        model = keras_vit.Model(images, outputs)
        assert list(prepare(model)(tf.constant(pixels))) == ["logits"]  # as the user says
    vector = layers.Flatten()(layers.Conv2D(3, 4, activation="softmax")(features))
    for end in (layers.UpSampling2D()(shares), layers.Reshape((16, 3))(shares), vector):
        with pytest.raises(ValueError, match=r"ends in softmax, .*would be exported as logits"):
            prepare(keras_vit.Model(images, end), activation="softmax")
        (found,) = prepare(keras_vit.Model(images, end), activation="linear")(pixels).values()
        np.testing.assert_allclose(found, keras.Model(images, end)(pixels), rtol=0, atol=1e-6)


def test_linear_leaves_a_sigmoid_in_the_file(maps, pixels):
    """Of boxes in [0, 1], say."""
    images, features = maps
    model = keras_vit.Model(images, layers.Dense(4, "sigmoid")(mean(features)))
    plain = prepare(model, activation="linear")(tf.constant(pixels))
    np.testing.assert_allclose(plain["logits"], model(pixels), rtol=0, atol=1e-6)
    assert "probabilities" not in plain
    scores = prepare(model)(tf.constant(pixels))
    np.testing.assert_allclose(scores["probabilities"], model(pixels), rtol=0, atol=1e-6)


def test_a_sequential_model_has_logits(pixels):
    backbone = keras_vit.build_vit(tiny_config(depth=1, classes=None))
    model = keras.Sequential([backbone, layers.Dense(3)])
    outputs = prepare(model)(tf.constant(pixels))
    np.testing.assert_allclose(outputs["logits"], model(pixels), rtol=0, atol=1e-6)


DENSE = [*EXPORTS, "openvino"]


@pytest.mark.parametrize("format", quick(DENSE, "litert"))
def test_maps_of_a_decoder_in_files(format, maps, pixels, tmp_path):
    model = keras_vit.Model(maps[0], importance(maps[1]))
    path = tmp_path / "m.xml"
    report = FORMATS[format].export(model, path, images=pixels)
    outputs = FORMATS[format].load(report.path)(pixels)
    np.testing.assert_allclose(outputs["importance"], model(pixels), rtol=0, atol=1e-5)
    assert set(outputs) == {"importance"} and report.top1_agreement is None
    assert keras_vit.verify_export(report.path, model, pixels).max_difference < 1e-5
    if format == "litert":
        with zipfile.ZipFile(path) as archive:  # nothing that a client takes for classes
            assert archive.read("labels.txt") == b""
            card = json.loads(archive.read("model_card.json"))
        assert (card["output"], card["activation"], card["labels"]) == ("importance", "linear", [])
        golden = np.array(card["golden"]["importance"])
        assert golden.shape == (32, 32, 1) and 0 < golden.min() < golden.max() < 1
    if format == "saved_model":
        file = io.BytesIO()
        PIL.Image.fromarray(pixels[0].astype("uint8")).save(file, "png")
        serve = tf.saved_model.load(str(report.path)).signatures["serving_default"]
        answer = serve(image_bytes=tf.constant([file.getvalue()]))
        assert set(answer) == {"importance"}
        expected = model(pixels[:1])
        np.testing.assert_allclose(answer["importance"], expected, rtol=0, atol=1e-5)


def test_a_large_map_is_not_written_into_the_model_card(maps, monkeypatch):
    inference = prepare(keras_vit.Model(maps[0], importance(maps[1])))
    monkeypatch.setattr(serving, "_MAX_GOLDEN", 32 * 32 - 1)
    card = serving.model_card(inference, "onnx", "float32", [])
    assert set(card["golden"]) == {"shape", "png"}


def test_the_program_of_deployments_names_a_file_without_classes(maps, tmp_path, monkeypatch):
    classify = runpy.run_path(str(ROOT / "export/classify.py"))
    path, image = tmp_path / "m.onnx", tmp_path / "image.png"
    PIL.Image.new("RGB", (40, 30)).save(image)
    export_onnx(keras_vit.Model(maps[0], importance(maps[1])), path)
    difference, allowed = classify["check"](str(path))
    assert difference <= allowed == 1e-5
    with pytest.raises(SystemExit, match=r"m\.onnx gives importance, and no classes"):
        classify["classify"](str(path), image)
    monkeypatch.setattr(serving, "_MAX_GOLDEN", 1)
    large = keras_vit.Model(maps[0], importance(maps[1]))
    assert export_onnx(large, tmp_path / "large.onnx", "float16").max_difference < 5e-3
    with pytest.raises(SystemExit, match=r"large\.onnx has no importance to compare with"):
        classify["check"](str(tmp_path / "large.onnx"))


def test_labelled_images_need_classes(maps, tmp_path):
    images = keras_vit.data.read_arrays(np.zeros((4, 32, 32, 3), "uint8"), [0, 1, 0, 1], ["a", "b"])
    model = keras_vit.Model(maps[0], importance(maps[1]))
    with pytest.raises(ValueError, match=r"top-1 accuracy.*outputs importance, and no classes"):
        keras_vit.export.find_export(model, images, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_channels_of_a_map_may_have_labels(maps):
    model = keras_vit.Model(maps[0], layers.Conv2D(2, 1)(maps[1]))
    assert check_labels(None, None, model) == []
    assert check_labels(["x", "y"], None, model) == ["x", "y"]
    model.class_names = ["left", "right"]
    assert check_labels(None, None, model) == ["left", "right"]
    with pytest.raises(ValueError, match=r"each of the model's 2 classes.*Received: 1 labels"):
        check_labels(["x"], None, model)
