"""Image GPT against float64 NumPy, written from its paper, and what it draws."""

from __future__ import annotations

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import image_gpt
from keras_vit.train.probe import fit_probe
from tests.fixtures import fill_random

RANDOM = np.random.default_rng(3)
PALETTE = RANDOM.uniform(-1, 1, (12, 3)).astype("float32")
CONFIG = image_gpt.ImageGPTConfig(16, 2, 2, image_size=(4, 6), colors=12)
MASKED = dataclasses.replace(CONFIG, mask_rate=0.4)
COLORS = RANDOM.integers(0, 12, (3, 24))
NUMPY = keras.ops.convert_to_numpy


def filled(config=CONFIG, stddev=0.2):
    model = image_gpt.build_image_gpt(config, PALETTE)
    fill_random(model, stddev)
    model.get_layer("palette").assign(PALETTE)
    return model


def images_of(model, colors=COLORS):
    return model.get_layer("palette").decode(colors).reshape(len(colors), 4, 6, 3)


def weights_of(model):
    return {weight.path: NUMPY(weight).astype("float64") for weight in model.weights}


def rms(x, gamma):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gamma


def expected_logits(model, colors, hidden=None):
    """Section 2 of the paper: `hidden` of shape `(B, T)` for the BERT variant."""
    w = weights_of(model)
    x = w["token_embedding/embeddings"][colors]
    if hidden is None:
        start = np.broadcast_to(w["start_token/token"], (len(x), 1, x.shape[-1]))
        x = np.concatenate([start, x[:, :-1]], 1)
    else:
        x = x * (1 - hidden[..., None])
    x = x + w["position_embedding/embedding"]
    causal = np.tril(np.ones((24, 24))) if hidden is None else 1
    for block in ("block_0", "block_1"):
        y = rms(x, w[f"{block}/attention_norm/gamma"]) @ w[f"{block}/attention/qkv/kernel"]
        heads = []
        for head in range(2):
            q, k, v = (y[..., 16 * i + 8 * head :][..., :8] for i in range(3))
            odds = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(8)) * causal
            heads.append(odds / odds.sum(-1, keepdims=True) @ v)
        x = x + np.concatenate(heads, -1) @ w[f"{block}/attention/output/kernel"]
        y = rms(x, w[f"{block}/mlp_norm/gamma"]) @ w[f"{block}/mlp/hidden/kernel"]
        x = x + y / (1 + np.exp(-1.702 * y)) @ w[f"{block}/mlp/output/kernel"]
    return rms(x, w["encoder_norm/gamma"]) @ w["pixel_logits/kernel"]


def cross_entropy(logits, colors):
    odds = np.exp(logits)
    right = np.take_along_axis(odds, colors[..., None], -1)[..., 0]
    return -np.log(right / odds.sum(-1))


@pytest.mark.parametrize("chunk", [None, 7])
def test_logits_and_losses_are_the_papers(chunk):
    model = filled(dataclasses.replace(CONFIG, query_chunk_size=chunk))
    images = images_of(model)
    expected = expected_logits(model, COLORS)
    np.testing.assert_allclose(NUMPY(model(images)), expected, rtol=0, atol=2e-5)
    losses = cross_entropy(expected, COLORS)
    np.testing.assert_allclose(image_gpt.pixel_losses(model, images, 2), losses.mean(1), atol=1e-5)
    model.compile("sgd", jit_compile=False)
    assert model.evaluate(images, verbose=0) == pytest.approx(losses.mean(), abs=1e-5)
    assert len([w for w in model.weights if "bias" in w.path or "beta" in w.path]) == 0


def test_the_bert_variant_predicts_hidden_pixels_from_all_others():
    model = filled(MASKED)
    images, names = images_of(model), ("pixel_mask", "pixel_logits")
    (_, hidden), logits = keras.Model(
        model.inputs[0], [model.get_layer(name).output for name in names]
    )(images, training=True)
    hidden = NUMPY(hidden).astype("float64")
    assert 10 < hidden.sum() < 50  # of 72
    expected = expected_logits(model, COLORS, hidden)
    np.testing.assert_allclose(NUMPY(logits), expected, rtol=0, atol=2e-5)
    unmasked = expected_logits(model, COLORS, 0 * hidden)
    np.testing.assert_allclose(NUMPY(model(images)), unmasked, rtol=0, atol=2e-5)
    loss = np.average(cross_entropy(expected, COLORS), axis=1, weights=hidden).mean()
    layer, colors = model.get_layer("generative_loss"), model.get_layer("palette").output
    layer(expected, expected.astype("float32"), COLORS, hidden.astype("float32"))
    assert float(layer.losses[0]) == pytest.approx(loss, abs=1e-5)
    assert colors.shape == (None, 24)


def test_fit_learns_to_complete_images_and_keras_files_keep_the_model(tmp_path):
    columns = RANDOM.integers(0, 12, (64, 1, 6))  # every row of an image is alike
    colors = np.broadcast_to(columns, (64, 4, 6)).reshape(64, 24)
    keras.utils.set_random_seed(0)
    model = image_gpt.build_image_gpt(dataclasses.replace(CONFIG, depth=1), PALETTE)
    images = images_of(model, colors)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    model.fit(np.tile(images, (60, 1, 1, 1)), batch_size=64, verbose=0)  # 60 steps
    losses = cross_entropy(NUMPY(model(images)), colors).mean(0)
    assert losses[6:].mean() < 0.2 < np.log(12) / 4  # the first row alone is by chance
    drawn = image_gpt.sample_pixels(model, images, rows=1, temperature=0)
    assert (drawn == images).all(-1).mean() > 0.95
    model.save(tmp_path / "gpt.keras")
    again = keras.saving.load_model(tmp_path / "gpt.keras")
    np.testing.assert_array_equal(
        again.predict(images, verbose=0), model.predict(images, verbose=0)
    )
    assert image_gpt.sample_pixels(again, count=2).shape == (2, 4, 6, 3)


def test_the_joint_objective_is_the_sum_of_both_losses():
    model = filled()
    classifier = image_gpt.pixel_classifier(model, 5)
    images, labels = images_of(model), np.array([0, 4, 2])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile("sgd", loss, jit_compile=False)
    generative = image_gpt.pixel_losses(model, images).mean()
    assert classifier.evaluate(images, labels, verbose=0) == pytest.approx(
        generative + np.log(5), abs=1e-5
    )
    head = classifier.get_layer("head")
    head.kernel.assign(RANDOM.normal(size=head.kernel.shape))
    tokens = NUMPY(keras.Model(model.inputs[0], model.get_layer("encoder_norm").output)(images))
    expected = tokens.mean(1) @ NUMPY(head.kernel)
    np.testing.assert_allclose(NUMPY(classifier(images)), expected, rtol=0, atol=1e-5)
    classifier.fit(images, labels, verbose=0)  # and trains the output matrix too
    assert (NUMPY(model.get_layer("pixel_logits").kernel) != weights_of(filled())[
        "pixel_logits/kernel"]).any()  # fmt: skip


def test_half_precision_is_close():
    model, images = filled(), images_of(filled())
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = image_gpt.build_image_gpt(CONFIG, PALETTE)
    finally:
        keras.config.set_dtype_policy("float32")
    half.set_weights(model.get_weights())
    expected = NUMPY(model(images))
    assert 0 < np.abs(NUMPY(half(images)) - expected).max() < 0.03 * np.abs(expected).max()
    assert image_gpt.sample_pixels(half, images).shape == images.shape


def test_the_published_clusters_file_is_a_palette(tmp_path):
    np.save(tmp_path / "kmeans_centers.npy", PALETTE)
    model = image_gpt.build_image_gpt(CONFIG, tmp_path / "kmeans_centers.npy")
    layer = model.get_layer("palette")
    images = RANDOM.uniform(0, 255, (2, 4, 6, 3)).astype("float32")
    x = images[:, :, :, None] / 127.5 - 1  # as the official code: the nearest of all colours
    expected = ((x - PALETTE) ** 2).sum(-1).argmin(-1).reshape(2, 24)
    np.testing.assert_array_equal(layer(model.get_layer("preprocessing")(images)), expected)
    np.testing.assert_array_equal(layer.decode(expected[0, 0]), np.rint(127.5 * (PALETTE + 1))[
        expected[0, 0]])  # fmt: skip
    (tmp_path / "ragged.json").write_text('{"clusters": [[1], [1, 2], [' + "9" * 30 + "]]}")
    odd = (PALETTE[:0], PALETTE > 0, PALETTE + 1j, [10**400], "ragged.json")
    for wrong in (PALETTE[:5], PALETTE * 300, *odd):
        wrong = tmp_path / wrong if isinstance(wrong, str) else wrong
        with pytest.raises(ValueError, match=r"A palette has 12 colours of 3 values in \[-1, 1\]"):
            image_gpt.build_image_gpt(CONFIG, wrong)


def test_files_that_hold_no_palette_are_named(tmp_path):
    layer = image_gpt.build_image_gpt(CONFIG, PALETTE).get_layer("palette")
    for name, content in (
        ("a.json", b'{"clusters": '),
        ("b.json", b"[]"),
        ("c.json", b'{"clusters": ' + b"[" * 9999),
        ("d.npy", b"\x93NUMPY\1\0"),
        ("e.npy", b"PK\3\4"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(name)):
            layer.assign(tmp_path / name)


def test_a_share_of_hidden_pixels_is_below_1():
    with pytest.raises(ValueError, match="mask_rate"):
        dataclasses.replace(CONFIG, mask_rate=1.0)


@pytest.mark.slow
def test_the_probed_classifier_is_exported_as_any_other(tmp_path):
    labels = np.arange(24) % 3
    pixels = (
        RANDOM.integers(0, 90, (24, 4, 6, 3)) + 120 * np.eye(3, dtype=int)[labels][:, None, None]
    )
    pixels = pixels.astype("uint8")
    model = filled()
    model.get_layer("palette").assign(image_gpt.fit_palette(pixels, 12))
    images = keras_vit.read_arrays(pixels, labels, ["red", "green", "blue"])
    found = fit_probe(model, images, images, tmp_path / "f", "ridge", stage="block_0", folds=2)
    assert found.right >= 22
    expected = NUMPY(found.model(pixels))
    report = keras_vit.export_saved_model(found.model, tmp_path / "saved", images=pixels)
    served = tf.saved_model.load(report.path).signatures["serving_default"]
    outputs = served(image_bytes=tf.constant([tf.io.encode_png(x).numpy() for x in pixels]))
    np.testing.assert_allclose(outputs["logits"], expected, rtol=0, atol=1e-4)
    report = keras_vit.export_litert(found.model, tmp_path / "m.tflite", images=pixels)
    assert report.top1_agreement == 1
