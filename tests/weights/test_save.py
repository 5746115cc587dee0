"""Writing back: what is loaded comes out again, and what cannot be said is refused."""

from __future__ import annotations

import dataclasses
import os

import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.config import ResNetConfig, ResNetStem
from keras_vit.create import build
from keras_vit.errors import CheckpointMismatchError
from keras_vit.pretrained import from_pretrained
from keras_vit.weights.load import load_weights
from keras_vit.weights.save import WRITABLE, save_weights
from tests import official
from tests.checks import quick
from tests.fixtures import fill_random, tiny_config

CONFIGS = {
    "token": {},
    "pre_logits": {"pre_logits": 24},
    "gap": {"pooling": "gap", "class_token": False},
    "map": {"pooling": "map", "class_token": False},
    "unplaced class token": {"position_on_class_token": False},
    "no head": {"classes": None},
    "registers": {"num_registers": 3, "classes": None},
    "layer scale": {"layer_scale": 0.1, "classes": None},
    "distilled": {"distillation_token": True},
    "timm mean": {"pooling": "gap", "norm_after_pooling": True},
    "hybrid": {"stem": ResNetStem(stages=(1,)), "patch_size": 2},
    "root": {"stem": ResNetStem(), "patch_size": 4},
}
# What each layout has no place or no function for.
REFUSED = {
    "official": {"map", "registers", "layer scale", "distilled", "timm mean"},
    "big_vision": {"registers", "layer scale", "distilled", "timm mean"},
    "timm": {"pre_logits"},
    "transformers": {"pre_logits", "gap", "map", "timm mean", "registers"},
}
TORCH = {"standardization": "torch", "norm_epsilon": 1e-5}  # what the ports compute
SUFFIX = {"official": "npz", "big_vision": "npz", "timm": "safetensors"}


def path_for(tmp_path, layout):
    return tmp_path / f"model.{SUFFIX.get(layout, 'safetensors')}"


def tiny(name, layout="official", **changes):
    fields = {**CONFIGS[name], **changes}
    if "stem" in fields and SUFFIX.get(layout) != "npz":
        fields["stem"] = dataclasses.replace(fields["stem"], **TORCH)
    if layout == "transformers" and name == "layer scale":
        fields.update(classes=10, pooling="token_gap")
    return build(tiny_config(include_preprocessing=False, **fields))


# The quick ones are those that a layout refuses or renames most of.
@pytest.mark.parametrize("layout", WRITABLE)
@pytest.mark.parametrize("name", quick([*CONFIGS], "pre_logits", "map", "hybrid"))
def test_a_written_file_gives_the_same_model(name, layout, tmp_path):
    model = tiny(name, layout)
    fill_random(model)
    path = path_for(tmp_path, layout)
    if name in REFUSED[layout]:
        with pytest.raises(ValueError, match=r"no array for|have a head|have a class|norm"):
            save_weights(model, path, layout)
        assert not os.listdir(tmp_path)
        return
    save_weights(model, path, layout)
    again = tiny(name, layout)
    fill_random(again, seed=1)
    load_weights(again, path)
    images = np.random.default_rng(0).uniform(-1, 1, (2, *model.input_shape[1:])).astype("float32")
    expected = keras.ops.convert_to_numpy(model(images))
    outputs = keras.ops.convert_to_numpy(again(images))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("layout", WRITABLE)
def test_bit_goes_through_every_layout(layout, tmp_path):
    kernels = {} if SUFFIX.get(layout) == "npz" else TORCH
    config = ResNetConfig(stages=(1, 1), image_size=32, classes=5, **kernels)
    model, again = build(config), build(config)
    fill_random(model)
    load_weights(again, save_weights(model, path_for(tmp_path, layout), layout))
    for ours, theirs in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("name", ["vit_token", "vit_pre_logits", "vit_gap"])
def test_an_official_file_comes_out_as_it_was(name, tmp_path):
    arrays, _ = official.load_golden(name)
    options = {"pre_logits": {"pre_logits": 32}, "gap": CONFIGS["gap"]}.get(name[4:], {})
    model = build(tiny_config(**options))
    load_weights(model, official.GOLDEN / f"{name}.checkpoint.npz")
    path = save_weights(model, tmp_path / "back.npz")
    with np.load(path) as written:
        assert set(written) == set(arrays)
        for key, array in arrays.items():
            assert written[key].shape == array.shape
            np.testing.assert_array_equal(written[key], array)


def test_group_norms_have_the_shapes_of_released_files(tmp_path):
    model = tiny("hybrid")
    with np.load(save_weights(model, tmp_path / "x.npz")) as written:
        assert written["block1/unit1/gn1/scale"].shape == (1, 1, 1, 64)
        assert written["gn_root/scale"].shape == (64,)


def test_fixed_positions_are_written_where_they_are_expected(tmp_path):
    model = tiny("gap", position_embedding="sincos_2d")
    fill_random(model)
    with np.load(save_weights(model, tmp_path / "official.npz")) as written:
        table = written["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(
        table, model.get_layer("position_embedding").table().numpy().astype("float32")
    )
    with np.load(save_weights(model, tmp_path / "bv.npz", "big_vision")) as written:
        assert "params/pos_embedding" not in written


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_weights(tiny("token"), tmp_path / "model.npz")
    before = path.read_bytes()
    monkeypatch.setattr("keras_vit.weights.save.write_npz", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_weights(tiny("token"), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.npz"]


def test_unknown_layouts_and_wrong_suffixes(tmp_path):
    with pytest.raises(ValueError, match=r"must be one of 'official'.*'torch'"):
        save_weights(tiny("token"), tmp_path / "x.npz", "torch")
    with pytest.raises(ValueError, match=r"written to \.safetensors files"):
        save_weights(tiny("token"), tmp_path / "x.npz", "timm")
    with pytest.raises(ValueError, match=r"There is no folder .*nowhere' to write to"):
        save_weights(tiny("token"), tmp_path / "nowhere" / "x.npz")


@pytest.mark.parametrize("layout", ["timm", "transformers"])
def test_a_head_without_bias_gives_logits(layout, tmp_path):
    model = build(tiny_config(gelu="exact", norm_epsilon=1e-12, include_preprocessing=False))
    fill_random(model)
    model.get_layer("head").bias.assign(np.zeros(10))
    path = save_weights(model, tmp_path / "model.safetensors", layout)
    arrays = safetensors.numpy.load_file(path)
    del arrays[{"timm": "head.bias", "transformers": "classifier.bias"}[layout]]
    safetensors.numpy.save_file(arrays, path)
    options = {"num_heads": 4, "norm_epsilon": 1e-12, "include_preprocessing": False}
    again = from_pretrained(path, **options)
    is_zero = layout == "transformers"  # which says that it starts at zero, and trains it
    assert again.config.head_bias == (0.0 if is_zero else None)
    assert ("started fresh: head/bias" in str(again.load_report)) == is_zero
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    np.testing.assert_allclose(again(images), model(images), rtol=0, atol=1e-5)
    fill_random(model)
    if is_zero:
        assert load_weights(model, path).fresh == ("head/bias",)
        np.testing.assert_allclose(again(images), model(images), rtol=0, atol=1e-5)
    else:
        with pytest.raises(CheckpointMismatchError, match=r"missing: 'head\.bias'"):
            load_weights(model, path)


def test_registers_of_timm_have_rows_where_its_class_token_has(tmp_path):
    """timm counts registers where class tokens have positions, and resamples other tables."""
    model = tiny("registers", "timm", num_registers=7)
    path = save_weights(model, tmp_path / "model.safetensors", "timm")
    table = safetensors.numpy.load_file(path)["pos_embed"]
    assert table.shape == (1, 1 + 7 + 16, 32)
    assert not table[:, 1:8].any()
    again = tiny("registers", "timm", num_registers=7)
    load_weights(again, path)
    for ours, theirs in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
