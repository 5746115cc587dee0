"""Models that Keras quantised: read back, trained on, and refused where floats are needed."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

import keras_vit
from tests.checks import quick
from tests.fixtures import fill_random, images_for, tiny_config


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def quantized(mode, **options):
    model = keras_vit.build_vit(tiny_config(**options))
    fill_random(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Keras names the layers without kernels
        model.quantize(mode)
    return model


@pytest.mark.parametrize("mode", quick(["int8", "int4", "float8"], "int8"))
def test_files_are_read_back_also_twice_and_nested(mode, tmp_path):
    model = quantized(mode, pooling="map", class_token=False)
    images = images_for(model)
    expected = numpy(model(images))
    kinds = {w.path: w.dtype for w in model.weights}
    assert mode == "float8" or kinds["pooling/key_value/kernel"] == "int8"
    model.save(tmp_path / "once.keras")
    once = keras.saving.load_model(tmp_path / "once.keras")
    assert {w.path: w.dtype for w in once.weights} == kinds
    once.save(tmp_path / "twice.keras")
    inputs = keras.Input(model.input_shape[1:])
    keras.Model(inputs, once(inputs)).save(tmp_path / "nested.keras")
    for name in ("once", "twice", "nested"):
        again = keras.saving.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_array_equal(numpy(again(images)), expected, err_msg=name)


@pytest.mark.slow
def test_a_quantised_model_learns_by_updates_and_is_saved(tmp_path):
    model = keras_vit.models.add_lora(quantized("int8"), 2)
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    images = images_for(model)
    losses = model.fit(images, np.arange(4), epochs=6, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    expected = numpy(model(images))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not loaded.compiled
    again = numpy(loaded(images))
    # Keras adds the update to the kernel and quantises the sum again.
    np.testing.assert_allclose(again, expected, rtol=0, atol=0.1 * np.abs(expected).max())


def test_numbers_of_eight_bits_are_not_taken_for_weights(tmp_path):
    model = quantized("int8")
    for use in (
        lambda: keras_vit.save_weights(model, tmp_path / "model.npz"),
        lambda: keras_vit.adapt_model(model, classes=3),
    ):
        with pytest.raises(ValueError, match=r"quantised by Keras \(block_0/attention/qkv/kernel"):
            use()
    assert not list(tmp_path.iterdir())
