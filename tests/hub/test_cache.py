"""Files arrive whole or not at all, whatever the server does."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import zipfile
from unittest import mock

import numpy as np
import pytest

import keras_vit
from keras_vit.errors import DownloadError
from keras_vit.files import cache_dir
from keras_vit.hub import cache, checked_download, connection, download
from keras_vit.hub.addresses import cache_name
from keras_vit.hub.cache import fetch
from keras_vit.weights import npz_file
from tests.hub.server import File, serve

PACKAGE = pathlib.Path(keras_vit.__file__).parent


def npz_bytes(size=200_000, seed=0) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.random.default_rng(seed).bytes(size), b=np.arange(3))
    return buffer.getvalue()


CONTENT = npz_bytes()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    for name in ("KERAS_VIT_OFFLINE", "KERAS_VIT_MIRROR", "KERAS_VIT_PROGRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file():
    return File(CONTENT)


@pytest.fixture
def server(file):
    with serve({"models/B%2016%2Bx.npz": file}) as server:
        yield server


def quick_fetch(address, attempts=4, **options):
    with mock.patch.multiple(download, ATTEMPTS=attempts, BACKOFF=0.001):
        return fetch(address, **options)


def address_of(server):
    return server.address("models/B 16+x.npz")


def left_over():
    """Every file of the cache but locks."""
    return sorted(p.name for p in cache_dir().rglob("*") if p.is_file() and p.suffix != ".lock")


def test_a_file_is_downloaded_once_and_recorded(server):
    path = quick_fetch(address_of(server))
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(cache_dir()) and path.name == "B 16+x.npz"
    assert quick_fetch(address_of(server)) == path
    assert server.requests == [("/models/B%2016%2Bx.npz", None)]
    record = json.loads(path.with_name(path.name + ".json").read_text())
    assert record["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert record["size"] == len(CONTENT)
    assert left_over() == ["B 16+x.npz", "B 16+x.npz.json"]


def test_a_cut_is_resumed_where_it_was(server, file):
    file.cut_after = [50_000, 30_000]
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=50000-", "bytes=80000-"]


def test_a_later_call_resumes_what_an_earlier_one_left(server, file):
    file.cut_after = [50_000]
    with pytest.raises(DownloadError, match=r"0\.0 MiB are kept, and the next call resumes there"):
        quick_fetch(address_of(server), attempts=1)
    assert left_over() == ["B 16+x.npz.part", "B 16+x.npz.part.json"]
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT
    assert server.requests[-1][1] == "bytes=50000-"


def test_many_cuts_are_survived_as_long_as_there_is_progress(server, file):
    file.cut_after = [20_000] * 9
    assert quick_fetch(address_of(server), attempts=2).read_bytes() == CONTENT
    assert len(server.requests) == 10


def test_cuts_without_progress_give_up(server, file):
    file.cut_after = [0] * 20
    with pytest.raises(DownloadError, match="Tried 3 times without progress"):
        quick_fetch(address_of(server), attempts=3)
    assert len(server.requests) == 3


def test_a_file_that_changed_since_the_cut_is_not_mixed_with_the_old_one(server, file):
    file.cut_after = [50_000]
    with pytest.raises(DownloadError):
        quick_fetch(address_of(server), attempts=1)
    file.content, file.etag = npz_bytes(seed=1), '"v2"'
    assert quick_fetch(address_of(server)).read_bytes() == npz_bytes(seed=1)


@pytest.mark.parametrize("behaviour", ["ignores_range", "shifts_range"])
def test_a_server_that_gets_ranges_wrong(server, file, behaviour):
    file.cut_after = [50_000]
    setattr(file, behaviour, True)
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT


def test_a_server_without_etag_is_asked_for_all_again(server, file):
    file.cut_after, file.etag = [50_000], None
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, None]


@pytest.mark.parametrize("suffix", [".part", ".part.json", ".lock"])
def test_links_in_place_of_temporary_files_are_not_followed(suffix, server, tmp_path):
    path = cache_dir() / cache_name(server.address("models/B%2016%2Bx.npz"))
    path.parent.mkdir(parents=True)
    (tmp_path / "other").write_text("precious")
    path.with_name(path.name + suffix).symlink_to(tmp_path / "other")
    if suffix == ".lock":
        with pytest.raises(OSError, match="symbolic links"):
            quick_fetch(address_of(server))
    else:
        assert quick_fetch(address_of(server)).read_bytes() == CONTENT
    assert (tmp_path / "other").read_text() == "precious"


def test_a_part_longer_than_the_file_is_thrown_away(server, file):
    path = cache_dir() / server.url.removeprefix("http://").replace(":", "_") / "models"
    path.mkdir(parents=True)
    part = path / "B 16+x.npz.part"
    part.write_bytes(bytes(len(CONTENT) + 5))
    state = {"url": server.address("models/B%2016%2Bx.npz"), "validator": '"v1"'}
    part.with_name(part.name + ".json").write_text(json.dumps(state))
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT
    assert server.requests[0][1] == f"bytes={len(CONTENT) + 5}-"


DAMAGED = [b"", b"\xff", b"[" * 99_999, b'{"url": 1}', b"[]"]


@pytest.mark.parametrize("content", [*DAMAGED, b'{"url": "URL", "validator": 3, "total": "x"}'])
def test_damaged_facts_about_a_part_begin_it_again(content, server, file):
    file.cut_after = [50_000]
    with pytest.raises(DownloadError):
        quick_fetch(address_of(server), attempts=1)
    (state,) = cache_dir().rglob("*.part.json")
    url = json.loads(state.read_text())["url"]
    state.write_bytes(content.replace(b"URL", url.encode()))
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content",
    [*DAMAGED, b'{"address": "x", "sha256": "x", "size": "x", "modified": null}'],
)
def test_a_damaged_record_is_made_again(content, server):
    path = quick_fetch(address_of(server))
    record = path.with_name(path.name + ".json")
    before = record.read_bytes()
    record.write_bytes(content)
    assert quick_fetch(address_of(server)) == path
    assert record.read_bytes() == before


def test_a_server_that_states_too_great_a_length(server, file):
    file.stated_length = len(CONTENT) + 100
    with pytest.raises(DownloadError, match="has less than it said before"):
        quick_fetch(address_of(server), attempts=2)
    assert not any(name.endswith(".npz") for name in left_over())


def test_a_server_that_states_too_small_a_length(server, file):
    file.stated_length = len(CONTENT) - 100
    with pytest.raises(DownloadError, match=r"downloaded twice.*damaged .*zip"):
        quick_fetch(address_of(server))
    assert left_over() == []


def test_chunked_replies_without_a_length(server, file):
    file.chunked = True
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT


def test_a_chunked_reply_that_is_cut_is_no_file(server, file):
    file.chunked, file.cut_after = True, [50_000, 0, 0]
    with pytest.raises(DownloadError, match="connection failed"):
        quick_fetch(address_of(server), attempts=2)
    assert not any(name.endswith(".npz") for name in left_over())


def test_a_corrupt_reply_is_fetched_once_more(server, file):
    file.corrupt_times = 1
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize("known", ["nothing", "md5 of the server"])
def test_a_file_that_stays_corrupt_is_refused(server, file, known):
    file.corrupt_times = 9
    if known == "md5 of the server":
        file.headers = file.md5_header
    reason = {"nothing": "it is damaged", "md5 of the server": "its md5"}
    with pytest.raises(DownloadError, match=reason[known]):
        quick_fetch(address_of(server))
    assert left_over() == []
    assert len(server.requests) == 2


def test_the_md5_that_a_server_publishes_is_accepted_where_it_is_right(server, file):
    file.headers = file.md5_header
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server, file):
    file.answers = [503, 429, 500]
    file.headers = {"Retry-After": "0"}
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT


def test_waits_double_and_follow_the_server(server, file, monkeypatch):
    waits = []
    monkeypatch.setattr(download.time, "sleep", waits.append)
    file.answers = [503] * 3
    fetch(address_of(server))
    assert [0.7 < waits[0] < 1.3, 1.5 <= waits[1] <= 2.5, 3 <= waits[2] <= 5] == [True] * 3
    waits.clear()
    file.answers, file.headers = [503], {"Retry-After": "7"}
    path = cache_dir() / "x"
    path.parent.mkdir(exist_ok=True)
    download.download(server.address("models/B%2016%2Bx.npz"), path)
    assert waits == [7.0]


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "There is no file"), (403, "does not give out"), (503, "answered 503"), (418, "418")],
)
def test_refusals_say_what_to_do(server, file, status, message):
    file.answers = [status] * 20
    with pytest.raises(DownloadError, match=message):
        quick_fetch(address_of(server))
    assert len(server.requests) == (4 if status == 503 else 1)
    assert left_over() == []


def test_nobody_answers():
    with serve({}) as server:
        address = server.address("gone.npz")
    with pytest.raises(DownloadError, match="Tried 2 times"):
        quick_fetch(address, attempts=2)


def test_no_redirect_leaves_https():
    request = download.urllib.request.Request("https://example.org/a.npz")
    for target in ("http://example.org/a.npz", "ftp://example.org/a.npz", "file:///etc/passwd"):
        with pytest.raises(DownloadError, match="which is not https"):
            connection._SafeRedirects().redirect_request(request, None, 302, "Found", {}, target)


def test_redirects_are_followed():
    files = {"a.npz": File(CONTENT)}
    with serve(files) as server:
        files["old.npz"] = File(b"", redirect=server.address("a.npz"))
        assert quick_fetch(server.address("old.npz")).read_bytes() == CONTENT


def test_a_full_disk_is_told_and_left_clean(server, monkeypatch):
    def write_to_full_disk(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullDisk(io.FileIO):
        write = write_to_full_disk

    monkeypatch.setattr(
        download, "open", lambda path, *_, **__: FullDisk(path, "w+"), raising=False
    )
    with pytest.raises(DownloadError, match=r"is full.*KERAS_VIT_CACHE"):
        quick_fetch(address_of(server))
    assert left_over() == []


def test_too_small_a_disk_is_told_before_the_download(server, monkeypatch):
    usage = download.shutil._ntuple_diskusage(100, 90, 10)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"200,\d+ bytes are needed, 10 are free"):
        quick_fetch(address_of(server))
    assert not any(name.endswith((".npz", ".part")) for name in left_over())


@pytest.mark.slow
@pytest.mark.parametrize("leave", [0, 4096, 100_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_disk_that_is_really_full(chunked, leave, small_disk, monkeypatch):
    """Of a reply without a length the disk takes a part; nothing of it stays."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(small_disk.path / "cache"))
    with serve({"a.npz": File(CONTENT, chunked=chunked)}) as server:
        address = server.address("a.npz")
        small_disk.fill(leave)
        with pytest.raises(DownloadError, match=r"The disk of .*disk.* is full: .*KERAS_VIT_CACHE"):
            quick_fetch(address)
        left = [path for path in small_disk.path.rglob("*") if path.is_file()]
        assert {path.suffix for path in left} <= {".lock", ""} and len(left) <= 2
        small_disk.make_room()
        assert quick_fetch(address).read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_to(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot be written.*Set KERAS_VIT_CACHE"):
        quick_fetch(address_of(server))


def test_offline_uses_what_is_there_and_nothing_else(server, monkeypatch):
    path = quick_fetch(address_of(server))
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    assert quick_fetch(address_of(server)) == path
    with pytest.raises(DownloadError, match=r"KERAS_VIT_OFFLINE forbids.*copy the file to .*other"):
        quick_fetch(server.address("other.npz"))
    assert len(server.requests) == 1


def test_a_changed_file_of_the_cache_is_found(server):
    path = quick_fetch(address_of(server))
    path.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(
        DownloadError, match=r"its sha256 is .* expected .*Delete .*x\.npz, to have"
    ):
        quick_fetch(address_of(server))
    path.write_bytes(CONTENT[:1000])
    with pytest.raises(DownloadError, match="it has 1,000 bytes, expected 200,"):
        quick_fetch(address_of(server))


def test_a_change_that_hides_its_time_is_found_on_demand(server):
    path = quick_fetch(address_of(server))
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(CONTENT[:-1] + b"!")
    os.utime(path, ns=times)
    with pytest.raises(DownloadError, match="its sha256 is"):
        quick_fetch(address_of(server), rehash=True)


def test_a_touched_file_is_hashed_once_and_accepted(server, monkeypatch):
    path = quick_fetch(address_of(server))
    os.utime(path, ns=(1, 1))
    assert quick_fetch(address_of(server)) == path
    for module in (cache, checked_download):
        monkeypatch.setattr(module, "hash_file", lambda *a: pytest.fail("hashed again"))
    assert quick_fetch(address_of(server)) == path


def test_another_file_at_a_known_address_is_refused(server, file):
    path = quick_fetch(address_of(server))
    path.unlink()
    file.content, file.etag = npz_bytes(seed=1), '"v2"'
    with pytest.raises(DownloadError, match="another one than when it was first used"):
        quick_fetch(address_of(server))
    assert left_over() == ["B 16+x.npz.json"]


def test_a_file_copied_into_the_cache_is_checked_and_recorded(server):
    host = server.url.removeprefix("http://").replace(":", "_")
    path = cache_dir() / host / "models" / "copied.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:5000])
    with pytest.raises(DownloadError, match=r"damaged \(File is not a zip file\)"):
        quick_fetch(server.address("models/copied.npz"))
    path.write_bytes(CONTENT)
    assert quick_fetch(server.address("models/copied.npz")) == path
    assert left_over() == ["copied.npz", "copied.npz.json"]
    assert server.requests == []


def test_a_mirror_has_the_layout_of_the_cache(monkeypatch):
    name = "storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/ViT-B_16.npz"
    address = "gs://vit_models/imagenet21k+imagenet2012/ViT-B_16.npz"
    with serve({f"weights/{name}": File(CONTENT)}) as server:
        monkeypatch.setenv("KERAS_VIT_MIRROR", server.address("weights/"))
        path = quick_fetch(address)
    assert path.read_bytes() == CONTENT
    assert path.relative_to(cache_dir()).as_posix() == name.replace("%2B", "+")
    assert server.requests == [(f"/weights/{name}", None)]


def test_a_mirror_may_be_a_folder(tmp_path, monkeypatch):
    source = tmp_path / "a mirror" / "storage.googleapis.com" / "bucket" / "a+b.npz"
    source.parent.mkdir(parents=True)
    source.write_bytes(CONTENT)
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "a mirror"))
    assert quick_fetch("gs://bucket/a+b.npz").read_bytes() == CONTENT
    with pytest.raises(DownloadError, match="There is no file at file:"):
        quick_fetch("gs://bucket/other.npz")


def test_a_local_file_is_returned_as_it_is(tmp_path):
    path = tmp_path / "mine.npz"
    path.write_bytes(CONTENT)
    assert fetch(path) == fetch(path.as_uri()) == fetch(str(path)) == path
    (tmp_path / "short.npz").write_bytes(CONTENT[:5000])
    with pytest.raises(DownloadError, match=r"short\.npz is not the file .*: it is damaged"):
        fetch(tmp_path / "short.npz")
    with pytest.raises(DownloadError, match=r"There is no file .*absent\.npz"):
        fetch(tmp_path / "absent.npz")
    assert not cache_dir().exists()


def test_the_cache_follows_its_settings(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_VIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "keras_vit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "keras_vit"


def test_progress_is_told_and_can_be_silenced(server, capsys, monkeypatch):
    quick_fetch(address_of(server))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "100%" in lines[-1] and "B 16+x.npz" in lines[-1]
    monkeypatch.setenv("KERAS_VIT_PROGRESS", "0")
    quick_fetch(server.address("models/B%2016%2Bx.npz") + "?again=1")
    assert capsys.readouterr().err == ""


_FETCH_IN_A_PROCESS = """
import sys, types
package = types.ModuleType("keras_vit")  # without the imports of the package: this is quick
package.__path__ = [sys.argv[1]]
sys.modules["keras_vit"] = package
from keras_vit.hub.cache import fetch
print(fetch(sys.argv[2]).read_bytes() == open(sys.argv[3], "rb").read())
"""


def start_fetch(address, expected):
    command = [sys.executable, "-c", _FETCH_IN_A_PROCESS, str(PACKAGE), address, str(expected)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_several_processes_download_once(server, file, tmp_path):
    (tmp_path / "expected").write_bytes(CONTENT)
    file.delay = 3.0  # longer than the slowest of four imports takes on a busy machine
    processes = [start_fetch(address_of(server), tmp_path / "expected") for _ in range(4)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [out.strip() for out, _ in outputs] == ["True"] * 4, outputs
    assert len(server.requests) == 1
    assert sum("waiting for it" in err for _, err in outputs) == 3


def test_a_killed_process_does_not_block_another(server, file, tmp_path):
    (tmp_path / "expected").write_bytes(CONTENT)
    file.delay = 30.0
    first = start_fetch(address_of(server), tmp_path / "expected")
    while not server.requests:
        assert first.poll() is None
    first.kill()
    first.communicate()
    file.delay = 0.0
    assert quick_fetch(address_of(server)).read_bytes() == CONTENT


def test_a_download_without_a_home_directory_says_what_to_set(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "KERAS_VIT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as without a passwd entry
    with pytest.raises(DownloadError, match=r"no home directory\. Set KERAS_VIT_CACHE"):
        fetch("https://example.org/a.npz")


def test_a_packed_bomb_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("a.npy", bytes(50_000_000))
    with pytest.raises(DownloadError, match="magic string is not correct"):
        fetch(path)
    np.savez_compressed(path, a=np.zeros(12_500_000, "float32"))
    monkeypatch.setattr(npz_file, "_verify_member", lambda *_: pytest.fail("unpacked"))
    assert fetch(path) == path  # loading reads such a member, and compares its checksum
