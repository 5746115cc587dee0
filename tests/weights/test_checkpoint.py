"""Open checkpoints: each file is opened once, and problems name each array once."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.__main__ import main
from keras_vit.create import build
from keras_vit.errors import CheckpointMismatchError
from keras_vit.weights import checkpoint
from keras_vit.weights.inspection import inspect_file
from keras_vit.weights.load import load_weights
from tests.fixtures import tiny_config
from tests.official import GOLDEN
from tests.weights.test_load_torch import CASES, weights

PATH = GOLDEN / "vit_token.checkpoint.npz"
SIZES = {"patch_size": 8, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64}


@pytest.fixture
def opened(monkeypatch):
    """Paths of the files that are opened, one for each time."""
    paths = []
    open_arrays = checkpoint.open_arrays
    monkeypatch.setattr(
        checkpoint, "open_arrays", lambda path: paths.append(path) or open_arrays(path)
    )
    return paths


def convert(path, folder):
    arguments = ["--layout", "timm", "--image-size", "48"]
    main(["weights", "convert", str(path), str(folder / "timm.safetensors"), *arguments])


@pytest.mark.parametrize(
    "use",
    [
        lambda path, folder: keras_vit.from_pretrained(path),
        lambda path, folder: keras_vit.create_model(
            "vit_ti16", weights=path, input_shape=(32, 32, 3), **SIZES
        ),
        lambda path, folder: load_weights(build(tiny_config()), path),
        lambda path, folder: inspect_file(path),
        convert,
    ],
    ids=["from_pretrained", "create_model", "load_weights", "inspect_file", "convert"],
)
def test_a_checkpoint_is_opened_once(use, opened, tmp_path):
    use(PATH, tmp_path)
    assert [str(path) for path in opened] == [str(PATH)]


def test_sizes_options_and_the_sidecar_file_are_read_once(monkeypatch, tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(weights(CASES["timm vit"]["shapes"]), path)
    calls = []
    for name in ("read_sizes", "read_sidecar", "guess_variant"):
        function = getattr(checkpoint, name)
        monkeypatch.setattr(
            checkpoint,
            name,
            lambda *args, name=name, function=function: calls.append(name) or function(*args),
        )
    keras_vit.from_pretrained(path, num_heads=4)
    assert sorted(calls) == ["guess_variant", "read_sidecar", "read_sizes"]


@pytest.mark.parametrize("missing", ["query", "key", "value"])
def test_two_of_query_key_and_value_are_not_unused(missing, tmp_path):
    arrays = weights(CASES["transformers vit"]["shapes"])
    name = f"vit.encoder.layer.0.attention.attention.{missing}.weight"
    del arrays[name]
    arrays["vit.encoder.layer.1.surplus.weight"] = np.ones(3, "float32")
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(CheckpointMismatchError) as caught:
        load_weights(build(tiny_config(classes=5)), path)
    problems = [line.strip() for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert problems == [
        f"missing: {name!r}, for block_0/attention/qkv/kernel (32, 96)",
        "unused: 'vit.encoder.layer.1.surplus.weight' (3,), for which the model has no variable",
    ]
