"""Names of the outputs of models that give a dict, in every format."""

from __future__ import annotations

import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export.formats import FORMATS
from keras_vit.export.inference import check_outputs, prepare
from keras_vit.export.litert import export_litert
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from tests.checks import quick
from tests.export.conftest import LABELS

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
