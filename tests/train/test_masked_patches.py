"""Masked patch prediction: the model, its loss, and its training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.checks import quick
from tests.fixtures import fill_random, images_for, tiny_config

STEM = keras_vit.config.ResNetStem()


def compiled(model, target="mean_color", **arguments):
    masked = keras_vit.train.masked_patch_model(model, target)
    loss = (
        keras.losses.MeanSquaredError()
        if target == "pixels"
        else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    masked.compile(keras.optimizers.Adam(3e-3), loss, **arguments)
    return masked


def data(model, patch_size=8, count=16, **arguments):
    """Images of few colours, so that masked patches can be predicted from adjacent ones."""
    rng = np.random.default_rng(0)
    colors = rng.integers(0, 256, (count, 1, 1, 3))
    x = np.broadcast_to(colors, (count, *model.input_shape[1:])).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(8)
    return keras_vit.data.mask_patches(dataset, patch_size, **arguments)


CONFIGS = {
    "class token": tiny_config(),
    "mean of tokens": tiny_config(class_token=False, pooling="gap"),
    "registers": tiny_config(num_registers=3),
    "norm after pooling": tiny_config(pooling="gap", norm_after_pooling=True),
    "two tokens": tiny_config(distillation_token=True),
    "hybrid": tiny_config(patch_size=2, stem=STEM),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_without_masks_are_the_models_own(name):
    model = keras_vit.build_vit(CONFIGS[name])
    fill_random(model)
    masked = keras_vit.train.masked_patch_model(model)
    fill_random(masked, seed=1)
    fill_random(model)
    x = images_for(model, 2)
    sources = np.broadcast_to(np.arange(16, dtype="int32"), (2, 16))
    head = masked.get_layer("patch_head")
    last = f"block_{model.config.depth - 1}" if model.config.norm_after_pooling else "encoder_norm"
    tokens = keras_vit.features_of(model, last)(x)[last]
    expected = head(tokens[:, model.config.num_prefix_tokens :])
    predictions = masked({"images": x, "sources": sources})
    np.testing.assert_allclose(predictions, expected, rtol=1e-5, atol=1e-5)


def test_masked_patches_have_no_influence_and_replacements_do():
    model = keras_vit.build_vit(tiny_config())
    masked = keras_vit.train.masked_patch_model(model)
    fill_random(masked)
    x = images_for(model, 1)
    here = np.arange(16, dtype="int32")[None]
    sources = here.copy()
    sources[0, 3], sources[0, 5] = -1, 9
    predictions = masked({"images": x, "sources": sources})
    other = x.copy()
    other[:, 0:8, 24:32] = 7  # patch 3, which is masked
    other[:, 8:16, 8:16] = 200  # patch 5, which is replaced
    same = masked({"images": other, "sources": sources})
    np.testing.assert_array_equal(predictions, same)
    assert np.abs(masked({"images": x, "sources": here}) - predictions).max() > 1e-3
    other[:, 16:24, 8:16] = 0  # patch 9, which replaces it
    assert np.abs(masked({"images": other, "sources": sources}) - predictions).max() > 1e-3


@pytest.mark.parametrize(
    ("target", "shape"),
    quick(
        [("mean_color", (16, 512)), ("small_patch", (16, 16, 512)), ("pixels", (16, 192))],
        ("mean_color", (16, 512)),
    ),
)
def test_every_target_is_learned(target, shape):
    keras.utils.set_random_seed(0)
    model = keras_vit.build_vit(tiny_config(depth=1))
    before = [np.array(w) for w in model.get_layer("block_0").weights]
    masked = compiled(model, target)
    assert masked.output_shape == (None, *shape)
    history = masked.fit(data(model, target=target), epochs=12, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    after = model.get_layer("block_0").weights
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(after, before, strict=True))


def test_the_loss_covers_corrupted_patches_only():
    model = keras_vit.build_vit(tiny_config())
    masked = compiled(model, weighted_metrics=["accuracy"])
    fill_random(masked)
    (inputs, targets, weights), *_ = data(model, count=8).as_numpy_iterator()
    logits = np.asarray(masked(inputs), "float64")
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    likely = np.take_along_axis(exp / exp.sum(-1, keepdims=True), targets[..., None], -1)[..., 0]
    results = masked.evaluate(data(model, count=8), verbose=0, return_dict=True)
    assert results["loss"] == pytest.approx(-np.log(likely)[weights > 0].mean(), rel=1e-5)
    right = (logits.argmax(-1) == targets)[weights > 0].mean()
    assert results["accuracy"] == pytest.approx(right, abs=1e-6)


def test_masked_models_can_be_saved(tmp_path):
    model = keras_vit.build_vit(tiny_config())
    masked = keras_vit.train.masked_patch_model(model)
    fill_random(masked)
    masked.save(tmp_path / "masked.keras")
    loaded = keras.saving.load_model(tmp_path / "masked.keras")
    (inputs, _, _), *_ = data(model).as_numpy_iterator()
    np.testing.assert_array_equal(loaded(inputs), masked(inputs))


def test_models_that_do_not_fit():
    bare = keras_vit.build_vit(tiny_config(include_preprocessing=False))
    with pytest.raises(ValueError, match="include_preprocessing=True"):
        keras_vit.train.masked_patch_model(bare)
    with pytest.raises(ValueError, match="needs a Vision Transformer of this package"):
        keras_vit.train.masked_patch_model(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match=r"patch_dropout_rate=0.5\. Pre-train it with 0"):
        keras_vit.train.masked_patch_model(keras_vit.build_vit(tiny_config(patch_dropout_rate=0.5)))
    with pytest.raises(ValueError, match="`target` must be one of"):
        keras_vit.train.masked_patch_model(bare, "colour")
