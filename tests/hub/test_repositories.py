"""Files of the Hugging Face hub, with its client replaced at its public functions."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import huggingface_hub
import pytest
from huggingface_hub import errors

import keras_vit
from keras_vit.errors import DownloadError
from keras_vit.hub.cache import cache_dir, fetch
from keras_vit.weights.sidecar import NAMES
from tests.hub.server import File, serve

HEADER = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
CONTENT = struct.pack("<Q", len(HEADER)) + HEADER + bytes(8)


class Response:
    """As much of a reply as the client's errors look at."""

    status_code = 404
    request = None
    url = "https://huggingface.co"

    def __init__(self):
        self.headers = {}

    def json(self):
        return {}


def hub_error(kind):
    try:
        return kind("no", response=Response())
    except TypeError:
        return kind("no")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A client whose cache is a folder of the test; `calls` holds what it was asked for."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KERAS_VIT_OFFLINE", raising=False)
    root = tmp_path / "hf" / "models--timm--vit"
    blob = root / "blobs" / hashlib.sha256(CONTENT).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(CONTENT)
    link = root / "snapshots" / "0123abc" / "model.safetensors"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)

    class Hub:
        fails: Exception | None = None
        path = link

        def __init__(self):
            self.calls, self.files = [], []
            self.beside = {name: hub_error(errors.EntryNotFoundError) for name in NAMES}

        def download(self, repository, filename, *, revision, local_files_only):
            self.calls.append((repository, filename, revision, local_files_only))
            if filename in self.beside:
                raise self.beside[filename]
            if self.fails:
                raise self.fails
            return str(self.path)

    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda *a, **k: hub.files)
    return hub


def test_an_address_names_repository_revision_and_file(hub):
    assert fetch("hf://timm/vit@v1/model.safetensors").read_bytes() == CONTENT
    fetch("hf://timm/vit")
    beside = [("timm/vit", name, "0123abc", False) for name in NAMES]
    assert hub.calls == [
        ("timm/vit", "model.safetensors", "v1", False),
        *beside,
        ("timm/vit", "model.safetensors", None, False),
        *beside,
    ]


def test_sidecar_files_are_read_from_the_same_folder(hub):
    hub.beside = {f"large/{name}": hub_error(errors.EntryNotFoundError) for name in NAMES}
    fetch("hf://timm/vit@v1/large/model.safetensors")
    assert [call[1] for call in hub.calls[1:]] == list(hub.beside)
    hub.path.with_name("config.json").write_text("{}")
    hub.calls.clear()
    fetch("hf://timm/vit@v1/large/model.safetensors")  # only what is not there yet
    assert [call[1] for call in hub.calls[1:]] == ["large/preprocessor_config.json"]


def test_a_config_that_does_not_come_is_an_error_and_not_a_guess(hub, monkeypatch):
    for error in (hub_error(errors.HfHubHTTPError), errors.LocalEntryNotFoundError("cut")):
        hub.beside["config.json"] = error
        with pytest.raises(DownloadError, match=r"config\.json, the sidecar .* model\.safetensors"):
            fetch("hf://timm/vit")
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")  # where it was not fetched before
    assert fetch("hf://timm/vit").read_bytes() == CONTENT


def test_the_hash_that_the_hub_publishes_is_checked(hub):
    hub.path.resolve().write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(DownloadError, match="its sha256 is"):
        fetch("hf://timm/vit")


def test_the_first_use_is_recorded_by_commit(hub):
    fetch("hf://timm/vit")
    record = cache_dir() / "hub/models--timm--vit/snapshots/0123abc/model.safetensors.json"
    assert json.loads(record.read_text())["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(DownloadError, match="expected ffff"):
        fetch("hf://timm/vit", sha256="f" * 64)


def test_a_short_file_is_found_by_its_structure(hub, tmp_path):
    hub.path = tmp_path / "model.safetensors"
    hub.path.write_bytes(CONTENT[:-3])
    with pytest.raises(DownloadError, match="should have 8 bytes of arrays but has 5"):
        fetch("hf://timm/vit")


def test_offline_asks_the_client_for_its_cache_only(hub, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    fetch("hf://timm/vit")
    assert all(call[-1] is True for call in hub.calls)
    hub.fails = errors.LocalEntryNotFoundError("no")
    with pytest.raises(DownloadError, match=r"not in the cache .*OFFLINE forbids.*Unset that"):
        fetch("hf://timm/vit")
    monkeypatch.delenv("KERAS_VIT_OFFLINE")
    with pytest.raises(DownloadError, match=r"the hub does not answer\. Check the connection"):
        fetch("hf://timm/vit")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["pytorch_model.bin"], r"pytorch_model\.bin\) are pickled"),
        (["vit.safetensors", "x.bin"], r"Name one of: vit\.safetensors"),
        (["model.safetensors.index.json", "m-1.safetensors"], "split over several files"),
        ([], "There is no file 'model.safetensors'"),
    ],
)
def test_a_missing_file_names_what_there_is(hub, files, message):
    hub.files, hub.fails = files, hub_error(errors.EntryNotFoundError)
    with pytest.raises(DownloadError, match=message):
        fetch("hf://timm/vit")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.RepositoryNotFoundError, "The hub has no repository 'timm/vit'"),
        (errors.RevisionNotFoundError, "at revision 'v9'"),
        (errors.GatedRepoError, "after its licence is accepted"),
        (errors.HfHubHTTPError, "could not be downloaded"),
    ],
)
def test_refusals_of_the_hub_say_what_to_do(hub, kind, message):
    hub.fails = hub_error(kind)
    with pytest.raises(DownloadError, match=message):
        fetch("hf://timm/vit@v9")


def test_a_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "keras_vit\[hub\]"'):
        fetch("hf://timm/vit")


_FETCH_IN_A_PROCESS = """
import sys, types
package = types.ModuleType("keras_vit")  # without the imports of the package: this is quick
package.__path__ = [sys.argv[1]]
sys.modules["keras_vit"] = package
from keras_vit.errors import DownloadError
from keras_vit.hub.cache import fetch
try:
    print(fetch(sys.argv[2]))
except DownloadError as error:
    print("DownloadError:", error)
"""


def test_the_real_client_against_a_hub_on_this_machine(tmp_path):
    digest, commit = hashlib.sha256(CONTENT).hexdigest(), "0123456789" * 4
    headers = {"X-Repo-Commit": commit}
    path = "timm/vit/resolve/v1/model.safetensors"
    package = pathlib.Path(keras_vit.__file__).parent

    def fetch_in_a_process(address, **settings):
        environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": server.url,
                       "KERAS_VIT_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1",
                       "HF_HUB_DISABLE_TELEMETRY": "1", **settings}  # fmt: skip
        command = [sys.executable, "-c", _FETCH_IN_A_PROCESS, str(package), address]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    config = File(b'{"num_attention_heads": 3}', etag='"' + "ab" * 20 + '"', headers=headers)
    files = {
        path: File(CONTENT, etag=f'"{digest}"', headers=headers),
        f"timm/vit/resolve/{commit}/config.json": config,
        f"timm/vit/resolve/{commit}/preprocessor_config.json": File(
            b"", answers=[404] * 9, headers={**headers, "X-Error-Code": "EntryNotFound"}
        ),
    }
    with serve(files) as server:
        found = fetch_in_a_process("hf://timm/vit@v1")
        assert pathlib.Path(found).read_bytes() == CONTENT
        assert commit in found
        assert pathlib.Path(found).with_name("config.json").read_bytes() == config.content
        assert not pathlib.Path(found).with_name("preprocessor_config.json").exists()
        offline = fetch_in_a_process("hf://timm/vit@v1", KERAS_VIT_OFFLINE="1")
        assert offline == found
        missing = fetch_in_a_process("hf://timm/vit@v1/other.npz", KERAS_VIT_OFFLINE="1")
        assert missing.startswith("DownloadError:") and "KERAS_VIT_OFFLINE forbids" in missing
        server.files[path].content = CONTENT[:-1] + b"!"  # other bytes under the stated hash
        shutil.rmtree(tmp_path / "hf")
        wrong = fetch_in_a_process("hf://timm/vit@v1")
        assert wrong.startswith("DownloadError:") and "sha256 is" in wrong
