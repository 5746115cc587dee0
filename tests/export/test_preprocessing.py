"""Tests where the preprocessing of an export comes from."""

from __future__ import annotations

import keras
import pytest

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.data.input_transform import transform_of
from keras_vit.errors import ExportMismatchError
from keras_vit.export.inference import prepare
from keras_vit.export.saved_model import export_saved_model
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config, tiny_vit

BICUBIC = Preprocessing(interpolation="bicubic", crop_ratio=0.875, library="timm")


def wrapped(base):
    return keras.Model(base.input, base.output)


def nested(base):
    images = keras.Input(base.input_shape[1:])
    return keras.Model(images, keras.layers.Dense(4)(base(images)))


def with_rescaling(base):
    images = keras.Input(base.input_shape[1:])
    return keras.Model(images, base(keras.layers.Rescaling(255.0)(images)))


@pytest.mark.parametrize("wrap", [wrapped, nested, keras.models.clone_model])
def test_models_built_on_a_model_keep_its_preprocessing(wrap, tmp_path):
    base = tiny_vit(preprocessing=BICUBIC)
    model = wrap(base)
    model.save(tmp_path / "model.keras")
    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        assert prepare(each).preprocessing == BICUBIC
        assert transform_of(each).preprocessing == BICUBIC
        assert not prepare(each).normalizes


def test_a_nested_model_without_normalisation_is_normalised_once():
    base = build_vit(tiny_config(preprocessing=BICUBIC, include_preprocessing=False))
    assert (prepare(nested(base)).preprocessing, prepare(nested(base)).normalizes) == (
        BICUBIC,
        True,
    )
    with pytest.raises(ValueError, match="neither a `config` nor a layer"):
        prepare(wrapped(base))


def test_preprocessing_that_is_not_known_is_demanded():
    model = with_rescaling(build_vit(tiny_config(preprocessing=BICUBIC)))
    with pytest.raises(ValueError, match=r"normalises pixels itself.*Pass\s+preprocessing="):
        prepare(model)
    assert prepare(model, preprocessing=BICUBIC).preprocessing == BICUBIC


@pytest.mark.slow
def test_a_signature_that_resizes_otherwise_is_found(tmp_path):
    """The check of pixels alone passed: they are of the model's size already."""
    model = tiny_vit(preprocessing=BICUBIC)
    other = Preprocessing(BICUBIC.mean, BICUBIC.std)
    report = export_saved_model(wrapped(model), tmp_path / "m", preprocessing=other)
    with pytest.raises(ExportMismatchError, match="saved_model export differs"):
        keras_vit.verify_export(report.path, wrapped(model), tolerance=1e-3)
    assert keras_vit.verify_export(report.path, model, preprocessing=other).max_difference < 1e-4
