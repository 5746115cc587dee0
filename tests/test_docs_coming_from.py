"""The page for users of other libraries: its code runs, and its names and tags exist."""

from __future__ import annotations

import inspect
import pathlib
import re

import pytest

import keras_vit
from keras_vit.hub.catalog import CARDS, list_weights
from tests.data.pictures import write_folder

PAGE = (pathlib.Path(__file__).parents[1] / "docs/coming-from.md").read_text()
ADDRESS = "hf://google/vit-base-patch16-224"


@pytest.mark.slow
def test_the_code_runs_on_a_local_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "photos", size=(32, 32))
    small = keras_vit.create_model("vit_ti16", input_shape=(32, 32, 3), depth=2, name="small")
    keras_vit.save_weights(small, "published.safetensors", layout="transformers")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 6
    exports = stub_exports(monkeypatch)
    names: dict = {}
    for block in (block for block in blocks if "# not run" not in block):
        block = block.replace(f'"{ADDRESS}"', '"published.safetensors", num_heads=3')
        block = block.replace("ViTB16(weights=", "create_model('vit_ti16', depth=2, weights=")
        block = block.replace('"hf_orig_in21k_ft_in1k")', '"published.safetensors")')
        block = block.replace("block_2", "block_0").replace("block_5", "block_1")
        block = block.replace("model, 64)", "model, 4)").replace("epochs=5", "epochs=1")
        exec(compile(block, "docs/coming-from.md", "exec"), names)
    assert names["tokens"].shape == (None, 5, 192)
    assert names["pooled"].shape == (None, 192)
    assert names["stages"].output["block_1"].shape == (None, 2, 2, 192)
    assert exports == ["serving/pets", "pets.tflite", "pets.onnx"]
    assert keras_vit.inspect_file("model.safetensors").layout == "transformers_vit"


def stub_exports(monkeypatch):
    """Replaces the exports, which tests/test_readme.py runs, by checks of their arguments."""
    paths: list[str] = []
    for name in ("export_saved_model", "export_litert", "export_onnx"):
        signature = inspect.signature(getattr(keras_vit, name))
        monkeypatch.setattr(
            keras_vit,
            name,
            lambda *args, bind=signature.bind, **options: paths.append(
                bind(*args, **options).arguments["path"]
            ),
        )
    return paths


def test_every_name_of_ours_exists():
    cells = re.findall(r"`(\w+)[.(]", PAGE.split("## From transformers")[1])
    packages = {"data", "train", "models", "analysis"}
    called = {name for name in cells if name in keras_vit.__all__}
    assert {"from_pretrained", "export_onnx", "features_of", "adapt_model"} <= called
    for package, name in re.findall(r"\b(data|train|models|analysis)\.(\w+)", PAGE):
        assert package in packages and hasattr(getattr(keras_vit, package), name), name


def test_every_tag_and_address_exists():
    addresses = {card.address for card in list_weights()}
    for address in re.findall(r'"(hf://[^"]+)"', PAGE.replace("hf://timm/NAME", "")):
        assert address in addresses
    tags = set(re.findall(r'weights="([a-z0-9_]+)"', PAGE)) - {"flexivit_"}
    assert len(tags) >= 4
    assert tags <= {tag for _, tag in CARDS}


@pytest.mark.parametrize("variant", ["vit_b16", "vit_b32", "vit_l16", "vit_l32"])
def test_tags_for_users_of_vit_keras_exist(variant):
    assert (variant, "orig_in21k") in CARDS
    assert (variant, "orig_in21k_ft_in1k_384") in CARDS
