"""`adapt_model` resizes positions by the method of the checkpoint's project."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.config import POSITION_RESIZES, make_config
from keras_vit.create import build
from tests.fixtures import fill_random, tiny_config
from tests.official import GOLDEN
from tests.weights.test_load_torch import CASES, weights

METHODS = {
    "timm vit": "bicubic",
    "transformers vit": "bicubic_plain",
    "official": "align_corners",
}
POSITIONS = "position_embedding/embedding"


def positions(model):
    (table,) = [weight for weight in model.weights if weight.path == POSITIONS]
    return np.asarray(table)


@pytest.fixture
def checkpoint(tmp_path):
    def save(title):
        if title == "official":
            return GOLDEN / "vit_token.checkpoint.npz"
        path = tmp_path / "model.safetensors"
        safetensors.numpy.save_file(weights(CASES[title]["shapes"]), path)
        return path

    return save


@pytest.mark.parametrize("title", METHODS)
def test_adapting_equals_loading_at_the_new_size(title, checkpoint, tmp_path):
    path = checkpoint(title)
    native = keras_vit.from_pretrained(path, num_heads=4)
    assert native.config.position_resize == METHODS[title]
    loaded = keras_vit.from_pretrained(path, num_heads=4, input_shape=(48, 40, 3))
    adapted = keras_vit.adapt_model(native, image_size=(48, 40))
    assert positions(adapted).shape != positions(native).shape
    np.testing.assert_array_equal(positions(adapted), positions(loaded))
    native.save(tmp_path / "native.keras")
    restored = keras.saving.load_model(tmp_path / "native.keras")
    assert restored.config == native.config
    adapted = keras_vit.adapt_model(restored, image_size=(48, 40))
    np.testing.assert_array_equal(positions(adapted), positions(loaded))


def test_every_method_gives_other_positions():
    model = build(tiny_config())
    fill_random(model)
    tables = [
        positions(keras_vit.adapt_model(model, image_size=(56, 24), position_resize=method))
        for method in POSITION_RESIZES
    ]
    for index, table in enumerate(tables):
        assert all(np.abs(table - other).max() > 1e-3 for other in tables[:index])


def test_the_caller_may_choose_the_method(checkpoint):
    path = checkpoint("timm vit")
    chosen = {"num_heads": 4, "input_shape": (48, 48, 3), "position_resize": "linear"}
    linear = keras_vit.from_pretrained(path, **chosen)
    assert linear.config.position_resize == "linear"
    assert "(linear)" in linear.load_report.resized[POSITIONS]


def test_a_configuration_without_the_field_is_official():
    fields = tiny_config().to_dict()
    del fields["position_resize"]  # as in `.keras` files before the field
    assert make_config(**fields).position_resize == "align_corners"
    model = build(tiny_config())
    saved = model.get_config()
    del saved["architecture"]["fields"]["position_resize"]
    assert type(model).from_config(saved).config == model.config


def test_an_unknown_method_is_an_error():
    with pytest.raises(ValueError, match=r"`position_resize` must be one of 'align_corners'"):
        tiny_config(position_resize="cubic")
