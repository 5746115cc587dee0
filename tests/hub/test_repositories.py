"""Files of the Hugging Face hub, from a hub on this machine."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import struct
import sys
import urllib.parse

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download

from keras_vit.errors import DownloadError
from keras_vit.files import cache_dir
from keras_vit.hub.cache import fetch
from keras_vit.weights.formats import open_arrays
from keras_vit.weights.sidecar import NAMES
from tests.hub.hostile import certificate, serve_bytes
from tests.hub.server import File, point_client_to, serve
from tests.hub.test_connection import NONSENSE

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
    monkeypatch.setenv("HF_TOKEN", "a-token")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before the client asks again
    with serve(hub_files()) as server:
        point_client_to(server.url, monkeypatch)
        yield server


def left_over():
    return {path.name for path in pathlib.Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file()}


def test_an_address_names_repository_revision_and_file(hub):
    path = fetch("hf://timm/vit@v1/model.safetensors")
    assert path.read_bytes() == CONTENT and COMMIT in path.parts
    assert fetch("hf://timm/vit") == path
    start = "/timm/vit/resolve/"  # the client asks for other things too
    answered = zip(hub.requests, hub.tokens, strict=True)
    asked, tokens = zip(*(
        (request.removeprefix(start), token)
        for (request, _), token in answered
        if start in request
    ), strict=True)  # fmt: skip
    beside = [f"{COMMIT}/{name}" for name in NAMES]
    twice = ["v1/model.safetensors"] * 2  # facts and content
    assert list(asked) == [*twice, *beside, "main/model.safetensors", *beside]
    assert set(tokens) == {"Bearer a-token"}


def test_the_client_finds_what_was_downloaded(hub):
    path = fetch("hf://timm/vit@v1")
    options = {"cache_dir": constants.HF_HUB_CACHE, "local_files_only": True, "revision": "v1"}
    assert huggingface_hub.hf_hub_download("timm/vit", "model.safetensors", **options) == str(path)
    info = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    assert not info.warnings
    assert [(repo.repo_id, repo.nb_files) for repo in info.repos] == [("timm/vit", 1)]
    assert left_over() == {DIGEST, path.name, "v1", f"{DIGEST}.lock"} | (
        {"CACHEDIR.TAG"} & left_over()
    )


def test_a_download_through_the_client_is_not_repeated(hub):
    # Older clients read the endpoint as they are imported.
    options = {"cache_dir": constants.HF_HUB_CACHE, "revision": COMMIT, "endpoint": hub.url}
    path = huggingface_hub.hf_hub_download("timm/vit", "model.safetensors", **options)
    hub.requests.clear()
    assert str(fetch(f"hf://timm/vit@{COMMIT}")) == path
    assert not [request for request, _ in hub.requests if "model" in request]


def test_large_files_come_from_another_host_without_the_login(hub):
    """As the hub answers for them: a redirect that states size and hash."""
    with serve({"signed": File(CONTENT)}) as other:
        for path in hub_files():
            hub.files[path].redirect = other.address("signed?key=1")
            hub.files[path].headers |= {"X-Linked-Etag": f'"{DIGEST}"'}
            hub.files[path].headers |= {"X-Linked-Size": str(len(CONTENT))}
        assert fetch("hf://timm/vit").read_bytes() == CONTENT
        assert other.tokens == [None]
    assert hub.tokens[:2] == ["Bearer a-token"] * 2


def test_a_renamed_repository_is_followed_with_the_login(hub):
    for path in hub_files():
        hub.files[path.replace("timm/vit", "old/name")] = File(b"", redirect=f"/{path}")
    assert fetch("hf://old/name").read_bytes() == CONTENT
    assert set(hub.tokens) == {"Bearer a-token"}


def test_an_interrupted_download_is_resumed_by_the_client(hub, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10)
    hub.files["timm/vit/resolve/main/model.safetensors"].cut_after = [10, 10]
    for _ in range(3):  # clients before 1.0 resume it in the next call
        with contextlib.suppress(DownloadError):
            fetch("hf://timm/vit")
    assert fetch("hf://timm/vit").read_bytes() == CONTENT
    assert {asked for _, asked in hub.requests} >= {"bytes=10-", "bytes=20-"}


def test_a_download_that_stays_cut_is_an_error_and_leaves_nothing(hub):
    hub.files["timm/vit/resolve/main/model.safetensors"].cut_after = [0] * 99
    with pytest.raises(
        DownloadError, match=r"model\.safetensors of hf://timm/vit could not be .*Try"
    ):
        fetch("hf://timm/vit")
    assert not {DIGEST, "model.safetensors"} & left_over()


def test_sidecar_files_are_read_from_the_same_folder(hub):
    hub.files.update(hub_files(name="large/model.safetensors"))
    hub.files.update(hub_files(b"{}", "large/config.json"))
    path = fetch("hf://timm/vit@v1/large/model.safetensors")
    assert path.with_name("config.json").read_bytes() == b"{}"
    hub.requests.clear()
    fetch("hf://timm/vit@v1/large/model.safetensors")  # only what is not there yet
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
    path = fetch(f"hf://timm/vit@v1{file}")
    assert path.name == INDEX and COMMIT in path.parts
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "config.json", *PARTS, INDEX,
    ]  # fmt: skip
    with open_arrays(path) as opened:
        assert sorted(opened.entries) == ["0", "1", "2"]
    asked = [request.split("/")[-2:] for request, _ in split.requests]
    assert {commit for commit, name in asked if name in PARTS} == {COMMIT}
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    assert fetch(f"hf://timm/vit@v1{file}") == path


@pytest.mark.parametrize("file", [INDEX, PARTS[1], f"{PARTS[1]}?download=true"])
def test_a_part_at_a_plain_address_is_fetched_with_its_index(split, file, monkeypatch):
    folder = split.address(f"timm/vit/resolve/{COMMIT}")
    path = fetch(f"{folder}/{file}")
    with open_arrays(path) as opened:
        assert path.name == INDEX and sorted(opened.entries) == ["0", "1", "2"]
    del split.files[f"timm/vit/resolve/{COMMIT}/{INDEX}"]
    assert fetch(f"{folder}/{PARTS[2]}") == path  # of the cache
    monkeypatch.setenv("KERAS_VIT_CACHE", str(path.parent / "other"))
    with pytest.raises(DownloadError, match="is a part of a split checkpoint, whose index is need"):
        fetch(f"{folder}/{PARTS[2]}")


def test_a_part_that_is_missing_or_changed_is_named(split):
    lost = split.files.pop(f"timm/vit/resolve/{COMMIT}/{PARTS[2]}")
    with pytest.raises(DownloadError, match=rf"no file '{PARTS[2]}'"):
        fetch("hf://timm/vit")
    lost.corrupt_times = 2  # the question for its size counts
    split.files[f"timm/vit/resolve/{COMMIT}/{PARTS[2]}"] = lost
    for _ in range(2):
        with pytest.raises(DownloadError, match=rf"{PARTS[2]} is not .* its sha256 is") as caught:
            fetch("hf://timm/vit")
    pathlib.Path(re.search(r"Delete (\S+), to have", str(caught.value))[1]).unlink()
    path = fetch("hf://timm/vit")
    path.with_name(PARTS[0]).resolve().write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(DownloadError, match=rf"{PARTS[0]} is not the file that it should be"):
        fetch("hf://timm/vit")


def test_a_config_that_does_not_come_is_an_error_and_not_a_guess(hub, monkeypatch):
    hub.files.update(hub_files(b"{}", "config.json"))
    hub.files[f"timm/vit/resolve/{COMMIT}/config.json"].answers = [500] * 9
    with pytest.raises(DownloadError, match=r"config\.json, the sidecar .* model\.safetensors"):
        fetch("hf://timm/vit")
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")  # where it was not fetched before
    assert fetch("hf://timm/vit").read_bytes() == CONTENT


def test_the_hash_that_the_hub_publishes_is_checked(hub):
    file = hub.files["timm/vit/resolve/main/model.safetensors"]
    file.content = CONTENT[:-1] + b"!"  # other bytes under the stated hash
    with pytest.raises(
        DownloadError, match=rf"its sha256 is .* Delete .*{DIGEST}, to have"
    ) as caught:
        fetch("hf://timm/vit")
    file.content = CONTENT
    pathlib.Path(re.search(r"Delete (\S+), to have", str(caught.value))[1]).unlink()
    fetch("hf://timm/vit").resolve().write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(DownloadError, match="its sha256 is"):
        fetch("hf://timm/vit")


def test_the_first_use_is_recorded_by_commit(hub):
    fetch("hf://timm/vit")
    record = cache_dir() / f"hub/models--timm--vit/snapshots/{COMMIT}/model.safetensors.json"
    assert json.loads(record.read_text())["sha256"] == DIGEST
    record.write_text(record.read_text().replace(DIGEST, "f" * 64))
    with pytest.raises(DownloadError, match=f"its sha256 is ffff.*, expected {DIGEST}"):
        fetch("hf://timm/vit")


def test_a_short_file_is_found_by_its_structure(hub):
    for file in hub_files().keys() & hub.files.keys():
        hub.files[file].content, hub.files[file].etag = CONTENT[:-3], '"0a"'
    with pytest.raises(DownloadError, match="should have 8 bytes of arrays but has 5"):
        fetch("hf://timm/vit")


def test_without_the_hub_the_cache_answers(hub, monkeypatch):
    path = fetch("hf://timm/vit")
    for file in hub.files.values():
        file.answers = [503] * 9
    hub.files.update(
        {f"timm/vit/resolve/{COMMIT}/{name}": File(b"", answers=[404]) for name in NAMES}
    )
    assert fetch("hf://timm/vit") == path
    shutil.rmtree(constants.HF_HUB_CACHE)
    with pytest.raises(
        DownloadError, match=r"the hub does not answer as it should .*503.*Check the connection"
    ):
        fetch("hf://timm/vit")


@pytest.mark.parametrize("setting", ["KERAS_VIT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_asks_the_cache_only(hub, monkeypatch, setting):
    path = fetch("hf://timm/vit")
    hub.requests.clear()
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1" if setting.startswith("K") else "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", setting.startswith("H"))
    assert fetch("hf://timm/vit") == path
    with pytest.raises(DownloadError, match=rf"not in the cache .*{setting} forbids.*Unset that"):
        fetch("hf://timm/vit@v2")
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
    listing = json.dumps({"id": "timm/vit", "siblings": siblings}).encode()
    hub.files = {"api/models/timm/vit/revision/main": File(listing)}
    with pytest.raises(DownloadError, match=message):
        fetch("hf://timm/vit")


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
        fetch("hf://timm/vit@v1")


def test_a_log_gets_a_line_at_the_start_and_at_the_end(hub, capsys, monkeypatch):
    monkeypatch.delenv("KERAS_VIT_PROGRESS")
    fetch("hf://timm/vit")
    start, end = capsys.readouterr().err.splitlines()
    assert start == "model.safetensors: 0.0 MiB" and "100%" in end
    fetch("hf://timm/vit")  # of the cache
    assert capsys.readouterr().err == ""


def test_bars_of_the_client_are_hidden_while_it_downloads(hub, monkeypatch):
    hidden, download = [], huggingface_hub.hf_hub_download

    def note(*arguments, **options):
        hidden.append(huggingface_hub.utils.are_progress_bars_disabled())
        return download(*arguments, **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", note)
    fetch("hf://timm/vit")
    assert hidden and all(hidden) and not huggingface_hub.utils.are_progress_bars_disabled()


def test_a_cache_that_cannot_be_written_to_says_what_to_set(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot be written to .*file: .*Set HF_HOME"):
        fetch("hf://timm/vit")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_what_to_set(hub, monkeypatch, number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_download, "http_get", fail)
    with pytest.raises(DownloadError, match=r"The disk of .*hf is full.*set HF_HOME"):
        fetch("hf://timm/vit")
    assert not {DIGEST, "model.safetensors"} & left_over()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Not enough free disk space:UserWarning")  # of the client
def test_a_disk_that_is_really_full(hub, small_disk, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(small_disk.path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(small_disk.path / "hf"))
    hub.files.update(hub_files(bytes(200_000), "a.h5"))
    small_disk.fill(100_000)
    with pytest.raises(DownloadError, match=r"The disk of .*hf is full, .*set HF_HOME"):
        fetch("hf://timm/vit/a.h5")
    assert "a.h5" not in left_over()
    small_disk.make_room()
    assert fetch("hf://timm/vit/a.h5").read_bytes() == bytes(200_000)


def test_a_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "keras-vision-transformer\[hub\]"'):
        fetch("hf://timm/vit")


@pytest.mark.parametrize(
    ("header", "value"),
    [("X-Repo-Commit", "../../.."), ("X-Repo-Commit", None), ("ETag", None)],
)
def test_a_server_that_is_no_hub(hub, header, value):
    for file in hub.files.values():
        file.etag = None
        facts = {"ETag": f'"{DIGEST}"', "X-Repo-Commit": COMMIT, header: value}
        file.headers = {name: text for name, text in facts.items() if text is not None}
    with pytest.raises(DownloadError, match=r"hf://timm/vit .*(HF_ENDPOINT|Check the connection)"):
        fetch("hf://timm/vit")
    assert not {DIGEST, "model.safetensors"} & left_over()


@pytest.mark.parametrize(
    "path", ["@v1/../../x.npz", "@../../x", "/../x.npz", "/a//b.npz", "@%2e%2e"]
)
def test_no_address_leads_out_of_the_cache(hub, path):
    with pytest.raises(ValueError, match=r"paths without '\.\.'"):
        fetch(f"hf://timm/vit{path}")


@pytest.mark.parametrize("path", ["é" * 300, "x" * 300])
def test_names_that_are_too_long_for_the_disk(hub, path):
    hub.files.update(hub_files(name=f"{urllib.parse.quote(path)}.npz"))
    with pytest.raises(DownloadError, match=r"cannot be written to .*name too long"):
        fetch(f"hf://timm/vit/{path}.npz")


HEAD = b'HTTP/1.1 200 OK\r\nX-Repo-Commit: 0123abc\r\nETag: "0a"\r\nContent-Length: %d\r\n\r\n'


@pytest.mark.parametrize("before", [[], [HEAD % len(CONTENT)]], ids=["answer", "file"])
@pytest.mark.parametrize("reply", sorted(set(NONSENSE) - {"itself"}))
def test_nonsense_of_a_hub_is_a_download_error(reply, before, hub, monkeypatch):
    with serve_bytes(*before, NONSENSE[reply]) as url:
        point_client_to(url.removesuffix("/a.npz"), monkeypatch)
        with pytest.raises(DownloadError, match=r"hf://timm/vit"):
            fetch("hf://timm/vit")
    assert not {"0a", "model.safetensors"} & left_over()


def test_tls_needs_a_certificate_that_is_known(hub, monkeypatch, tmp_path):
    pem = certificate(tmp_path)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with serve_bytes(HEAD % len(CONTENT) + CONTENT, tls=pem) as url:
        point_client_to(url.removesuffix("/a.npz"), monkeypatch)
        with pytest.raises(DownloadError, match=r"CERTIFICATE_VERIFY_FAILED.*set SSL_CERT_FILE"):
            fetch("hf://timm/vit/a.safetensors")
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            monkeypatch.setenv(name, str(pem[0]))
        point_client_to(url.removesuffix("/a.npz"), monkeypatch)
        assert fetch("hf://timm/vit/a.safetensors").read_bytes() == CONTENT
