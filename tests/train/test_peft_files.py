"""Files of PEFT: its models' outputs, and files that it reads.

`tests/golden/peft_outputs.json` is from `scripts/golden/make_peft.py`, which also reads what
`save_adapter` writes; the weights follow a formula.
"""

from __future__ import annotations

import json
import os
import re

import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.config import replace_fields
from keras_vit.create import build
from keras_vit.errors import CheckpointError
from keras_vit.models.lora import add_lora, lora_layers
from keras_vit.models.quantized import float_values
from keras_vit.train.peft_files import load_adapter, save_adapter
from keras_vit.variants import find_config
from keras_vit.weights.inspection import adapt_config, inspect_file
from keras_vit.weights.load import load_weights
from keras_vit.weights.save import find_layout
from tests.checks import quick
from tests.fixtures import fill_random, images_for, tiny_config
from tests.official import GOLDEN, golden_images
from tests.weights.test_load_torch import name_file, weights

CASES = json.loads((GOLDEN / "peft_outputs.json").read_text())


def adapter_weights(shapes):
    """The formula of the adapters: no array is a scale."""
    arrays = weights({name.replace("weight", "w"): shape for name, shape in shapes.items()})
    return {name: arrays[name.replace("weight", "w")] for name in shapes}


def write(folder, case, arrays=None, **changes):
    folder.mkdir()
    arrays = adapter_weights(case["shapes"]) if arrays is None else arrays
    safetensors.numpy.save_file(arrays, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**case["config"], **changes}))
    return folder


def make(case, tmp_path):
    path = tmp_path / "base.safetensors"
    safetensors.numpy.save_file(weights(case["base"]), path)
    title = next(title for title in CASES if CASES[title] is case)
    name_file(title, path)
    config = tiny_config(
        image_size=32,
        patch_size=8,
        classes=5 if np.shape(case["outputs"])[-1] == 5 else None,
        mlp_dim=inspect_file(path).sizes["mlp_dim"],
        include_preprocessing=False,
    )
    model = build(adapt_config(config, inspect_file(path)))
    load_weights(model, path)
    return model


@pytest.mark.parametrize("title", quick(list(CASES), *list(CASES)[:3], "timm split eva02"))
def test_outputs_are_pefts_and_the_file_comes_back(title, tmp_path):
    case = CASES[title]
    expected = np.array(case["outputs"])
    model = make(case, tmp_path)
    plain = keras.ops.convert_to_numpy(model(golden_images(32)))
    assert np.abs(plain - expected).max() > 0.01  # the updates count
    load_adapter(model, write(tmp_path / "theirs", case))
    outputs = keras.ops.convert_to_numpy(model(golden_images(32)))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert {layer.name for layer in lora_layers(model)} <= {"qkv", "output", "hidden"}

    back = save_adapter(model, tmp_path / "ours", title.split()[0])
    written = safetensors.numpy.load_file(back / "adapter_model.safetensors")
    assert {name: list(x.shape) for name, x in written.items()} == case["shapes"]
    again = load_adapter(make(case, tmp_path), back)
    np.testing.assert_allclose(again(golden_images(32)), outputs, rtol=0, atol=1e-6)
    # Names of timm have one layer for queries, keys and values.
    if title == "transformers vit":
        again = load_adapter(make(case, tmp_path), save_adapter(model, tmp_path / "timm", "timm"))
        np.testing.assert_allclose(again(golden_images(32)), outputs, rtol=0, atol=1e-6)


def test_what_does_not_fit_is_one_error_and_changes_nothing(tmp_path):
    case = CASES["timm vit"]
    model = make(case, tmp_path)
    before = [np.array(keras.ops.convert_to_numpy(w)) for w in model.weights]
    arrays = adapter_weights(case["shapes"])
    name = "base_model.model.blocks.0.attn.qkv.lora_A.weight"
    wrong = {**arrays, name: arrays[name][:, 1:], "base_model.model.neck.weight": np.zeros(3)}
    wrong["base_model.model.blocks.9.attn.qkv.lora_A.weight"] = arrays[name]
    wrong["base_model.model.head.bias"] = np.zeros(7, "float32")
    with pytest.raises(CheckpointError) as caught:
        load_adapter(model, write(tmp_path / "wrong", case, wrong))
    for part in (
        "blocks.0.attn.qkv has A (3, 31)",
        "neck.weight is in no such model",
        "blocks.9.attn.qkv is no product",
        "head/bias is (7,)",
    ):
        assert part in str(caught.value)
    for changes, message in (
        ({"use_dora": True}, "use_dora=True"),
        ({"peft_type": "LOHA"}, "peft_type='LOHA'"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4'"),
        ({"lora_alpha": "8"}, "lora_alpha='8'"),
        ({"alpha_pattern": [1]}, r"alpha_pattern=\[1\]"),
        ({"rank_pattern": {"(a+)+b": 2}}, r"\(a\+\)\+b=2"),
        ({"lora_dropout": 2}, "lora_dropout=2"),
    ):
        folder = write(tmp_path / re.sub(r"\W", "", message), case, **changes)
        with pytest.raises(CheckpointError, match=message):
            load_adapter(model, folder)
    with pytest.raises(CheckpointError, match="adapter_config"):
        load_adapter(model, tmp_path)
    folder = write(tmp_path / "damaged", case)
    weights, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    whole = weights.read_bytes()
    for data in (b"", b"\x00", whole[:-1], b"\x80\x04" + whole, whole.replace(b"dtype", b"DTYPE")):
        weights.write_bytes(data)
        with pytest.raises(CheckpointError, match="adapter_model"):
            load_adapter(model, folder)
    twice = {**arrays, name.removeprefix("base_model.model."): arrays[name]}
    weights.write_bytes(safetensors.numpy.save(twice))
    with pytest.raises(CheckpointError, match=r"blocks\.0\.attn\.qkv\.lora_A.* is there twice"):
        load_adapter(model, folder)
    for text in ("[" * 9999, "[]", "null", '{"lora_alpha": ' + "9" * 400 + "}"):
        settings.write_text(text)
        with pytest.raises(CheckpointError, match="adapter_config"):
            load_adapter(model, folder)
    if hasattr(os, "mkfifo"):
        for path in (weights, settings):  # a pipe would wait forever
            folder = write(tmp_path / f"pipe of {path.name}", case)
            (folder / path.name).unlink()
            os.mkfifo(folder / path.name)
            with pytest.raises(CheckpointError, match=f"{path.name} is no regular file"):
                load_adapter(model, folder)
    assert not lora_layers(model)
    after = [keras.ops.convert_to_numpy(w) for w in model.weights]
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    with pytest.raises(ValueError, match="no low-rank updates"):
        save_adapter(model, tmp_path / "none")


def with_updates(name):
    """A small model of a newer family with updates of every product, and the same without."""
    if name == "siglip":
        config = tiny_config(pooling="map", class_token=False, depth=1, classes=3, gelu="exact")
    else:
        changes = {"depth": 1, "width": 32, "num_heads": 2, "mlp_dim": 48, "classes": 3}
        config = find_config(name)
        side = 2 * np.ravel(config.patch_size)[0].item()
        config = replace_fields(config, image_size=side, **changes)
    model, plain = build(config), build(config)
    fill_random(model)
    fill_random(plain)
    add_lora(model, 2, "all-linear")
    rng = np.random.default_rng(0)
    for layer in lora_layers(model):
        layer.lora_kernel_b.assign(rng.normal(0, 0.3, layer.lora_kernel_b.shape))
    return model, plain


NEWER = [
    ("clip_b16", "timm"),
    ("siglip", "timm"),
    ("siglip", "transformers"),
    ("dinov3_s16", "timm"),
    ("eva02_ti14", "timm"),
    ("aimv2_l14", "timm"),  # a gated MLP in two arrays
    ("pe_core_b16", "timm"),
]


@pytest.mark.parametrize(("name", "layout"), quick(NEWER, NEWER[-2]))
def test_newer_families_have_the_updates_of_their_kernels(name, layout, tmp_path):
    model, plain = with_updates(name)
    arrays = safetensors.numpy.load_file(
        save_adapter(model, tmp_path / "a", layout) / "adapter_model.safetensors"
    )
    chosen = find_layout(model.config, layout)
    count = 0
    for layer in lora_layers(model):  # what the kernel gains, in the order of the file
        rule, keys = chosen.find(f"{layer.path}/kernel", model.config)
        gain = float_values(layer)["kernel"] - np.asarray(layer.frozen_kernel)
        for key, expected in zip(
            keys, rule.to_file(gain, model.config.block.num_heads), strict=True
        ):
            (a,) = (x for n, x in arrays.items() if key.removesuffix("weight") + "lora_A" in n)
            (b,) = (x for n, x in arrays.items() if key.removesuffix("weight") + "lora_B" in n)
            np.testing.assert_allclose(b @ a, expected, rtol=0, atol=1e-5, err_msg=key)
            count += 1
    assert count == len(arrays) // 2 - 1  # and the head
    load_adapter(plain, tmp_path / "a")
    x = images_for(model, 2)
    expected = keras.ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(plain(x)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "lost"), [("dinov3_s16", "head/kernel, head/bias"), ("clip_b16", "head/bias")]
)
def test_a_project_without_the_head_is_refused(name, lost, tmp_path):
    model, _ = with_updates(name)
    with pytest.raises(ValueError, match=f"have no arrays for {lost}, which would be lost"):
        save_adapter(model, tmp_path, "transformers")
    assert not list(tmp_path.iterdir())
