"""Heads for segmentation: equations in float64, training by `fit` with an ignored label."""

from __future__ import annotations

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.upsampling import ResizeMaps
from keras_vit.models.pyramid import build_pyramid, feature_maps
from keras_vit.segmentation.model import build_segmenter
from tests import reference
from tests.checks import check_layer
from tests.fixtures import fill_random, images_for, tiny_vit

SIZE = (16, 24)


def random_backbone(**changes):
    fields = {"patch_size": 4, "depth": 4, "image_size": SIZE, "classes": None, **changes}
    return tiny_vit(**fields)


def arrays_of(model):
    """Weights that are positive where they are variances, in float64."""
    fill_random(model)
    for weight in model.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(np.abs(np.asarray(weight)) + 0.5)
    return {w.path: np.asarray(w, "float64") for w in model.weights if "seed" not in w.path}


def bilinear(x, size):
    """Linear between the centres of positions, (B, r, c, K) to (B, *size, K), one at a time."""

    def line(x, new):  # along axis 1
        old = x.shape[1]
        for index in range(new):
            position = min(max((index + 0.5) * old / new - 0.5, 0), old - 1)
            left = min(int(position), old - 2) if old > 1 else 0
            share = position - left
            yield (1 - share) * x[:, left] + share * x[:, min(left + 1, old - 1)]

    x = np.stack([*line(x, size[0])], 1)
    return np.stack([*line(x.swapaxes(1, 2), size[1])], 1).swapaxes(1, 2)


def batch_norm(x, w, path="segmentation_norm"):
    mean, variance = w[f"{path}/moving_mean"], w[f"{path}/moving_variance"]
    return (x - mean) / np.sqrt(variance + 1e-5) * w[f"{path}/gamma"] + w[f"{path}/beta"]


def dense(x, w, path):
    y = x @ w[f"{path}/kernel"].reshape(x.shape[-1], -1)
    return y + w[f"{path}/bias"] if f"{path}/bias" in w else y


def test_the_linear_head_is_dinov2s():
    backbone = random_backbone()
    model = build_segmenter(backbone, 5, blocks=2)
    w, images = arrays_of(model), images_for(model, 2)
    maps = feature_maps(backbone, 2)(images).values()
    x = np.concatenate([np.asarray(each, "float64") for each in maps], -1)
    expected = bilinear(dense(batch_norm(x, w), w, "segmentation_head"), SIZE)
    logits = model(images)
    assert logits.shape == (2, *SIZE, 5) and model.output.dtype == "float32"
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("of", ["blocks", "pyramid"])
def test_the_mlp_head_is_segformers(of):
    backbone = random_backbone(image_size=(32, 32), patch_size=8) if of == "pyramid" else (
        random_backbone()
    )  # fmt: skip
    if of == "pyramid":
        backbone = build_pyramid(backbone, 8, (2, 3, 4))
    model = build_segmenter(backbone, 5, "mlp", channels=6)
    w, images = arrays_of(model), images_for(model, 2)
    maps = (backbone if of == "pyramid" else feature_maps(backbone, "even"))(images)
    finest = (8, 8) if of == "pyramid" else (4, 6)
    parts = [
        bilinear(dense(np.asarray(x, "float64"), w, f"segmentation_{name}"), finest)
        for name, x in maps.items()
    ]
    x = dense(np.concatenate(parts, -1), w, "segmentation_fuse")
    x = dense(np.maximum(batch_norm(x, w), 0), w, "segmentation_head")
    expected = bilinear(x, model.input_shape[1:3])
    np.testing.assert_allclose(model(images), expected, rtol=0, atol=2e-4)


def test_resizing_of_maps():
    check_layer(ResizeMaps((5, 10), "align_corners"), (3, 4, 2), (5, 10, 2))
    x = np.random.default_rng(0).normal(size=(1, 3, 4, 2)).astype("float32")
    y = np.asarray(ResizeMaps((5, 10), "align_corners")(x))
    np.testing.assert_allclose(y[:, ::2, ::3], x, rtol=0, atol=1e-6)
    for size in ((7, 9), (2, 3)):
        expected = keras.ops.image.resize(x, size)
        np.testing.assert_allclose(ResizeMaps(size)(x), expected, rtol=0, atol=1e-6)
    images, maps = keras.Input((None, None, 1)), keras.Input((None, None, 2))
    for method in ("bilinear", "align_corners"):  # sizes that only the graph knows
        resized = keras.Model([maps, images], ResizeMaps(method=method, factor=2)(maps, images))
        found = resized.predict([x, np.zeros((1, 5, 3, 1), "float32")], verbose=0)
        np.testing.assert_allclose(found, ResizeMaps((10, 6), method)(x), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="must be one of"):
        ResizeMaps((5, 5), "nearest")


def compiled(model):
    model.compile(
        keras.optimizers.Adam(0.02),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255),
        metrics=[keras.metrics.MeanIoU(3, ignore_class=255, sparse_y_pred=False, name="miou")],
    )
    return model


def test_a_head_on_frozen_features_learns_and_ignores_a_label(tmp_path):
    backbone = random_backbone(depth=1)
    backbone.trainable = False
    frozen = [np.asarray(w) for w in backbone.weights]
    model = compiled(build_segmenter(backbone, 3, dropout_rate=0.0))
    rng = np.random.default_rng(0)
    masks = np.kron(rng.integers(0, 3, (8, 4, 6)), np.ones((4, 4), "uint8")).astype("uint8")
    images = np.repeat(masks[..., None] * 100.0, 3, -1).astype("float32")
    masks[:, :8] = 255
    history = model.fit(images, masks, batch_size=8, epochs=30, verbose=0).history
    assert history["loss"][-1] < 0.3 * history["loss"][0] and history["miou"][-1] > 0.8
    assert all(map(np.array_equal, frozen, map(np.asarray, backbone.weights)))
    logits = np.asarray(model(images))
    labelled = logits[:, 8:].reshape(-1, 3).astype("float64")
    odds = labelled - np.log(np.exp(labelled).sum(-1, keepdims=True))
    expected = -odds[np.arange(len(odds)), masks[:, 8:].ravel()].mean()  # of labelled pixels
    assert float(model.loss(masks, logits)) == pytest.approx(expected, rel=1e-3)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images), logits)
    assert len(loaded.trainable_variables) == len(model.trainable_variables) == 4


def convolved(x, w, path, stride=1):
    """A convolution padded with zeros by half its kernel, as PyTorch pads."""
    kernel = w[f"{path}/kernel"]
    size = len(kernel)
    margin = size // 2
    padded = np.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    rows, columns = padded.shape[1] - size + 1, padded.shape[2] - size + 1
    parts = [
        padded[:, i : i + rows : stride, j : j + columns : stride] @ kernel[i, j]
        for i, j in np.ndindex(size, size)
    ]
    return sum(parts) + w.get(f"{path}/bias", 0)


def spread(x, w, path):
    """A transposed convolution whose stride is its kernel: every position becomes a square."""
    x = np.einsum("brci,yxoi->brycxo", x, w[f"{path}/kernel"]) + w[f"{path}/bias"]
    return x.reshape(len(x), x.shape[1] * x.shape[2], x.shape[3] * x.shape[4], -1)


def aligned(x, size):
    """Linear between positions whose corners coincide."""
    for axis, new in ((1, size[0]), (2, size[1])):
        positions = np.linspace(0, x.shape[axis] - 1, new)
        x = np.apply_along_axis(
            lambda v, at: np.interp(at, np.arange(len(v)), v), axis, x, positions
        )
    return x


def unit(x, w, name):
    y = x
    for step in (1, 2):
        y = convolved(np.maximum(y, 0), w, f"{name}_conv_{step}")
        y = batch_norm(y, w, f"{name}_norm_{step}")
    return x + y


def test_the_dpt_head_is_the_papers():
    backbone = random_backbone()
    model = build_segmenter(backbone, 3, "dpt", channels=8)
    w, images = arrays_of(model), images_for(model, 2)
    found = feature_maps(backbone, "even", prefix_tokens=True)(images)
    levels = []
    for index in range(4):
        name = f"dpt_{index}"
        x = np.asarray(found[f"block_{index}"], "float64")
        token = np.asarray(found[f"block_{index}_prefix"], "float64")[:, None]
        x = np.concatenate([x, np.broadcast_to(token, x.shape)], -1)
        x = reference.gelu(dense(x, w, f"{name}_readout"), "exact")
        x = dense(x, w, f"{name}_reduce")
        if index < 2:
            x = spread(x, w, f"{name}_resample")
        elif index == 3:
            x = convolved(x, w, f"{name}_resample", stride=2)
        levels.append(convolved(x, w, f"{name}_project"))
    assert [x.shape[1:3] for x in levels] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    x = unit(levels[3], w, "dpt_fuse_3")
    for index in (2, 1, 0):
        x = dense(aligned(x, levels[index].shape[1:3]), w, f"dpt_project_{index + 1}")
        x = unit(x + unit(levels[index], w, f"dpt_skip_{index}"), w, f"dpt_fuse_{index}")
    x = dense(aligned(x, (32, 48)), w, "dpt_project_0")
    x = np.maximum(batch_norm(convolved(x, w, "segmentation_fuse"), w), 0)
    expected = bilinear(dense(x, w, "segmentation_head"), SIZE)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(model(images) / scale, expected / scale, rtol=0, atol=2e-5)
    bare = random_backbone(class_token=False, pooling="gap")
    assert "dpt_0_readout" not in [x.name for x in build_segmenter(bare, 3, "dpt").layers]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_two_replicas_train_as_one_with_class_weights(policy):
    command = [sys.executable, "-m", "tests.segmentation.segmentation_process", policy]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    one, two = json.loads(output.splitlines()[-1])
    rtol = 1e-5 if policy == "float32" else 1e-2
    np.testing.assert_allclose(one["loss"], two["loss"], rtol=rtol)
    np.testing.assert_allclose(one["miou"], two["miou"], rtol=0, atol=2 * rtol)
    assert one["loss"][-1] < 0.9 * one["loss"][0]


@pytest.mark.parametrize("head", ["linear", "mlp", "dpt"])
def test_layer_wise_rates_are_one_in_the_head_and_fall_to_the_patches(head):
    model = build_segmenter(random_backbone(), 3, head, channels=8)
    factors = keras_vit.train.layerwise_decay(model, 0.5)
    expected = {"patch_encoder": 0.5**5, "position_embedding": 0.5**5, "class_token": 0.5**5}
    expected |= {f"block_{index}": 0.5 ** (4 - index) for index in range(4)}
    for path, factor in factors.items():  # 1 for the norm and the layers of the head
        assert factor == expected.get(path.split("/")[0], 1), path
    assert {path.split("/")[0] for path in factors} >= {*expected, "segmentation_head"}
    before = model.get_weights()
    optimizer = keras_vit.train.AdamW(1e-3, weight_decay=0.0, rate_factors=factors)
    trained = model.trainable_variables
    optimizer.apply([keras.ops.ones_like(variable) for variable in trained], trained)
    for old, variable in zip(before, model.weights, strict=True):
        moved = old - np.asarray(variable)
        rate = 1e-3 * factors.get(variable.path, 0)
        np.testing.assert_allclose(moved, rate, rtol=0, atol=1e-6, err_msg=variable.path)


def test_heads_that_do_not_fit_are_errors():
    hybrid = random_backbone(
        stem=keras_vit.config.ResNetStem(stages=(1, 1)), patch_size=1, image_size=16
    )
    for make, message in (
        (lambda: build_segmenter(random_backbone(), 3, "unet"), r"`head` must be one of"),
        (
            lambda: build_segmenter(random_backbone(include_preprocessing=False), 3),
            r"leaves normalisation to its data",
        ),
        (lambda: build_segmenter(random_backbone(), 3, "dpt", 2), r"four blocks. Received: 2"),
        (
            lambda: build_segmenter(hybrid, 3, "dpt", ["stem_stage_1", 0, 1, 2]),
            r"maps of one size.*Choose head=\"mlp\"",
        ),
        (
            lambda: build_segmenter(build_pyramid(random_backbone(), 8, (2, 3)), 3),
            r"levels, all of which the \"mlp\" head reads",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
