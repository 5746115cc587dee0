"""The commands `weights list`, `info`, `fetch` and `convert`."""

from __future__ import annotations

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.cli.commands import LAYOUTS
from keras_vit.cli.main import main
from keras_vit.hub.catalog import CARDS
from keras_vit.weights.save import WRITABLE
from tests.cli.test_main import TOKEN
from tests.official import load_golden


def test_layouts_are_those_that_can_be_written():
    assert LAYOUTS == WRITABLE


def test_list_names_the_weights_of_an_architecture(capsys):
    assert main(["weights", "list", "R26+B/32"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["weights", "pixels", "classes", "top-1", "MiB", "layout", "address"]
    address = "gs://vit_models/imagenet21k/R26+ViT-B_32.npz"
    assert row.split() == [
        "r26_vit_b32/orig_in21k", "224", "21,843", "-", "450", "official", address
    ]  # fmt: skip


def test_list_as_json_is_every_card(capsys):
    assert main(["weights", "list", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(CARDS)
    assert {(line["variant"], line["tag"]) for line in lines} == set(CARDS)


def test_info_says_what_a_file_is(tiny, capsys):
    assert main(["weights", "info", str(TOKEN), "--arrays"]) == 0
    text = capsys.readouterr().out
    facts = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines())
    assert facts["layout"].strip() == "official (npz)"
    assert facts["variant"].strip() == "vit_tiny"
    assert facts["image_size"].strip() == "32 x 32"
    assert "width=32, depth=2" in facts["sizes"]
    assert facts["parameters"].strip() == "24,234"
    assert "embedding/kernel" in text and "8 x 8 x 3 x 32" in text


def test_info_as_json_of_a_tag(tiny, capsys):
    assert main(["weights", "info", "vit_tiny/in10", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["classes"] == 10 and facts["address"] == "gs://tests/tiny.npz"
    assert facts["arrays"] == "not in the cache: pass --download to connect to its server"
    assert main(["weights", "info", "vit_tiny/in10", "--json", "--download"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["classes"] == 10 and facts["options"]["gelu"] == "tanh"
    assert facts["arrays"]["cls"] == [[1, 1, 32], "float32"]


def test_fetch_prints_the_path(tiny, capsys):
    assert main(["weights", "fetch", "vit_tiny/in10", "--rehash"]) == 0
    path = capsys.readouterr().out.strip()
    with open(path, "rb") as file:
        assert file.read() == TOKEN.read_bytes()


@pytest.mark.parametrize("layout", ["official", "big_vision", "timm", "transformers"])
def test_convert_writes_what_loads_to_the_same_numbers(layout, tiny, tmp_path, capsys):
    kind = "npz" if layout in ("official", "big_vision") else "safetensors"
    target = tmp_path / f"out.{kind}"
    assert main(["weights", "convert", str(TOKEN), str(target), "--layout", layout]) == 0
    assert f"{layout} layout" in capsys.readouterr().out.splitlines()[-1]
    settings = {"gelu": "tanh", "norm_epsilon": 1e-6, "include_preprocessing": False}
    model = keras_vit.create_model("vit_tiny", weights=target, classes=10, **settings)
    _, outputs = load_golden("vit_token")
    logits = model.predict(outputs["images"], verbose=0)
    np.testing.assert_allclose(logits, outputs["logits"], rtol=0, atol=2e-5)


def test_convert_to_another_image_size(tiny, tmp_path):
    target = tmp_path / "out.npz"
    line = ["weights", "convert", str(TOKEN), str(target), "--layout", "official"]
    assert main([*line, "--image-size", "48"]) == 0
    assert keras_vit.inspect_file(target).image_size == (48, 48)


def test_convert_needs_no_architecture_in_the_table(tmp_path, capsys):
    target = tmp_path / "out.safetensors"
    assert main(["weights", "convert", str(TOKEN), str(target), "--layout", "timm"]) == 0
    line = ["weights", "convert", str(target), str(tmp_path / "again.npz"), "--layout", "official"]
    assert main(line) == 0  # its config.json was written beside it
    (tmp_path / "config.json").unlink()
    assert main(line) == 2  # shapes do not tell the number of heads
    error = capsys.readouterr().err
    assert "does not tell the number of attention heads" in error
    assert main([*line, "--num-heads", "4"]) == 0
    (tmp_path / "config.json").write_text('{"model_args": {"num_heads": 4}}')
    assert main(line) == 0
    with np.load(tmp_path / "again.npz") as arrays:
        for name, array in load_golden("vit_token")[0].items():
            np.testing.assert_array_equal(arrays[name], array, err_msg=name)


def test_convert_keeps_the_channels_of_the_images(tiny, tmp_path):
    arrays, _ = load_golden("vit_token")
    arrays["embedding/kernel"] = arrays["embedding/kernel"].sum(axis=2, keepdims=True)
    np.savez(tmp_path / "grey.npz", **arrays)
    line = ["weights", "convert", str(tmp_path / "grey.npz")]
    assert main([*line, str(tmp_path / "a.npz"), "--layout", "official"]) == 0
    assert main([*line, str(tmp_path / "b.npz"), "--layout", "official", "--image-size", "48"]) == 0
    for name in ("a.npz", "b.npz"):
        with np.load(tmp_path / name) as written:
            np.testing.assert_array_equal(written["embedding/kernel"], arrays["embedding/kernel"])


def test_convert_refuses_what_would_not_be_the_same(tiny, tmp_path, capsys):
    target = tmp_path / "out.npz"
    line = ["weights", "convert", str(TOKEN), str(target), "--layout", "official"]
    assert main([*line, "--variant", "vit_b16"]) == 2
    error = capsys.readouterr().err
    assert "does not fit the model 'vit_b16'" in error and "looks like a vit_tiny" in error
    assert not target.exists()
