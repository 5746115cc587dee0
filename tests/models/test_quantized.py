"""Models that Keras quantised: read back, trained on, dequantised and exported."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

import keras_vit
from tests.checks import quick
from tests.fixtures import fill_random, images_for, numpy, tiny_config, tiny_vit


def quantize(model, mode):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Keras names the layers without kernels
        model.quantize(mode)
    return model


def quantized(mode, **options):
    model = tiny_vit(**options)
    return quantize(model, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
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


@pytest.mark.slow
def test_numbers_of_eight_bits_are_not_taken_for_weights(tmp_path):
    model = quantized("int8")
    for use in (
        lambda: keras_vit.save_weights(model, tmp_path / "model.npz"),
        lambda: keras_vit.adapt_model(model, classes=3),
    ):
        with pytest.raises(ValueError, match=r"quantised by Keras \(block_0/attention/qkv/kernel"):
            use()
    assert not list(tmp_path.iterdir())


def rounded(x, mode):
    """Inputs of a layer as Keras rounds them; `"int4"` in blocks leaves them as they are."""
    if mode == "int8":
        x, scale = keras.quantizers.abs_max_quantize(x, axis=-1)
        return keras.ops.cast(x, "float32") / scale
    if mode == "float8":
        return keras.quantizers.quantize_and_dequantize(x, 1.0, "float8_e4m3fn", "float32")
    return x


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_only_the_rounding_of_inputs_tells_a_dequantised_model_apart(mode, monkeypatch):
    inner = keras_vit.build_vit(tiny_config(depth=1, pooling="map", class_token=False))
    inputs = keras.Input(inner.input_shape[1:])
    model = keras.Model(inputs, keras.layers.Dense(3)(inner(inputs)))
    fill_random(model)
    quantize(model, mode)
    images = images_for(inner)
    expected = numpy(model(images))
    copy = keras_vit.models.dequantize(model)
    assert {layer.dtype_policy.name for layer in copy.layers} == {"float32"}
    difference = np.abs(numpy(copy(images)) - expected).max() / np.abs(expected).max()
    limits = {"int8": (1e-3, 0.03), "int4": (0, 1e-6), "float8": (1e-3, 0.2)}[mode]
    assert limits[0] <= difference < limits[1]
    call = keras.layers.Dense.call
    monkeypatch.setattr(
        keras.layers.Dense, "call", lambda self, x, **k: call(self, rounded(x, mode))
    )
    np.testing.assert_allclose(numpy(copy(images)), expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.slow
def test_a_layer_is_dequantised_within_half_a_step_of_its_inputs():
    model = quantized("int8", depth=1)
    layers = {x.path: x for x in keras_vit.models.dequantize(model)._flatten_layers()}
    x = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
    for layer in model._flatten_layers():
        if layer.quantization_mode and layer.name in ("qkv", "head"):
            y = layers[layer.path]
            step = np.abs(x).max(axis=1, keepdims=True) / 127
            bound = step / 2 * np.abs(numpy(y.kernel)).sum(axis=0) + 1e-5
            difference = np.abs(numpy(layer(x)) - numpy(y(x)))
            assert (difference <= bound).all() and difference.max() > 0.01 * bound.max()


EXPORTS = {
    "saved_model": keras_vit.export_saved_model,
    "litert": keras_vit.export_litert,
    "onnx": keras_vit.export_onnx,
}
CASES = [(mode, name) for mode in ("int8", "int4", "float8") for name in EXPORTS]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "name"), quick(CASES, ("int8", "onnx")))
def test_exports_hold_the_dequantised_kernels_and_say_so(mode, name, tmp_path):
    inner = quantized(mode, depth=1)
    if mode != "float8":  # which has no updates
        keras_vit.models.add_lora(inner, 2)
        random = np.random.default_rng(0)
        for update in inner.trainable_weights:
            update.assign(random.normal(0, 0.2, update.shape))
    inputs = keras.Input(inner.input_shape[1:])
    model = keras_vit.Model(inputs, keras.layers.Activation("softmax")(inner(inputs)))
    images = images_for(inner)
    options = {"images": images, "preprocessing": keras_vit.Preprocessing(mean=0, std=1)}
    said = rf"quantised 5 layers .*\({mode}\)\. The file holds their kernels dequantised.*agreement"
    with pytest.warns(UserWarning, match=said):
        report = EXPORTS[name](model, tmp_path / name, **options)
    assert report.max_difference < 1e-5  # from the dequantised model
    report = keras_vit.verify_export(report.path, model, **options)
    low, high = {"int8": (1e-4, 0.02), "int4": (0, 1e-6), "float8": (1e-4, 0.1)}[mode]
    assert low <= report.max_difference < high
    assert report.top1_agreement == 1


@pytest.mark.slow
def test_what_cannot_be_dequantised_is_named():
    model = quantized("int8", depth=1)
    with pytest.raises(ValueError, match=r"models\.dequantize\(model\)` merges"):
        keras_vit.models.merge_lora(keras_vit.models.add_lora(model, 2))
    inputs = keras.Input((4, 8))
    other = keras.layers.EinsumDense("abc,cd->abd", (4, 3))(inputs)
    other = quantize(keras.Model(inputs, other), "int8")
    with pytest.raises(ValueError, match=r"has einsum_dense.*\(EinsumDense, int8\).*filters="):
        keras_vit.models.dequantize(other)
