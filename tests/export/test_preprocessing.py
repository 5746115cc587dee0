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


def with_decoder(base):
    """What follows the model may resize and rescale."""
    x = keras.layers.Reshape((4, 4, 2))(keras.layers.Dense(32)(base.output))
    x = keras.layers.Resizing(32, 32)(keras.layers.Rescaling(0.5)(x))
    return keras.Model(base.input, 2.0 * x)


def augmented(base):
    images = keras.Input(base.input_shape[1:])
    return keras.Model(images, base(keras.layers.RandomFlip()(images)))


WRAPS = [wrapped, nested, with_decoder, augmented, keras.models.clone_model]


@pytest.mark.parametrize("wrap", WRAPS)
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


def with_arithmetic(base):
    images = keras.Input(base.input_shape[1:])
    return keras.Model(images, base(images * 255.0))


def with_another_norm(base):
    images = keras.Input(base.input_shape[1:])
    return keras.Model(images, base(keras.layers.Normalization(mean=0.0, variance=4.0)(images)))


def with_a_crop_inside(base):
    images = keras.Input(base.input_shape[1:])
    augment = keras.Sequential([keras.layers.RandomFlip(), keras.layers.CenterCrop(32, 32)])
    return keras.Model(images, nested(base)(augment(images)))


def sequential(base):
    return keras.Sequential([keras.layers.Rescaling(255.0), base])


def deep_inside(base):
    images = keras.Input(base.input_shape[1:])
    return keras.Model(images, with_rescaling(base)(images))


CHANGES = [with_rescaling, with_arithmetic, with_another_norm, with_a_crop_inside]


@pytest.mark.parametrize("wrap", [*CHANGES, sequential, deep_inside])
def test_preprocessing_that_is_not_known_is_demanded(wrap):
    model = wrap(build_vit(tiny_config(preprocessing=BICUBIC)))
    if not model.built:
        model.build((None, 32, 32, 3))
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
