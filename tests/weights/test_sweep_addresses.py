"""The same files through addresses: a server on this machine in the layout of the hub."""

from __future__ import annotations

import hashlib
import json

import pytest
import safetensors.numpy
from huggingface_hub import constants

from keras_vit.create import create_model
from keras_vit.pretrained import from_pretrained
from tests.hub.server import File, point_client_to, serve
from tests.sweep import arrays
from tests.weights.test_sweep import CASES, TOLERANCE, difference

COMMIT = "0123456789" * 4
PLAIN = {"include_preprocessing": False}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub of this machine: `add` gives it a repository, and the real client asks it."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KERAS_VIT_OFFLINE", raising=False)
    with serve({}) as server:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
        point_client_to(server.url, monkeypatch)
        yield server


def add(hub, repository, case, config=True):
    """Publishes a case; without its configuration the hub says that there is no such file."""
    weights = safetensors.numpy.save(arrays(case))
    headers = {"X-Repo-Commit": COMMIT}
    missing = File(b"", answers=[404] * 9, headers={**headers, "X-Error-Code": "EntryNotFound"})
    text = json.dumps(case["config"]).encode()
    files = {
        "model.safetensors": File(
            weights, etag=f'"{hashlib.sha256(weights).hexdigest()}"', headers=headers
        ),
        "config.json": File(text, etag='"' + "ab" * 20 + '"', headers=headers),
        "preprocessor_config.json": missing,
    }
    if not config:
        files["config.json"] = missing
    for revision in ("main", COMMIT):
        for name, file in files.items():
            hub.files[f"{repository}/resolve/{revision}/{name}"] = file


@pytest.mark.parametrize(
    ("title", "repository"),
    [
        ("timm vit_base_patch16_gap_224", "timm/vit_base_patch16_gap_224.in1k"),
        ("timm vit_large_patch16_siglip_512", "timm/vit_large_patch16_siglip_512.v2_webli"),
        ("transformers DeiTForImageClassification", "me/deit"),
    ],
)
def test_a_repository_gives_what_its_folder_gives(title, repository, hub):
    add(hub, repository, CASES[title])
    assert difference(CASES[title], from_pretrained(f"hf://{repository}", **PLAIN)) <= TOLERANCE


@pytest.mark.parametrize("scheme", ["hf", "http"])
def test_the_name_in_an_address_decides_where_no_config_does(scheme, hub):
    """The tanh GELU of some of timm's SigLIP models, and heads that no array tells."""
    title, repository = "timm vit_large_patch16_siglip_512", "timm/vit_large_patch16_siglip_512.v2"
    add(hub, repository, CASES[title], config=False)
    address = f"hf://{repository}"
    if scheme == "http":  # a single file, by our own client
        address = hub.address(f"{repository}/resolve/main/model.safetensors")
    model = from_pretrained(address, **PLAIN)
    assert difference(CASES[title], model) <= TOLERANCE
    name = repository.partition("/")[2].partition(".")[0]
    assert model.load_report.settings["gelu"] == ("tanh", f"timm's {name}")
    assert model.load_report.settings["num_heads"] == (16, f"timm's {name}")


def test_a_single_file_without_a_name_asks(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays(CASES["timm vit_large_patch16_siglip_512"]), path)
    with pytest.raises(ValueError, match=r"SigLIP models with the exact GELU.*pass gelu="):
        from_pretrained(path)
    with pytest.raises(ValueError, match=r"number of attention heads.*Pass num_heads"):
        from_pretrained(path, gelu="tanh")
    model = from_pretrained(path, gelu="tanh", num_heads=16, **PLAIN)
    assert difference(CASES["timm vit_large_patch16_siglip_512"], model) <= TOLERANCE
    assert model.load_report.settings["gelu"] == ("tanh", "the caller")


def test_create_model_follows_the_address_too(hub, monkeypatch):
    from keras_vit.variants import VARIANTS

    title, repository = "timm vit_base_patch16_gap_224", "timm/vit_base_patch16_gap_224.in1k"
    add(hub, repository, CASES[title])
    config = from_pretrained(f"hf://{repository}").config
    monkeypatch.setitem(VARIANTS, "vit_b16_small", config)
    model = create_model("vit_b16_small", weights=f"hf://{repository}", classes=10, **PLAIN)
    assert difference(CASES[title], model) <= TOLERANCE
