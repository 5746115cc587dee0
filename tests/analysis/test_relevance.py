"""Relevance against finite differences of a NumPy forward pass."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.analysis.relevance import class_relevance
from tests import reference
from tests.models.test_feature_extraction import KINDS, composed, random_vit


def pushed_logits(w, x, num_heads, pushes):
    """Logits from the tokens after the position embedding, in float64.

    `pushes[i]` is added to the attention weights of block `i`. Returns these weights too.
    """
    all_scores = []
    for index, push in enumerate(pushes):
        block = f"block_{index}"
        normed = reference.layer_norm(
            x, w[f"{block}/attention_norm/gamma"], w[f"{block}/attention_norm/beta"]
        )
        _, scores = reference.attention(normed, w, f"{block}/attention", num_heads)
        all_scores.append(scores)
        width = x.shape[-1]
        values = (
            normed @ w[f"{block}/attention/qkv/kernel"][:, 2 * width :]
            + w[f"{block}/attention/qkv/bias"][2 * width :]
        )
        values = values.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)
        mixed = ((scores + push) @ values).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + mixed @ w[f"{block}/attention/output/kernel"] + w[f"{block}/attention/output/bias"]
        normed = reference.layer_norm(x, w[f"{block}/mlp_norm/gamma"], w[f"{block}/mlp_norm/beta"])
        x = x + reference.mlp(normed, w, f"{block}/mlp", "tanh")
    x = reference.layer_norm(x, w["encoder_norm/gamma"], w["encoder_norm/beta"])
    features = x[:, 0]
    if w["head/kernel"].shape[0] > width:  # of pooling="token_gap"
        features = np.concatenate([features, x[:, 1:].mean(axis=1)], axis=-1)
    return features @ w["head/kernel"] + w["head/bias"], all_scores


def numeric_relevance(w, tokens, num_heads, chosen, step=1e-5):
    """Section 3.1 of arXiv 2103.15679 for one image, gradients by finite differences."""
    count = tokens.shape[1]
    zeros = [np.zeros((1, num_heads, count, count)) for _ in range(2)]
    _, all_scores = pushed_logits(w, tokens, num_heads, zeros)
    relevance = np.eye(count)
    for index, scores in enumerate(all_scores):
        gradient = np.zeros_like(scores)
        for index_of_weight in np.ndindex(scores.shape):
            values = []
            for sign in (1, -1):
                pushes = [zero.copy() for zero in zeros]
                pushes[index][index_of_weight] = sign * step
                values.append(pushed_logits(w, tokens, num_heads, pushes)[0][0, chosen])
            gradient[index_of_weight] = (values[0] - values[1]) / (2 * step)
        relevance = relevance + np.maximum(scores * gradient, 0).mean(axis=1)[0] @ relevance
    if w["head/kernel"].shape[0] > tokens.shape[-1]:
        return (relevance[0, 1:] + relevance[1:, 1:].mean(axis=0)) / 2
    return relevance[0, 1:]


@pytest.mark.parametrize("pooling", ["token", "token_gap"])
def test_relevance_matches_finite_differences(pooling):
    model, images = random_vit(
        include_preprocessing=False, image_size=16, num_heads=2, pooling=pooling
    )
    images = images[:2] / 127.5 - 1
    w = {x.path: np.asarray(x.value, "float64") for x in model.weights if "seed" not in x.path}
    plain = {**w, "head/kernel": w["head/kernel"][:32]}  # of the reference, whose logits are unused
    tokens = reference.vit(plain, images.astype("float64"), 8, 2)["positions"]
    relevance = class_relevance(model, images, classes=[3, 7])
    assert relevance.shape == (2, 2, 2) and relevance.dtype == "float32"
    for index, chosen in enumerate((3, 7)):
        expected = numeric_relevance(w, tokens[index : index + 1], 2, chosen).reshape(2, 2)
        np.testing.assert_allclose(relevance[index], expected, rtol=1e-3, atol=1e-6)


def test_relevance_depends_on_the_class_and_defaults_to_the_likeliest():
    model, images = random_vit()
    likeliest = np.argmax(model(images), axis=-1)
    relevance = class_relevance(model, images, batch_size=2)
    np.testing.assert_allclose(relevance, class_relevance(model, images, likeliest), rtol=1e-5)
    other = class_relevance(model, images, (likeliest + 1) % 10)
    assert np.abs(other - relevance).max() > 0.05 * relevance.max()


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "no_head"])
def test_relevance_of_models_of_every_kind(kind):
    model, images = random_vit(**KINDS[kind])
    relevance = class_relevance(model, images, classes=1)
    assert relevance.shape == (3, *model.config.grid)
    assert relevance.min() >= 0 and relevance.std(axis=(1, 2)).min() > 0


@pytest.mark.parametrize("kind", ["nested", "sequential"])
def test_relevance_of_models_built_on_a_vit(kind):
    backbone, model, images = composed(kind)
    head = model.get_layer("mine")
    rng = np.random.default_rng(0)
    head.kernel.assign(rng.normal(size=head.kernel.shape))
    flat = keras.Model(backbone.input, head(backbone.output))
    expected = class_relevance(flat, images, 2)
    np.testing.assert_allclose(class_relevance(model, images, 2), expected, rtol=1e-4, atol=1e-6)


def test_relevance_passes_what_stands_beside_the_network():
    backbone, _, images = composed("nested")
    x = keras.Input((32, 32, 3))
    beside = keras.layers.GlobalAveragePooling2D("channels_last")(x)
    head = keras.layers.Dense(3, name="mine")
    model = keras.Model(x, head(keras.layers.Concatenate()([backbone(x), beside])))
    kernel = np.random.default_rng(0).normal(size=(35, 3))
    head.set_weights([kernel, np.zeros(3)])
    alone = keras.layers.Dense(3)
    flat = keras.Model(backbone.input, alone(backbone.output))
    alone.set_weights([kernel[:32], np.zeros(3)])
    expected = class_relevance(flat, images, 2)  # the mean of the pixels adds a constant
    np.testing.assert_allclose(class_relevance(model, images, 2), expected, rtol=1e-4, atol=1e-6)


def test_models_without_classes_and_other_backends(monkeypatch):
    model, images = random_vit(**KINDS["no_head"])
    with pytest.raises(ValueError, match=r"one output of shape \(batch, classes\)"):
        class_relevance(model, images)
    model, images = random_vit(classes=None)
    nested = keras.Sequential([keras.Input(model.input_shape[1:]), model])
    for headless in (model, nested):
        with pytest.raises(ValueError, match=r"needs a model with a head.* 32 features, not"):
            class_relevance(headless, images)
    model, images = random_vit()
    with pytest.raises(ValueError, match="more images than the 2 classes"):
        class_relevance(model, images, [1, 2])
    with pytest.raises(ValueError, match="3 images and 4 classes"):
        class_relevance(model, images, [1, 2, 3, 4])
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="Set KERAS_BACKEND=tensorflow"):
        class_relevance(model, images)
