"""The cache of downloaded files: every file is complete and checked.

Four environment variables configure it:

- `KERAS_VIT_CACHE`: the folder of the cache.
- `KERAS_VIT_OFFLINE=1`: nothing is downloaded, only files in the cache are used.
- `KERAS_VIT_MIRROR`: a URL or a folder with the layout of the cache, used instead of the servers.
- `KERAS_VIT_PROGRESS=0`: no progress line on standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import urllib.parse
import urllib.request
from collections.abc import Sequence

from keras_vit.errors import DownloadError
from keras_vit.files import cache_dir, write_atomically
from keras_vit.hub.addresses import cache_name, download_url, is_address, mirror_url
from keras_vit.hub.checked_download import download_checked, find_fault, hash_file, locked
from keras_vit.hub.download import discard, facts_path, read_facts
from keras_vit.hub.repositories import NotCachedError, fetch_from_hub
from keras_vit.weights.sharded_file import index_name, read_index


@dataclasses.dataclass(frozen=True)
class Record:
    """Facts about a file at its first use, kept next to it as JSON.

    Args:
        address: Address that it was fetched from.
        sha256: Hash of its bytes.
        size: Size in bytes.
        modified: Time of its last change, in nanoseconds; after another change it is hashed again.
    """

    address: str
    sha256: str
    size: int
    modified: int


def is_offline() -> bool:
    """Whether `KERAS_VIT_OFFLINE` forbids downloads."""
    return os.environ.get("KERAS_VIT_OFFLINE", "").lower() not in ("", "0", "false", "no")


def fetch(
    address: str | os.PathLike[str],
    *,
    rehash: bool = False,
    download: bool = True,
    beside: Sequence[str] = (),
) -> pathlib.Path:
    """Finds the local file of an address, and downloads it if needed.

    A download resumes an earlier one that was interrupted, is checked, and is then moved into the
    cache atomically. Several processes download a file once. Where its publisher states no hash,
    the hash of the first use is recorded and checked from then on.

    Args:
        address: `https://...`, `gs://bucket/path`, `hf://owner/name[@revision][/file]`,
            `file://...`, or the path of a file, which is returned as it is. Of a split checkpoint,
            named by its index or by a part, all files are fetched, and the path of the index is
            returned.
        rehash: Whether an unchanged file in the cache is hashed again.
        download: Whether to connect to a server; otherwise the cache alone is used.
        beside: Names of files that are fetched into the same folder where an `hf://` repository
            has them, such as those of a tokenizer.

    Returns:
        The path of the file.

    Raises:
        DownloadError: If the file cannot be fetched, or differs from the published one.
        ValueError: If the address cannot be read.

    Example:

    >>> path = fetch("gs://vit_models/sam/ViT-B_16.npz")  # doctest: +SKIP
    """
    text = os.fspath(address)
    if not is_address(text) or text.startswith("file://"):
        return _local_file(text)
    if text.startswith("hf://"):
        files = fetch_from_hub(text, is_offline() or not download, beside)
        for path, published in files:  # of a split checkpoint the index, then its parts
            _check(path, _hub_record(path), text, published, rehash)
        return files[0][0]
    folder, _, name = text.removesuffix("?download=true").rpartition("/")  # of links on the hub
    index = index_name(name)
    if index is None:
        return _fetch_url(text, download, rehash)
    try:
        path = _fetch_url(f"{folder}/{urllib.parse.quote(index)}", download, rehash)
    except DownloadError as error:
        if index == name or isinstance(error, NotCachedError):
            raise
        raise DownloadError(
            f"{text} is a part of a split checkpoint, whose index is needed. {error}"
        ) from error
    for shard in dict.fromkeys(read_index(path).values()):
        _fetch_url(f"{folder}/{urllib.parse.quote(shard)}", download, rehash)
    return path


def _fetch_url(text: str, download: bool, rehash: bool) -> pathlib.Path:
    """Fetches one file into the cache: see `fetch`."""
    url = download_url(text)
    path = _cache_folder().joinpath(*cache_name(url).parts)
    if not path.is_file():
        if is_offline() or not download:
            raise NotCachedError(
                f"{text} is not in the cache, and KERAS_VIT_OFFLINE forbids to download it. Unset "
                f"KERAS_VIT_OFFLINE, or copy the file to {path}. KERAS_VIT_CACHE names another "
                "cache."
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path):
                if not path.is_file():  # another process may have downloaded it meanwhile
                    mirror = os.environ.get("KERAS_VIT_MIRROR")
                    source = mirror_url(mirror, url) if mirror else url
                    part = path.with_name(path.name + ".part")
                    download_checked(source, part, path.name)
                    _move_into_place(part, path, text)
        except DownloadError:
            raise
        except OSError as error:
            raise DownloadError(
                f"{path} cannot be written ({error}). Set KERAS_VIT_CACHE to a folder that this "
                "user may write to."
            ) from error
    _check(path, path, text, None, rehash)
    return path


def _cache_folder() -> pathlib.Path:
    try:
        return cache_dir()
    except OSError as error:
        raise DownloadError(str(error)) from error


def _hub_record(path: pathlib.Path) -> pathlib.Path:
    """Path of the record of a file in the Hugging Face cache, which is not written to."""
    starts = [i for i, part in enumerate(path.parts) if part.startswith("models--")]
    return _cache_folder().joinpath("hub", *path.parts[starts[-1] if starts else -1 :])


def _local_file(text: str) -> pathlib.Path:
    if text.startswith("file://"):
        text = urllib.request.url2pathname(urllib.parse.urlsplit(text).path)
    path = pathlib.Path(text).expanduser()
    if not path.is_file():
        raise DownloadError(f"There is no file {str(path)!r}.")
    fault = find_fault(path, path.name)
    if fault:
        raise DownloadError(f"{path} is not the file that it should be: {fault}.")
    return path


def _move_into_place(part: pathlib.Path, path: pathlib.Path, address: str) -> None:
    earlier = read_facts(path, Record)
    record = _record_of(part, address)
    if earlier is not None and earlier.sha256 != record.sha256:
        discard(part)
        raise DownloadError(
            f"The file at {address} is another one than when it was first used: its sha256 is "
            f"{record.sha256}, then {earlier.sha256}. Nothing was kept. If the change is meant, "
            f"delete {facts_path(path)}."
        )
    os.replace(part, path)  # no `write_atomically`: an interrupted download keeps its `.part`
    discard(part)
    _write_record(path, record)


def _check(
    path: pathlib.Path, recorded_at: pathlib.Path, address: str, sha256: str | None, rehash: bool
) -> None:
    """Checks a file of the cache against published facts and its record."""
    record = read_facts(recorded_at, Record)
    status = path.stat()
    fault: str | None = None
    is_new = True
    if record is None:
        fault = find_fault(path, path.name, sha256)
    elif record.address != address and not _same_file(record.address, address):
        fault = f"it came from {record.address}"
    elif sha256 is not None and record.sha256 != sha256:
        fault = f"its sha256 is {record.sha256}, expected {sha256}"
    else:
        is_new = rehash or (status.st_size, status.st_mtime_ns) != (record.size, record.modified)
        if is_new:
            fault = find_fault(path, path.name, record.sha256, record.size)
    if fault is None and is_new:  # or the same bytes, copied
        _write_record(recorded_at, _record_of(path, address))
    if fault is not None:
        raise DownloadError(
            f"{path} is not the file that it should be: {fault}. Delete {path.resolve()}, to have "
            f"{address} fetched again."
        )


def _same_file(first: str, second: str) -> bool:
    """Whether two addresses mean one file, as `gs://` and `https://` ones can."""
    of_hub = [address.startswith("hf://") for address in (first, second)]
    # Files of the hub are keyed by commit.
    return all(of_hub) if any(of_hub) else download_url(first) == download_url(second)


def _record_of(path: pathlib.Path, address: str) -> Record:
    status = path.stat()
    return Record(address, hash_file(path), status.st_size, status.st_mtime_ns)


def _write_record(path: pathlib.Path, record: Record) -> None:
    """Writes a record; a read-only cache has none."""
    target = facts_path(path)
    with contextlib.suppress(OSError), write_atomically(target, replace=True) as unfinished:
        unfinished.write_text(json.dumps(dataclasses.asdict(record), indent=2))
