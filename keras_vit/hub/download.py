"""Download of a file over HTTPS, resumed and retried after failures."""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import email.message
import http.client
import json
import os
import pathlib
import re
import shutil
import time
import typing
import urllib.error
import urllib.request
from collections.abc import Iterator

from keras_vit.errors import DownloadError
from keras_vit.files import DISK_FULL, no_link
from keras_vit.hub.connection import LEAST_SENT, TRANSIENT, CutError, SpeedWatch, count, pause, send
from keras_vit.hub.progress import ProgressLine
from keras_vit.reading import read_json

_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15})")
_CHUNK = 1 << 18  # bytes read at a time
_LONGEST = 24 * 3600.0  # seconds for a download, with all its attempts
_LARGEST = 1 << 36  # bytes of a file without a Content-Length
ATTEMPTS = 4  # consecutive failures without a new byte before a download gives up
BACKOFF = 1.0  # seconds before the second attempt, doubled before each further one


_Facts = typing.TypeVar("_Facts")


@dataclasses.dataclass
class Remote:
    """Facts from a server about a file; kept next to a partial file, to resume the same file.

    Args:
        url: Address of the file.
        validator: The server's mark of this version of the file, an ETag or a date.
        total: Size in bytes.
        md5: Hash in hexadecimal digits, where the server publishes it.
    """

    url: str
    validator: str | None = None
    total: int | None = None
    md5: str | None = None


def download(url: str, part: pathlib.Path, progress: ProgressLine | None = None) -> Remote:
    """Downloads a file into `part`, and resumes what an earlier call left there.

    Args:
        url: Address of the file.
        part: Partial file. After a failure it is kept, and the next call resumes it.
        progress: Progress line to update.

    Returns:
        Facts from the server about the file.

    Raises:
        DownloadError: If the file cannot be downloaded, or the disk is full.
    """
    for path in (part, facts_path(part)):
        if path.is_symlink():  # not ours: see `no_link`
            path.unlink()
    failures, furthest = 0, _size(part)
    deadline = time.monotonic() + _LONGEST
    while True:
        try:
            with SpeedWatch(deadline) as watch:
                return _attempt(url, part, progress, watch)
        except CutError as cut:
            enough = LEAST_SENT if cut.is_slow else 0
            failures = 1 if _size(part) - furthest > enough else failures + 1
            furthest = max(furthest, _size(part))
            if failures >= ATTEMPTS or time.monotonic() > deadline:
                raise DownloadError(
                    f"{url} could not be downloaded: {cut}. Tried {failures} times without "
                    f"progress. {_kept(part)}Check the connection and call again, download the "
                    "file by other means and pass its path, or name another server with "
                    "KERAS_VIT_MIRROR."
                ) from cut
            time.sleep(pause(cut, failures, BACKOFF))


def _kept(part: pathlib.Path) -> str:
    done = _size(part)
    return f"{done / 2**20:.1f} MiB are kept, and the next call resumes there. " if done else ""


def _attempt(
    url: str, part: pathlib.Path, progress: ProgressLine | None, watch: SpeedWatch
) -> Remote:
    known = read_facts(part, Remote)
    if known is None or known.url != url:
        known = Remote(url)
    offset = _size(part) if known.validator else 0
    if known.total is not None and 0 < known.total == offset:
        return known  # an earlier call ended between the last byte and the check
    with contextlib.closing(_open(url, part, offset, known.validator, watch)) as response:
        remote, offset = _read_headers(url, response, part, offset, known)
        _check_space(remote, part, offset)
        with _disk_errors(part), open(facts_path(part), "w", opener=no_link) as file:
            json.dump(dataclasses.asdict(remote), file)
        done = _copy(response, part, offset, remote.total, progress, watch)
    if remote.total is not None and done < remote.total:
        raise CutError(f"the connection was cut after {done:,} of {remote.total:,} bytes")
    if progress:
        progress.finish(done)
    return remote


def discard(part: pathlib.Path) -> None:
    """Removes a partial file and the facts about it."""
    part.unlink(missing_ok=True)
    facts_path(part).unlink(missing_ok=True)


def _open(
    url: str, part: pathlib.Path, offset: int, validator: str | None, watch: SpeedWatch
) -> http.client.HTTPResponse:
    headers = {"User-Agent": "keras-vit", "Accept-Encoding": "identity"}
    if offset and validator:
        headers |= {"Range": f"bytes={offset}-", "If-Range": validator}
    try:
        return send(urllib.request.Request(url, headers=headers), watch)
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            _refuse(url, part, error)


def _refuse(url: str, part: pathlib.Path, error: urllib.error.HTTPError) -> typing.NoReturn:
    if error.code == 416:  # the part is at least as long as the file: another one was there before
        discard(part)
        raise CutError("the server has less than it said before")
    if error.code in TRANSIENT:
        wait = count(error.headers.get("Retry-After", ""))
        raise CutError(f"the server answered {error.code} {error.reason}", wait)
    if error.code in (404, 410):
        raise DownloadError(
            f"There is no file at {url} (the server answered {error.code}). Check the address; "
            "`keras_vit.list_weights()` names the published ones."
        )
    if error.code in (401, 403):
        raise DownloadError(
            f"The server does not give out {url} (it answered {error.code}). It needs a login, or "
            "there is no such file. Download it yourself and pass its path."
        )
    raise DownloadError(f"{url} could not be downloaded: {error.code} {error.reason}.")


def _read_headers(
    url: str, response: http.client.HTTPResponse, part: pathlib.Path, offset: int, known: Remote
) -> tuple[Remote, int]:
    """Reads the facts about the file, and the offset of the first byte, from a reply."""
    headers = response.headers
    length = headers.get("Content-Length")
    if length is not None and count(length) is None:
        raise CutError(f"the server states a length of {length[:40]!r}")
    total = None if length is None else count(length)
    remote = Remote(url, _validator(headers), total, _md5(headers))
    if response.status != 206:
        return remote, 0  # the whole file, whether or not a range was asked for
    found = _RANGE.fullmatch(headers.get("Content-Range", ""))
    start, total = map(int, found.groups()) if found else (-1, -1)
    same_version = remote.validator == known.validator  # a reply with a range must repeat it
    if start != offset or total != (known.total or total) or not same_version:
        discard(part)
        raise CutError("the server sent another range than the one asked for")
    remote.total, remote.md5 = total, remote.md5 or known.md5
    return remote, offset


def _validator(headers: email.message.Message) -> str | None:
    etag = headers.get("ETag", "")
    if etag and not etag.startswith("W/"):  # weak ones may not be used with a range
        return etag
    return headers.get("Last-Modified")


def _md5(headers: email.message.Message) -> str | None:
    """Cloud Storage publishes `x-goog-hash: md5=...`, others `Content-MD5`, in base 64."""
    values = re.findall(r"\bmd5=([^\s,]*)", ",".join(headers.get_all("x-goog-hash", [])))
    for value in [*values, headers.get("Content-MD5", "")]:
        with contextlib.suppress(binascii.Error, ValueError):
            digest = base64.b64decode(value, validate=True)
            if len(digest) == 16:
                return digest.hex()
    return None


def _check_space(remote: Remote, part: pathlib.Path, offset: int) -> None:
    free = shutil.disk_usage(part.parent).free + (_size(part) - offset)
    missing = (remote.total or 0) - offset
    if missing > free:
        raise DownloadError(_full_message(part, f"{missing:,} bytes are needed, {free:,} are free"))


def _full_message(part: pathlib.Path, reason: str) -> str:
    return (
        f"The disk of {part.parent} is full: {reason}. Free some space, or set KERAS_VIT_CACHE to "
        "a folder of another disk."
    )


def _copy(
    response: http.client.HTTPResponse,
    part: pathlib.Path,
    offset: int,
    total: int | None,
    progress: ProgressLine | None,
    watch: SpeedWatch,
) -> int:
    """Writes a reply into the partial file from byte `offset`; returns its new size."""
    mode = "r+b" if part.exists() else "wb"
    with _disk_errors(part), open(part, mode, opener=no_link) as file:
        file.truncate(offset)
        file.seek(offset)
        done = offset
        while chunk := _read(response, watch):
            file.write(chunk)
            done += len(chunk)
            watch.received += len(chunk)
            if done > _LARGEST:
                break
            if progress:
                progress.update(done, total)
        file.flush()
        os.fsync(file.fileno())  # or a power cut could leave half a file under its name
    if done > _LARGEST:
        discard(part)
        raise DownloadError(
            f"The server sends more than {_LARGEST:,} bytes, without an end. Nothing was kept."
        )
    return done


def _read(response: http.client.HTTPResponse, watch: SpeedWatch) -> bytes:
    """Reads what has arrived; at the end nothing."""
    try:
        chunk = response.read1(_CHUNK)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if watch.problem:
            raise CutError(watch.problem, is_slow=True) from error
        raise CutError(f"the connection failed ({type(error).__name__}: {error})") from error
    if watch.problem:
        raise CutError(watch.problem, is_slow=True)
    left = getattr(response, "chunk_left", None)
    if isinstance(left, int) and left < 0:
        raise CutError("the server sent a chunk of negative length")
    return chunk


@contextlib.contextmanager
def _disk_errors(part: pathlib.Path) -> Iterator[None]:
    """Explains a full disk, and frees the space of the partial file."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        discard(part)
        raise DownloadError(_full_message(part, "it ran out during the download")) from error


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else 0


def facts_path(path: pathlib.Path) -> pathlib.Path:
    """Path of the facts about a file, next to it."""
    return path.with_name(path.name + ".json")


def read_facts(path: pathlib.Path, kind: type[_Facts]) -> _Facts | None:
    """Reads the facts about a file.

    Args:
        path: The file.
        kind: A dataclass of texts and numbers.

    Returns:
        The facts, or `None` where there are none, or damaged ones.
    """
    try:
        facts = kind(**read_json(facts_path(path)))
    except (OSError, ValueError, TypeError):
        return None
    types = typing.get_type_hints(kind).items()
    return facts if all(isinstance(getattr(facts, name), type_) for name, type_ in types) else None
