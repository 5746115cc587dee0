"""Checkpoints of Image GPT in both published forms, against the official equations in NumPy."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import image_gpt
from keras_vit.errors import CheckpointError, CheckpointMismatchError
from tests.fixtures import fill_random

RANDOM = np.random.default_rng(8)
PALETTE = RANDOM.uniform(-1, 1, (6, 3)).astype("float32")
CONFIG = image_gpt.ImageGPTConfig(12, 2, 3, image_size=(3, 3), colors=6)
COLORS = RANDOM.integers(0, 6, (2, 9))


def arrays_in_official_names(width=12, heads=3, depth=2):
    shapes = {"wte": (6, width), "wpe": (9, width), "wtet": (6, width), "sos": (width,)}
    matrix = (heads, width // heads, width)
    for i in range(depth):
        shapes |= {f"h{i}/ln_1/g": (width,), f"h{i}/ln_2/g": (width,)}
        shapes |= {f"h{i}/attn/{part}_proj": matrix for part in "qkvc"}
        shapes |= {f"h{i}/mlp/c_fc/w": (width, 4 * width)}
        shapes |= {f"h{i}/mlp/c_proj/w": (4 * width, width)}
    shapes["ln_f/g"] = (width,)
    return {
        f"model/{name}": RANDOM.normal(name.endswith("/g"), 0.3, shape).astype("float32")
        for name, shape in shapes.items()
    }


def official_logits(arrays, colors, heads=3, depth=2):
    """`model.py` of openai/image-gpt, with the products as it writes them."""
    w = {name.removeprefix("model/"): x.astype("float64") for name, x in arrays.items()}

    def rms(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale

    start = np.broadcast_to(w["sos"], (len(colors), 1, len(w["sos"])))
    x = np.concatenate([start, w["wte"][colors][:, :-1]], 1) + w["wpe"]
    for i in range(depth):
        y = rms(x, w[f"h{i}/ln_1/g"])
        q, k, v = (np.einsum("bsf,hef->bhse", y, w[f"h{i}/attn/{p}_proj"]) for p in "qkv")
        odds = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]))
        odds = odds * np.tril(np.ones(odds.shape[-2:]))
        y = odds / odds.sum(-1, keepdims=True) @ v
        x = x + np.einsum("bhse,hef->bsf", y, w[f"h{i}/attn/c_proj"])
        y = rms(x, w[f"h{i}/ln_2/g"]) @ w[f"h{i}/mlp/c_fc/w"]
        x = x + y / (1 + np.exp(-1.702 * y)) @ w[f"h{i}/mlp/c_proj/w"]
    return rms(x, w["ln_f/g"]) @ w["wtet"].T


def write_tensorflow(path, arrays):
    """A checkpoint as `tf.compat.v1.train.Saver` writes it: names without an object graph."""
    names = list(arrays)
    tf.raw_ops.SaveV2(
        prefix=str(path),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(arrays[name]) for name in names],
    )
    return path


def logits_of(model):
    images = model.get_layer("palette").decode(COLORS).reshape(2, 3, 3, 3)
    return keras.ops.convert_to_numpy(model(images))


@pytest.fixture
def official(tmp_path):
    arrays = arrays_in_official_names()
    extra = {"global_step": np.array(1000000.0), "model/clf/wclf": np.zeros((10, 12), "float32")}
    return arrays, write_tensorflow(tmp_path / "model.ckpt-1000000", {**arrays, **extra})


def test_both_forms_give_the_official_logits(official, tmp_path):
    arrays, path = official
    expected = official_logits(arrays, COLORS)
    model = image_gpt.build_image_gpt(CONFIG, PALETTE)
    report = image_gpt.load_image_gpt(model, path)
    np.testing.assert_allclose(logits_of(model), expected, rtol=0, atol=2e-5)
    assert sorted(report.left_out) == ["global_step", "model/clf/wclf"] and not report.fresh
    assert len(report.loaded) == len(model.weights) - 1  # all but the palette

    folder = image_gpt.save_image_gpt(model, tmp_path / "theirs")
    twin = image_gpt.build_image_gpt(CONFIG, folder / "preprocessor_config.json")
    report = image_gpt.load_image_gpt(twin, folder / "model.safetensors")
    assert "transformers" in str(report) and not report.left_out
    for ours, again in zip(model.weights, twin.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), again.numpy())
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["n_positions"], config["n_head"]) == (7, 9, 3)


def test_a_backbone_of_transformers_leaves_the_output_matrix_as_it_is(official, tmp_path):
    from safetensors.numpy import load_file, save_file

    model = image_gpt.build_image_gpt(CONFIG, PALETTE)
    image_gpt.load_image_gpt(model, official[1])
    file = image_gpt.save_image_gpt(model, tmp_path) / "model.safetensors"
    arrays = load_file(file)
    del arrays["lm_head.weight"]
    arrays = {name.removeprefix("transformer."): x for name, x in arrays.items()}
    arrays["h.0.attn.masked_bias"] = np.array(-1e4, "float32")  # older versions store it
    save_file(arrays, file)
    report = image_gpt.load_image_gpt(model, file)
    assert report.fresh == ("pixel_logits/kernel",) and report.left_out == ("h.0.attn.masked_bias",)


def test_everything_that_does_not_fit_is_one_error_and_nothing_is_loaded(official, tmp_path):
    from safetensors.numpy import load_file, save_file

    model = image_gpt.build_image_gpt(CONFIG, PALETTE)
    image_gpt.load_image_gpt(model, official[1])
    folder = image_gpt.save_image_gpt(model, tmp_path)
    arrays = load_file(folder / "model.safetensors")
    arrays["transformer.wpe.weight"] = arrays["transformer.wpe.weight"][:4]
    arrays["transformer.h.1.mlp.c_fc.bias"] = np.ones(48, "float32")
    arrays["transformer.h.2.ln_1.weight"] = np.ones(12, "float32")
    del arrays["transformer.ln_f.weight"]
    save_file(arrays, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_head": 4}))
    fill_random(model)
    before = model.get_weights()
    with pytest.raises(CheckpointMismatchError) as caught:
        image_gpt.load_image_gpt(model, folder / "model.safetensors")
    for text in (
        "transformer.ln_f.weight is missing",
        "transformer.wpe.weight has shape (4, 12), and the model needs (9, 12)",
        "transformer.h.1.mlp.c_fc.bias is not zero",
        "transformer.h.2.ln_1.weight is unknown",
        "config.json says n_head=4, and the model computes 3",
    ):
        assert text in str(caught.value)
    assert all((x == y).all() for x, y in zip(before, model.get_weights(), strict=True))


def test_errors_of_other_files_and_models(official, tmp_path):
    path = official[1]
    masked = image_gpt.ImageGPTConfig(12, 2, 3, image_size=(3, 3), colors=6, mask_rate=0.15)
    with pytest.raises(CheckpointMismatchError, match="model/sos is unknown"):
        image_gpt.load_image_gpt(image_gpt.build_image_gpt(masked, PALETTE), path)
    with pytest.raises(ValueError, match="with `mask_rate`"):
        image_gpt.save_image_gpt(image_gpt.build_image_gpt(masked, PALETTE), tmp_path)
    with pytest.raises(ValueError, match="are for models of"):
        image_gpt.load_image_gpt(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), path)
    data = path.with_name(f"{path.name}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:-9000])
    with pytest.raises(CheckpointError, match="damaged"):
        image_gpt.load_image_gpt(image_gpt.build_image_gpt(CONFIG, PALETTE), path)
    with pytest.raises(FileNotFoundError):
        image_gpt.load_image_gpt(image_gpt.build_image_gpt(CONFIG, PALETTE), tmp_path / "none")
