"""Folded kernels: the same numbers, less work."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.config import ResNetConfig, ResNetStem
from keras_vit.create import build
from keras_vit.layers import convolution
from keras_vit.models.resnet import fold_standardization
from keras_vit.runtime.model import Model
from tests.fixtures import fill_random, images_for, tiny_config

CONFIGS = {
    "hybrid": tiny_config(patch_size=1, image_size=64, stem=ResNetStem((1, 1)), depth=1),
    "bit": ResNetConfig(stages=(1, 1), image_size=(40, 33), classes=5),
}


def operations(model):
    function = tf.function(model).get_concrete_function(tf.TensorSpec(model.input_shape))
    return [operation.type for operation in function.graph.get_operations()]


@pytest.mark.parametrize("family", CONFIGS)
def test_a_folded_model_gives_the_same_numbers_with_less_work(family):
    model = build(CONFIGS[family])
    fill_random(model)
    folded = fold_standardization(model)
    assert type(folded) is Model
    assert [w.path for w in folded.weights] == [w.path for w in model.weights]
    images = images_for(model)
    expected = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(folded(images), expected, rtol=0, atol=5e-6 * np.abs(expected).max())
    convolutions = operations(model).count("Conv2D")
    assert operations(folded).count("Conv2D") == convolutions
    # Standardising takes two means a kernel, and nothing else was left out.
    means = operations(model).count("Mean") - operations(folded).count("Mean")
    standardized = convolutions - (family == "hybrid")  # the patch projection is plain
    assert means == 2 * standardized
    assert model(images) is not None  # the model itself is as it was
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(images)), expected)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_folded_model_is_saved_with_its_configuration(family, tmp_path):
    model = build(CONFIGS[family])
    fill_random(model)
    folded = fold_standardization(model)
    folded.save(tmp_path / "folded.keras")
    reloaded = keras.saving.load_model(tmp_path / "folded.keras")
    stem = reloaded.config if family == "bit" else reloaded.config.stem
    assert stem.standardization is None
    assert build(reloaded.config).count_params() == model.count_params()
    images = images_for(model)
    np.testing.assert_array_equal(reloaded(images), folded(images))
    assert fold_standardization(reloaded) is reloaded  # once is enough


def test_what_users_build_on_a_model_is_folded_too():
    backbone = build(ResNetConfig(stages=(1,), image_size=32, classes=None))
    fill_random(backbone)
    inputs = keras.Input((32, 32, 3))
    model = keras.Model(inputs, keras.layers.Dense(3)(backbone(inputs)))
    folded = fold_standardization(model)
    images = images_for(model)
    expected = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(folded(images), expected, rtol=0, atol=1e-5 * abs(expected).max())
    assert operations(folded).count("Mean") < operations(model).count("Mean")


def test_a_model_without_standardised_kernels_is_returned_itself():
    model = build(tiny_config())
    assert fold_standardization(model) is model


def test_a_training_step_standardises_each_kernel_once(monkeypatch):
    """Gradients do not compute it again: the traced step holds it once a convolution."""
    calls = []
    original = convolution.standardize
    monkeypatch.setattr(
        convolution, "standardize", lambda *args: calls.append(1) or original(*args)
    )
    model = build(ResNetConfig(stages=(1, 2), image_size=32, classes=3))
    model.compile("sgd", "mse", jit_compile=False)  # XLA traces a step twice
    calls.clear()
    model.train_on_batch(images_for(model), np.zeros((4, 3)))
    assert len(calls) == 1 + 4 + 4 + 3  # root, and units with and without a shortcut
