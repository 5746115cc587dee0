"""Models that are published on a hub on this machine, and loaded again."""

from __future__ import annotations

import base64
import hashlib
import json

import keras
import numpy as np
import pytest
from huggingface_hub import constants

import keras_vit
from keras_vit.errors import UploadError
from keras_vit.hub.upload import push
from tests.fixtures import fill_random, images_for, tiny_vit
from tests.hub.server import File, point_client_to, serve

COMMIT = "0123456789" * 4


class Hub:
    """Answers the requests of a push, and serves what was pushed."""

    def __init__(self, server):
        self.server = server
        self.created = None
        self.refused = "/"
        self.refuses = 0
        self.large = ()  # endings of the names of files that git-lfs keeps
        self.stored = {}  # by digest

    def answer(self, path, body):
        if self.refuses and path.startswith(self.refused):
            return self.refuses
        if path == "/api/repos/create":
            self.created = json.loads(body)
            return {"url": f"{self.server.url}/me/pets", "name": "me/pets"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = ["lfs" if name.endswith(self.large) else "regular" for name in names]
            kinds = [{"uploadMode": mode, "shouldIgnore": False} for mode in modes]
            return {"files": [{"path": n, **k} for n, k in zip(names, kinds, strict=True)]}
        if path.endswith(".git/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            to = f"{self.server.url}/store/"
            actions = [{"upload": {"href": to + each["oid"]}} for each in asked]
            pairs = zip(asked, actions, strict=True)
            return {"transfer": "basic", "objects": [{**each, "actions": a} for each, a in pairs]}
        if path.startswith("/store/"):
            self.stored[hashlib.sha256(body).hexdigest()] = body
            return {}
        if "/commit/" in path:
            self._commit(body, path.rpartition("/")[2])
            url = f"{self.server.url}/me/pets/commit/{COMMIT}"
            return {"success": True, "commitUrl": url, "commitOid": COMMIT}
        return 404

    def _commit(self, body, branch):
        for line in map(json.loads, body.splitlines()):
            if line["key"] in ("file", "lfsFile"):
                value = line["value"]
                is_large = line["key"] == "lfsFile"
                content = (
                    self.stored[value["oid"]] if is_large else base64.b64decode(value["content"])
                )
                digest = hashlib.sha256(content).hexdigest()
                file = File(content, f'"{digest}"', headers={"X-Repo-Commit": COMMIT})
                for revision in (branch, COMMIT):
                    self.server.files[f"me/pets/resolve/{revision}/{value['path']}"] = file


@pytest.fixture
def hub(tmp_path, monkeypatch):
    for name, value in (("CACHE", str(tmp_path / "cache")), ("PROGRESS", "0")):
        monkeypatch.setenv(f"KERAS_VIT_{name}", value)
    monkeypatch.delenv("KERAS_VIT_OFFLINE", raising=False)
    monkeypatch.setenv("HF_TOKEN", "a-token")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before the client asks again
    with serve({}) as server:
        point_client_to(server.url, monkeypatch)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        found = Hub(server)
        server.answer = found.answer
        yield found


def pets(**changes):
    model = tiny_vit(0.1, classes=2, gelu="exact", depth=1, **changes)
    model.class_names = ("cat", "dog")
    return model


def test_a_pushed_model_is_loaded_again(hub):
    model = pets()
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    address = push(model, "hf://me/pets", private=True)
    assert address == f"{hub.server.url}/me/pets/commit/{COMMIT}"
    assert hub.created["name"] == "pets"
    assert {hub.created.get("private"), hub.created.get("visibility")} & {True, "private"}
    assert set(hub.server.tokens) <= {"Bearer a-token", None}
    images = images_for(model)
    loaded = keras_vit.from_pretrained("hf://me/pets")
    np.testing.assert_allclose(loaded(images), model(images), rtol=0, atol=1e-5)
    assert loaded.class_names == ("cat", "dog")
    path = keras_vit.hub.fetch_weights("hf://me/pets/model.keras")
    whole = keras.saving.load_model(path)
    np.testing.assert_array_equal(whole(images), model(images))
    assert not whole.compiled and whole.class_names == ("cat", "dog")


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # of the hub's own client
def test_large_files_are_sent_by_git_lfs(hub):
    """As the hub asks for files of weights from clients without Xet."""
    hub.large = (".safetensors", ".keras")
    model = pets()
    hub.refuses, hub.refused = 403, "/store/"
    with pytest.raises(UploadError, match=r"HTTP status 403.*token that may write"):
        push(model, "hf://me/pets")
    assert hub.server.files == {} and hub.stored == {}
    hub.refuses = 0
    push(model, "hf://me/pets")
    assert len(hub.stored) == 2 and len(hub.server.files) >= 6
    loaded = keras_vit.from_pretrained("hf://me/pets")
    images = images_for(model)
    np.testing.assert_allclose(loaded(images), model(images), rtol=0, atol=1e-5)


def test_updates_of_low_rank_are_merged(tmp_path):
    model = pets()
    keras_vit.models.add_lora(model, rank=2)
    fill_random(model, 0.1)
    model.compile("adam", "mse")
    push(model, "hf://me/pets", dry_run=tmp_path / "pets")
    loaded = keras.saving.load_model(tmp_path / "pets/model.keras")
    images = images_for(model)
    np.testing.assert_allclose(loaded(images), model(images), rtol=0, atol=1e-4)
    read = keras_vit.from_pretrained(tmp_path / "pets")
    np.testing.assert_allclose(read(images), model(images), rtol=0, atol=1e-4)


def test_the_code_of_the_card_names_what_is_there(tmp_path):
    push(pets(), "hf://me/pets", dry_run=tmp_path / "pets", layout="timm")
    card = (tmp_path / "pets/README.md").read_text()
    assert 'timm.create_model("hf-hub:me/pets", pretrained=True)' in card
    assert 'keras_vit.from_pretrained("hf://me/pets")' in card and "Outputs: cat, dog." in card
    names = {path.name for path in (tmp_path / "pets").iterdir()}
    assert names == {"README.md", "model.keras", "model.safetensors", "config.json"}
    assert json.loads((tmp_path / "pets/config.json").read_text())["architecture"]


def test_what_no_project_can_represent_is_published_as_keras_file(tmp_path):
    model = pets(num_registers=2, layer_scale=0.1, patch_dropout_rate=0.0, norm_epsilon=0.5)
    with pytest.raises(ValueError, match="timm"):
        push(model, "hf://me/pets", dry_run=tmp_path / "a", layout="timm")
    assert not (tmp_path / "a").exists()
    push(model, "hf://me/pets", dry_run=tmp_path / "b")
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"README.md", "model.keras"}
    card = (tmp_path / "b/README.md").read_text()
    assert "There is no file for transformers or timm. " in card and "transformers:" in card


def test_a_branch_is_part_of_the_address(hub):
    push(pets(), "hf://me/pets@trial")
    assert "me/pets/resolve/trial/README.md" in hub.server.files


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")
def test_a_failing_store_of_large_files_does_not_ask_to_log_in(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False, raising=False)
    hub.large = (".safetensors",)
    hub.refuses, hub.refused = 503, "/store/"
    with pytest.raises(UploadError, match=r"Check the connection|Try again"):
        push(pets(), "hf://me/pets")  # by Xet where it is installed, which finds no address
    assert hub.server.files == {}


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "Log in with `hf auth login`"), (500, "Try again")]
)
def test_a_refusal_says_what_to_do(hub, status, advice):
    hub.refuses = status
    with pytest.raises(UploadError, match=rf"not pushed to hf://me/pets: .*{advice}"):
        push(pets(), "hf://me/pets")
    assert hub.server.files == {}


def test_mistakes_are_errors_before_anything_is_written(tmp_path, monkeypatch):
    model = pets()
    with pytest.raises(ValueError, match="without a file"):
        push(model, "hf://me/pets/model.keras")
    with pytest.raises(ValueError, match="has the form hf://owner/name"):
        push(model, "me/pets", dry_run=tmp_path / "a")
    with pytest.raises(ValueError, match="`layout` must be None or one of 'transformers', 'timm'"):
        push(model, "hf://me/pets", layout="official")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    with pytest.raises(ValueError, match="is not an empty folder"):
        push(model, "hf://me/pets", dry_run=tmp_path / "full")
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(UploadError, match="KERAS_VIT_OFFLINE forbids"):
        push(model, "hf://me/pets")
