"""The BiT ResNet: its numbers against the official code."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.config import ResNetConfig, ResNetStem
from keras_vit.create import build
from keras_vit.layers import convolution, residual
from keras_vit.models.resnet import build_resnet, fold_standardization
from keras_vit.runtime.model import Model
from scripts.golden.eval_cases import values
from tests import official, reference_resnet
from tests.fixtures import fill_random, images_for, tiny_config
from tests.official import golden_images

ATOL = 5e-5  # of logits around 5, where the official code is at most 1.1e-5 from float64
# Logits of the official code for the numbers of `fill`, made with the big_vision reading of the
# model (-inf around what is pooled) and with that of the BiT repository (zeros).
ZEROS = [
    [-2.583279, -1.869506, -4.529027, -1.327823, -1.356910],
    [-4.963905, -4.752320, -3.423859, -2.685648, -3.075397],
]
INFINITIES = [
    [-2.581209, -1.858566, -4.520102, -1.309705, -1.364467],
    [-4.969349, -4.758269, -3.415626, -2.658055, -3.080393],
]
CONFIG = ResNetConfig(stages=(1, 2, 1, 1), image_size=64, classes=5, include_preprocessing=False)


def official_name(path):
    """Our path by the name that big_vision gives the variable."""
    for pattern, name in (
        (r"^root/conv/", "root_block/conv_root/"),
        (r"^norm/", "norm-pre-head/"),
        (r"^stage_(\d)/unit_(\d)/", r"block\1/unit0\2/"),
        (r"conv_(\d)/", r"conv\1/"),
        (r"norm_(\d)/", r"gn\1/"),
        (r"shortcut/", "conv_proj/"),
        (r"gamma$", "scale"),
        (r"beta$", "bias"),
    ):
        path = re.sub(pattern, name, path)
    return path


def fill(model):
    """Fills weights by a formula of the index of the sorted name and the index of the element."""
    arrays = {official_name(w.path): w for w in model.weights}
    for j, name in enumerate(sorted(arrays)):
        arrays[name].assign(values(arrays[name].shape, j, name.endswith("scale")))


@pytest.fixture(scope="module")
def model():
    model = build_resnet(CONFIG)
    fill(model)
    return model


def test_logits_agree_with_the_official_code(model):
    assert len(model.weights) == 54
    assert model.count_params() == 8_298_565
    np.testing.assert_allclose(model(golden_images(64)), ZEROS, rtol=0, atol=ATOL)


def test_logits_agree_with_the_paper_in_numpy(model):
    expected = reference_resnet.bit(official.from_keras(model), golden_images(64), CONFIG.stages)
    np.testing.assert_allclose(model(golden_images(64)), expected, rtol=0, atol=ATOL)


def test_infinities_around_what_is_pooled_give_the_other_official_numbers(model, monkeypatch):
    """What the two official codes disagree on, and nothing else, is the padding of the pooling."""

    def pad_infinities(maps, kernel_size):
        widths = ((0, 0), (1, 1), (1, 1), (0, 0))
        return keras.ops.pad(maps, widths, constant_values=-np.inf)

    monkeypatch.setattr(residual, "pad_fixed", pad_infinities)
    logits = keras.ops.convert_to_numpy(model(golden_images(64)))
    np.testing.assert_allclose(logits, INFINITIES, rtol=0, atol=ATOL)
    assert np.abs(logits - ZEROS).max() > 100 * ATOL


def test_the_form_of_the_standardisation_would_be_noticed(model):
    plain = build_resnet(ResNetConfig(**{**CONFIG.to_dict(), "standardization": None}))
    plain.set_weights(model.get_weights())
    assert np.abs(keras.ops.convert_to_numpy(plain(golden_images(64))) - ZEROS).max() > 100 * ATOL


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
