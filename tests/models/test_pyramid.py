"""Models at other image sizes, feature maps and pyramids, against the equations in float64."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.block import TransformerBlock
from keras_vit.models.pyramid import PyramidModel, build_pyramid, choose_blocks, feature_maps
from tests import reference
from tests.fixtures import fill_random, images_for, tiny_vit


def random_vit(**changes):
    return tiny_vit(**changes)


def arrays_of(model):
    return {w.path: np.asarray(w, "float64") for w in model.weights if "seed" not in w.path}


@pytest.mark.parametrize("norm", [True, False])
def test_feature_maps_are_the_tokens_of_the_equations(norm):
    model = random_vit(depth=3, image_size=(32, 48), include_preprocessing=False)
    maps = feature_maps(model, [0, -1], norm=norm, prefix_tokens=True)
    images = images_for(model) / 127.5 - 1
    weights = arrays_of(model)
    stages = reference.vit(weights, images.astype("float64"), 8, 4)
    found = maps.predict(images, verbose=0)
    assert list(found) == ["block_0", "block_0_prefix", "block_2", "block_2_prefix"]
    for name in ("block_0", "block_2"):
        x = stages[name]
        if norm:
            x = reference.layer_norm(x, *(weights[f"encoder_norm/{n}"] for n in ("gamma", "beta")))
        expected = x[:, 1:].reshape(len(x), 4, 6, -1)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-5)
        np.testing.assert_allclose(found[f"{name}_prefix"], x[:, :1], rtol=0, atol=2e-5)


def test_one_pass_computes_every_block_once(monkeypatch):
    model = random_vit(depth=4)
    maps = feature_maps(model, "even", prefix_tokens=True)
    called, call = [], TransformerBlock.call

    def counted(self, *args, **kwargs):
        called.append(self.name)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(TransformerBlock, "call", counted)
    assert len(maps(images_for(model))) == 8
    assert called == ["block_0", "block_1", "block_2", "block_3"]
    called.clear()
    feature_maps(model, [0, 1])(images_for(model))
    assert called == ["block_0", "block_1"]  # none after the last map


def test_blocks_are_chosen_by_number_by_index_or_evenly():
    def names(depth, blocks):
        known = [f"block_{index}" for index in range(depth)]
        return [each.removeprefix("block_") for each in choose_blocks("vit", known, blocks)]

    assert names(12, "even") == ["2", "5", "8", "11"]  # as DINOv3's FOUR_EVEN_INTERVALS
    assert names(24, "even") == ["5", "11", "17", "23"]
    assert names(4, 3) == ["1", "2", "3"]
    assert names(4, [1, "block_3", -1]) == ["1", "3"]
    for depth, blocks, message in (
        (4, 5, r"has 4 blocks. Received: blocks=5"),
        (4, [4], r"has the blocks 0 to 3. Received: blocks=\[4\]"),
        (4, [], r"has the blocks 0 to 3"),
        (2, "even", r'"even" chooses four, and .* has 2 blocks'),
    ):
        with pytest.raises(ValueError, match=message):
            names(depth, blocks)
    with pytest.raises(ValueError, match=r"no layer 'block_9'. Did you mean"):
        feature_maps(random_vit(), ["block_9"])


def test_maps_of_hybrids_resnets_and_nested_models():
    stem = keras_vit.config.ResNetStem(stages=(1, 1))
    hybrid = random_vit(stem=stem, patch_size=1, image_size=32)
    maps = feature_maps(hybrid, ["stem_stage_1", "stem_stage_2", -1])
    assert [x.shape[1:3] for x in maps.output.values()] == [(8, 8), (4, 4), (4, 4)]
    resnet = keras_vit.build_resnet(keras_vit.ResNetConfig((1, 1, 1), image_size=32, classes=3))
    maps = feature_maps(resnet, 2)
    assert {name: x.shape[1:3] for name, x in maps.output.items()} == {
        "stage_2": (4, 4),
        "stage_3": (2, 2),
    }
    images = images_for(resnet)
    normalized = keras.Model(resnet.input, resnet.get_layer("relu").output)(images)
    np.testing.assert_array_equal(maps(images)["stage_3"], normalized)
    backbone = random_vit(classes=None)
    x = keras.Input((32, 32, 3))
    nested = keras_vit.Model(x, keras.layers.Dense(3)(backbone(x)))
    images = images_for(backbone)
    for name, found in feature_maps(nested, 2)(images).items():
        np.testing.assert_array_equal(found, feature_maps(backbone, 2)(images)[name])


def test_what_has_no_maps_is_an_error():
    with pytest.raises(ValueError, match=r"leaves patches out in training"):
        feature_maps(random_vit(patch_dropout_rate=0.5))
    with pytest.raises(ValueError, match=r"merge tokens"):
        feature_maps(random_vit(num_merged_tokens=2))
    with pytest.raises(ValueError, match=r"no tokens before its patches"):
        feature_maps(random_vit(class_token=False, pooling="gap"), prefix_tokens=True)


def test_a_norm_after_pooling_is_not_applied_to_maps():
    model = random_vit(norm_after_pooling=True, pooling="gap")
    images = images_for(model)
    same = keras.Model(model.input, model.output)  # without a configuration
    for maps in (feature_maps(model), feature_maps(model, norm=False), feature_maps(same)):
        maps = maps(images)
        block = keras.Model(model.input, model.get_layer("block_1").output)(images)
        np.testing.assert_array_equal(np.ravel(maps["block_1"]), np.ravel(block[:, 1:]))


def transposed(x, kernel, bias):
    """A 2 x 2 convolution with stride 2, transposed: every position becomes four."""
    x = np.einsum("brci,yxoi->brycxo", x, kernel) + bias
    return x.reshape(len(x), 2 * x.shape[1], 2 * x.shape[3], -1)


def convolved(x, kernel):
    """A 3 x 3 convolution, padded with zeros."""
    rows, columns = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = {
        (y, c): padded[:, y : y + rows, c : c + columns] @ kernel[y, c]
        for y, c in np.ndindex(*kernel.shape[:2])
    }
    return sum(windows.values())


def test_the_pyramid_is_vitdets(tmp_path):
    backbone = random_vit(patch_size=16, image_size=(64, 96), width=32)
    pyramid = build_pyramid(backbone, channels=8)
    fill_random(pyramid)
    images = images_for(backbone, 2)
    x = np.asarray(feature_maps(backbone)(images)["block_1"], "float64")
    w = arrays_of(pyramid)

    def normalized(x, name):
        return reference.layer_norm(x, w[f"{name}/gamma"], w[f"{name}/beta"])

    def up(x, name):
        return transposed(x, w[f"{name}/kernel"], w[f"{name}/bias"])

    pooled = x.reshape(2, 2, 2, 3, 2, 32).max((2, 4))
    twice = reference.gelu(normalized(up(x, "pyramid_2_up_0"), "pyramid_2_up_norm_1"), "exact")
    scales = [up(twice, "pyramid_2_up_1"), up(x, "pyramid_3_up_0"), x, pooled]
    found = pyramid(images)
    assert list(pyramid.pyramid_outputs) == ["P2", "P3", "P4", "P5"]
    for level, expected in enumerate(scales, 2):
        name = f"pyramid_{level}"
        expected = normalized(expected @ w[f"{name}_project/kernel"][0, 0], f"{name}_project_norm")
        expected = convolved(expected, w[f"{name}_smooth/kernel"])
        expected = normalized(expected, f"{name}_smooth_norm")
        assert found[f"P{level}"].shape[1:3] == (64 // 2**level, 96 // 2**level)
        np.testing.assert_allclose(found[f"P{level}"], expected, rtol=0, atol=5e-5)
    pyramid.save(tmp_path / "pyramid.keras")
    loaded = keras.saving.load_model(tmp_path / "pyramid.keras")
    assert isinstance(loaded, PyramidModel) and list(loaded.pyramid_outputs) == [*found]
    np.testing.assert_array_equal(loaded(images)["P3"], found["P3"])


def test_sizes_without_a_pyramid_are_errors():
    for changes, message in (
        ({"patch_size": 14, "image_size": 56}, r"patches of 14 .*weights with patch_size=16"),
        (
            {"patch_size": 8, "image_size": (40, 64)},
            r"40 x 64. Use .*model, \(64, 64",
        ),
        ({"patch_size": (8, 4)}, r"Patches must be squares"),
        ({"include_preprocessing": False}, r"leaves normalisation to its data"),
    ):
        with pytest.raises(ValueError, match=message):
            build_pyramid(random_vit(**changes))
