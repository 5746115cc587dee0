"""Files of the Hugging Face hub, from a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil
import struct
import sys

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download

from keras_vit.errors import DownloadError
from keras_vit.files import cache_dir
from keras_vit.hub.cache import fetch
from keras_vit.weights.formats import open_arrays
from keras_vit.weights.sidecar import NAMES
from tests.hub.server import File, serve

HEADER = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
CONTENT = struct.pack("<Q", len(HEADER)) + HEADER + bytes(8)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "0123456789" * 4
WEIGHTS = f"timm/vit/resolve/{COMMIT}/model.safetensors"


def hub_files(content=CONTENT, name="model.safetensors", revisions=("main", "v1", COMMIT)):
    """A file of the repository `timm/vit`, under some names of its one commit."""
    headers = {"X-Repo-Commit": COMMIT}
    file = File(content, etag=f'"{hashlib.sha256(content).hexdigest()}"', headers=headers)
    return {f"timm/vit/resolve/{revision}/{name}": file for revision in revisions}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one file, which is the only one; both caches are folders of the test."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_VIT_PROGRESS", "0")
    monkeypatch.delenv("KERAS_VIT_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "a-token")
    with serve(hub_files()) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):  # older clients have a copy
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        yield server


def quick_fetch(address, **options):
    return fetch(address, **{"attempts": 2, "backoff": 0.001, **options})


def left_over():
    return {path.name for path in pathlib.Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file()}


def test_an_address_names_repository_revision_and_file(hub):
    path = quick_fetch("hf://timm/vit@v1/model.safetensors")
    assert path.read_bytes() == CONTENT and COMMIT in path.parts
    assert quick_fetch("hf://timm/vit") == path
    asked = [request.removeprefix("/timm/vit/resolve/") for request, _ in hub.requests]
    beside = [f"{COMMIT}/{name}" for name in NAMES]
    assert asked == ["v1/model.safetensors", f"{COMMIT}/model.safetensors", *beside,
                     "main/model.safetensors", *beside]  # fmt: skip
    assert set(hub.tokens) == {"Bearer a-token"}


def test_the_client_finds_what_was_downloaded(hub):
    path = quick_fetch("hf://timm/vit@v1")
    options = {"cache_dir": constants.HF_HUB_CACHE, "local_files_only": True, "revision": "v1"}
    assert huggingface_hub.hf_hub_download("timm/vit", "model.safetensors", **options) == str(path)
    info = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    assert not info.warnings
    assert [(repo.repo_id, repo.nb_files) for repo in info.repos] == [("timm/vit", 1)]
    assert left_over() == {DIGEST, path.name, "v1", f"{DIGEST}.lock"}


def test_a_download_through_the_client_is_not_repeated(hub):
    # Older clients read the endpoint as they are imported.
    options = {"cache_dir": constants.HF_HUB_CACHE, "revision": COMMIT, "endpoint": hub.url}
    path = huggingface_hub.hf_hub_download("timm/vit", "model.safetensors", **options)
    hub.requests.clear()
    assert str(quick_fetch(f"hf://timm/vit@{COMMIT}")) == path
    assert not [request for request, _ in hub.requests if "model" in request]


def test_large_files_come_from_another_host_without_the_login(hub):
    """As the hub answers for them: a redirect that states size and hash."""
    with serve({"signed": File(CONTENT)}) as other:
        for path in hub_files():
            hub.files[path].redirect = other.address("signed?key=1")
            hub.files[path].headers |= {"X-Linked-Etag": f'"{DIGEST}"'}
            hub.files[path].headers |= {"X-Linked-Size": str(len(CONTENT))}
        assert quick_fetch("hf://timm/vit").read_bytes() == CONTENT
        assert other.tokens == [None]
    assert hub.tokens[:2] == ["Bearer a-token"] * 2


def test_a_renamed_repository_is_followed_with_the_login(hub):
    for path in hub_files():
        hub.files[path.replace("timm/vit", "old/name")] = File(b"", redirect=f"/{path}")
    assert quick_fetch("hf://old/name").read_bytes() == CONTENT
    assert set(hub.tokens) == {"Bearer a-token"}


def test_an_interrupted_download_is_resumed(hub):
    hub.files[WEIGHTS].cut_after = [10, 10]
    with pytest.raises(DownloadError, match=r"cut after .* are kept, and the next call resumes"):
        quick_fetch("hf://timm/vit", attempts=1)
    assert quick_fetch("hf://timm/vit").read_bytes() == CONTENT
    assert (f"/{WEIGHTS}", "bytes=10-") in hub.requests
    assert not [name for name in left_over() if "part" in name]


def test_sidecar_files_are_read_from_the_same_folder(hub):
    hub.files.update(hub_files(name="large/model.safetensors"))
    hub.files.update(hub_files(b"{}", "large/config.json"))
    path = quick_fetch("hf://timm/vit@v1/large/model.safetensors")
    assert path.with_name("config.json").read_bytes() == b"{}"
    hub.requests.clear()
    quick_fetch("hf://timm/vit@v1/large/model.safetensors")  # only what is not there yet
    assert [request.rpartition("/")[2] for request, _ in hub.requests] == [
        "model.safetensors",
        "preprocessor_config.json",
    ]


PARTS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def split(hub):
    """The hub with a checkpoint in three files, and the bytes of each."""
    hub.files.clear()
    contents = {name: CONTENT.replace(b'"a"', b'"%d"' % n) for n, name in enumerate(PARTS)}
    index = {"weight_map": {str(number): name for number, name in enumerate(PARTS)}}
    contents[INDEX] = json.dumps(index).encode()
    contents["config.json"] = b"{}"
    for name, content in contents.items():
        hub.files.update(hub_files(content, name))
    return hub


@pytest.mark.parametrize("file", ["", f"/{INDEX}", f"/{PARTS[1]}"])
def test_a_split_checkpoint_is_fetched_whole(split, file, monkeypatch):
    path = quick_fetch(f"hf://timm/vit@v1{file}")
    assert path.name == INDEX and COMMIT in path.parts
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "config.json", *PARTS, INDEX,
    ]  # fmt: skip
    with open_arrays(path) as opened:
        assert sorted(opened.entries) == ["0", "1", "2"]
    asked = [request.split("/")[-2:] for request, _ in split.requests]
    assert {commit for commit, name in asked if name in PARTS} == {COMMIT}
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    assert quick_fetch(f"hf://timm/vit@v1{file}") == path


@pytest.mark.parametrize("file", [INDEX, PARTS[1], f"{PARTS[1]}?download=true"])
def test_a_part_at_a_plain_address_is_fetched_with_its_index(split, file, monkeypatch):
    folder = split.address(f"timm/vit/resolve/{COMMIT}")
    path = quick_fetch(f"{folder}/{file}")
    with open_arrays(path) as opened:
        assert path.name == INDEX and sorted(opened.entries) == ["0", "1", "2"]
    del split.files[f"timm/vit/resolve/{COMMIT}/{INDEX}"]
    assert quick_fetch(f"{folder}/{PARTS[2]}") == path  # of the cache
    monkeypatch.setenv("KERAS_VIT_CACHE", str(path.parent / "other"))
    with pytest.raises(DownloadError, match="is a part of a split checkpoint, whose index is need"):
        quick_fetch(f"{folder}/{PARTS[2]}")


def test_a_part_that_is_missing_or_changed_is_named(split):
    lost = split.files.pop(f"timm/vit/resolve/{COMMIT}/{PARTS[2]}")
    with pytest.raises(DownloadError, match=rf"no file '{PARTS[2]}'"):
        quick_fetch("hf://timm/vit")
    lost.corrupt_times = 3  # the question for its size counts
    split.files[f"timm/vit/resolve/{COMMIT}/{PARTS[2]}"] = lost
    with pytest.raises(DownloadError, match=rf"{PARTS[2]} was downloaded twice .*sha256"):
        quick_fetch("hf://timm/vit")
    path = quick_fetch("hf://timm/vit")
    path.with_name(PARTS[0]).resolve().write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(DownloadError, match=rf"{PARTS[0]} is not the file that it should be"):
        quick_fetch("hf://timm/vit")


def test_a_config_that_does_not_come_is_an_error_and_not_a_guess(hub, monkeypatch):
    hub.files.update(hub_files(b"{}", "config.json"))
    hub.files[f"timm/vit/resolve/{COMMIT}/config.json"].answers = [500] * 9
    with pytest.raises(DownloadError, match=r"config\.json, the sidecar .* model\.safetensors"):
        quick_fetch("hf://timm/vit")
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")  # where it was not fetched before
    assert quick_fetch("hf://timm/vit").read_bytes() == CONTENT


def test_the_hash_that_the_hub_publishes_is_checked(hub):
    hub.files[WEIGHTS].content = CONTENT[:-1] + b"!"  # other bytes under the stated hash
    with pytest.raises(
        DownloadError, match=r"downloaded twice .* its sha256 is .* Nothing was kept"
    ):
        quick_fetch("hf://timm/vit")
    assert left_over() <= {f"{DIGEST}.lock", "CACHEDIR.TAG"}
    hub.files[WEIGHTS].content = CONTENT
    quick_fetch("hf://timm/vit").resolve().write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(DownloadError, match="its sha256 is"):
        quick_fetch("hf://timm/vit")


def test_the_first_use_is_recorded_by_commit(hub):
    quick_fetch("hf://timm/vit")
    record = cache_dir() / f"hub/models--timm--vit/snapshots/{COMMIT}/model.safetensors.json"
    assert json.loads(record.read_text())["sha256"] == DIGEST
    with pytest.raises(DownloadError, match="expected ffff"):
        quick_fetch("hf://timm/vit", sha256="f" * 64)


def test_a_short_file_is_found_by_its_structure(hub):
    for file in hub_files().keys() & hub.files.keys():
        hub.files[file].content, hub.files[file].etag = CONTENT[:-3], '"0a"'
    with pytest.raises(DownloadError, match="should have 8 bytes of arrays but has 5"):
        quick_fetch("hf://timm/vit")


def test_without_the_hub_the_cache_answers(hub, monkeypatch):
    path = quick_fetch("hf://timm/vit")
    for file in hub.files.values():
        file.answers = [503] * 9
    hub.files.update(
        {f"timm/vit/resolve/{COMMIT}/{name}": File(b"", answers=[404]) for name in NAMES}
    )
    assert quick_fetch("hf://timm/vit") == path
    shutil.rmtree(constants.HF_HUB_CACHE)
    with pytest.raises(
        DownloadError, match=r"the hub does not answer\. Check the connection .*503"
    ):
        quick_fetch("hf://timm/vit")


@pytest.mark.parametrize("setting", ["KERAS_VIT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_asks_the_cache_only(hub, monkeypatch, setting):
    path = quick_fetch("hf://timm/vit")
    hub.requests.clear()
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1" if setting.startswith("K") else "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", setting.startswith("H"))
    assert quick_fetch("hf://timm/vit") == path
    with pytest.raises(DownloadError, match=rf"not in the cache .*{setting} forbids.*Unset that"):
        quick_fetch("hf://timm/vit@v2")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["pytorch_model.bin"], r"pytorch_model\.bin\) are pickled"),
        (["vit.safetensors", "x.bin"], r"Name one of: vit\.safetensors"),
        (
            ["a\x1b[2J.npz", "b.npz", *["c" * 180 + ".npz"] * 999],
            r"of: b\.npz, (c{180}\.npz(, )?){19}\.$",
        ),
        (None, "There is no file 'model.safetensors'"),
    ],
)
def test_a_missing_file_names_what_there_is(hub, files, message):
    siblings = [{"rfilename": name} for name in files] if files else 3
    listing = json.dumps({"siblings": siblings}).encode()
    hub.files = {"api/models/timm/vit/revision/main": File(listing)}
    with pytest.raises(DownloadError, match=message):
        quick_fetch("hf://timm/vit")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "The hub has no repository 'timm/vit'"),
        (401, "", "The hub has no repository 'timm/vit'.* or keeps it private"),
        (404, "RevisionNotFound", "at revision 'v1'"),
        (403, "GatedRepo", "after its licence is accepted"),
        (403, "", "the hub answered 403"),
    ],
)
def test_refusals_of_the_hub_say_what_to_do(hub, status, code, message):
    file = hub.files["timm/vit/resolve/v1/model.safetensors"]
    file.answers, file.headers = [status], {"X-Error-Code": code}
    with pytest.raises(DownloadError, match=message):
        quick_fetch("hf://timm/vit@v1")


def test_a_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "keras-vision-transformer\[hub\]"'):
        fetch("hf://timm/vit")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("ETag", '"../../../../evil"'),
        ("ETag", '"/tmp/evil"'),
        ("ETag", '".hidden"'),
        ("ETag", '"' + "a" * 300 + '"'),
        ("ETag", ""),
        ("X-Repo-Commit", "../../.."),
        ("X-Repo-Commit", ""),
    ],
)
def test_no_reply_names_a_path(hub, header, value):
    for file in hub.files.values():
        file.etag = None
        file.headers = {"ETag": f'"{DIGEST}"', "X-Repo-Commit": COMMIT, header: value}
    with pytest.raises(DownloadError, match=r"is no file of a hub: .* HF_ENDPOINT"):
        quick_fetch("hf://timm/vit")
    assert left_over() == set()


@pytest.mark.parametrize(
    "path", ["@v1/../../x.npz", "@../../x", "/../x.npz", "/a//b.npz", "@%2e%2e"]
)
def test_no_address_leads_out_of_the_cache(hub, path):
    with pytest.raises(ValueError, match=r"paths without '\.\.'"):
        quick_fetch(f"hf://timm/vit{path}")
