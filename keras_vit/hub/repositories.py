"""Files of repositories on the Hugging Face hub, kept in the cache of its own client.

The client names the cache, the endpoint and the login. The download is that of all other files, so
that it is resumed, ends when a server is too slow, and no reply names a path.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

from keras_vit.errors import DownloadError
from keras_vit.files import write_atomically
from keras_vit.hub.addresses import HubAddress, parse_hub_address
from keras_vit.hub.checked_download import download_checked, locked, prepare_folder
from keras_vit.hub.connection import count, head, read_text
from keras_vit.hub.download import discard
from keras_vit.installation import pip_install
from keras_vit.reading import parse_json
from keras_vit.weights.array_file import PICKLE_SUFFIXES
from keras_vit.weights.formats import DEFAULT_FILE
from keras_vit.weights.sharded_file import index_name, read_index
from keras_vit.weights.sidecar import NAMES

_READABLE = (".safetensors", ".npz", ".weights.h5")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,99}")  # of marks that become file names


class NotCachedError(DownloadError):
    """A file that is not in the cache, where nothing may be downloaded."""


class _MissingFileError(Exception):
    """A repository without the file."""


class _UnreachableError(Exception):
    """No answer of the hub about a file."""


class _HubFile(NamedTuple):
    """Facts of the hub about a file.

    Args:
        commit: The commit that the revision is now.
        mark: Name of its content in the cache: the sha256 of a large file, git's hash of another.
        size: Size in bytes, or `None`.
    """

    commit: str
    mark: str
    size: int | None


class _Repository:
    """A repository on the hub, and its folder in the cache of the client.

    Args:
        address: The address, for messages.
        wanted: The same in parts.
        offline: Whether only the cache is used.
        attempts: As in `download_checked`.
        backoff: As in `download_checked`.
    """

    def __init__(
        self, address: str, wanted: HubAddress, offline: bool, attempts: int, backoff: float
    ) -> None:
        try:
            import huggingface_hub
            from huggingface_hub import constants
        except ImportError as error:
            raise ImportError(
                f"{address} needs the client of the Hugging Face hub. "
                f"Install it with `{pip_install('hub')}`."
            ) from error
        self.address, self.wanted, self.name = address, wanted, wanted.repository
        self.offline = offline or constants.HF_HUB_OFFLINE
        self.forbids = "KERAS_VIT_OFFLINE" if offline else "HF_HUB_OFFLINE"
        self.attempts, self.backoff = attempts, backoff
        self.cache = pathlib.Path(constants.HF_HUB_CACHE)
        self.folder = self.cache / f"models--{self.name.replace('/', '--')}"
        self.endpoint = constants.ENDPOINT
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else huggingface_hub.get_token()
        self.headers = {"User-Agent": "keras-vit"}
        self.headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self._find = huggingface_hub.try_to_load_from_cache

    def fetch(
        self, filename: str, revision: str, sha256: str | None = None, size: int | None = None
    ) -> pathlib.Path:
        """Returns the path of a file in the cache, downloaded if needed.

        Raises:
            _MissingFileError: If the repository has no such file.
            _UnreachableError: If it is not in the cache, and the hub does not answer.
            DownloadError: If the hub refuses it, or the download fails.
        """
        known = self._find(self.name, filename, cache_dir=self.cache, revision=revision)
        path = pathlib.Path(known) if isinstance(known, str) else None
        if path is not None and (self.offline or _COMMIT.fullmatch(revision)):
            return path
        if self.offline:
            raise _UnreachableError(f"{self.forbids} forbids to download it. Unset that")
        try:
            found = self._ask(filename, revision, 1 if path is not None else self.attempts)
        except (_UnreachableError, DownloadError):
            if path is None:
                raise
            return path
        return self._store(found, filename, revision, sha256, size)

    def url(self, filename: str, revision: str) -> str:
        quoted = urllib.parse.quote(revision, safe=""), urllib.parse.quote(filename)
        return f"{self.endpoint}/{self.name}/resolve/{quoted[0]}/{quoted[1]}"

    def _ask(self, filename: str, revision: str, attempts: int) -> _HubFile:
        """Asks the hub about a file."""
        url = self.url(filename, revision)
        identity = {**self.headers, "Accept-Encoding": "identity"}  # or the size is another
        try:
            status, headers = head(url, identity, attempts, self.backoff)
        except DownloadError as error:
            raise _UnreachableError(
                f"the hub does not answer. Check the connection ({str(error).rstrip('.')})"
            ) from error
        code = headers.get("X-Error-Code", "")
        if status >= 400:
            self._refuse(status, code)
        mark = headers.get("X-Linked-Etag") or headers.get("ETag") or ""
        mark = mark.removeprefix("W/").strip('"')
        commit = headers.get("X-Repo-Commit") or ""
        if not _FILE_NAME.fullmatch(mark) or not _FILE_NAME.fullmatch(commit):
            raise DownloadError(
                f"{url} is no file of a hub: its commit is {commit[:80]!r} and its mark "
                f"{mark[:80]!r}. If HF_ENDPOINT is set, check that it names a hub."
            )
        length = headers.get("X-Linked-Size") or (
            headers.get("Content-Length") if status < 300 else None
        )
        return _HubFile(commit, mark, count(length or ""))

    def _refuse(self, status: int, code: str) -> None:
        if code == "EntryNotFound" or (status in (404, 410) and not code):
            raise _MissingFileError
        if code == "GatedRepo":
            raise DownloadError(
                f"{self.address} is given out after its licence is accepted, on the page of "
                f"{self.name}. Accept it there, then log in with `hf auth login`."
            )
        if status in (401, 404) or code in ("RepoNotFound", "RevisionNotFound"):
            named = self.wanted.revision
            revision = f" at revision {named!r}" if named else ""
            raise DownloadError(
                f"The hub has no repository {self.name!r}{revision}, or keeps it private. "
                "Check the name; for a private one log in with `hf auth login`."
            )
        raise DownloadError(f"{self.address} could not be downloaded: the hub answered {status}.")

    def _store(
        self, found: _HubFile, filename: str, revision: str, sha256: str | None, size: int | None
    ) -> pathlib.Path:
        """Downloads a file into the cache, in the layout that the client documents."""
        blob = self.folder / "blobs" / found.mark
        lock = self.cache / ".locks" / self.folder.name / found.mark  # the client's own
        path = self.folder / "snapshots" / found.commit / filename
        try:
            if not path.exists():
                prepare_folder(blob.parent, "HF_HOME")
                for folder in (path.parent, lock.parent):
                    folder.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    path.lstat()  # finds a name that is too long, before the download
                with locked(lock):
                    if not blob.exists():
                        published = found.mark if _SHA256.fullmatch(found.mark) else None
                        part = blob.with_name(blob.name + ".part")
                        download_checked(
                            self.url(filename, found.commit),
                            part,
                            pathlib.PurePosixPath(filename).name,
                            sha256=sha256 or published,
                            size=size or found.size,
                            attempts=self.attempts,
                            backoff=self.backoff,
                            headers=self.headers,
                        )
                        os.replace(part, blob)
                        discard(part)
                    _link(blob, path)
        except OSError as error:
            if isinstance(error, DownloadError):
                raise
            raise DownloadError(
                f"{self.address} cannot be written to {self.folder}: {error}. Set HF_HOME to "
                "another folder."
            ) from error
        reference = self.folder / "refs" / revision
        if revision != found.commit:
            with (
                contextlib.suppress(OSError),  # a cache that is read alone
                write_atomically(reference, replace=True) as unfinished,
            ):
                unfinished.write_text(found.commit)
        return path

    def list_files(self) -> list[str]:
        """Names of the files, for a message; empty if the hub does not tell."""
        revision = urllib.parse.quote(self.wanted.revision or "main", safe="")
        url = f"{self.endpoint}/api/models/{self.name}/revision/{revision}"
        try:
            siblings = parse_json(read_text(url, self.headers))["siblings"]
            names = [file["rfilename"] for file in siblings]
            return [name for name in names if name.isprintable() and len(name) < 200]
        except (DownloadError, LookupError, TypeError, ValueError, AttributeError):
            return []


def fetch_from_hub(
    address: str,
    offline: bool = False,
    *,
    sha256: str | None = None,
    size: int | None = None,
    attempts: int = 4,
    backoff: float = 1.0,
) -> list[tuple[pathlib.Path, str | None]]:
    """Fetches `hf://owner/name[@revision][/file]` into the cache of `huggingface_hub`.

    A `.safetensors` file is fetched with its sidecar files `config.json` and
    `preprocessor_config.json`, if the repository has them, and a part of a split checkpoint with
    its index and all other parts. The client's settings hold: `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    `HF_HUB_OFFLINE`.

    Args:
        address: The address; without a file it means `model.safetensors`, whole or split.
        offline: Whether only the client's cache is used.
        sha256: As in `fetch`, and so are the rest.
        size: Size in bytes.
        attempts: Consecutive failures without a new byte before it gives up.
        backoff: Seconds before the second attempt.

    Returns:
        The paths of the files, the first that of the file or the index, each with the sha256 that
        the hub publishes of it or `None`.

    Raises:
        DownloadError: If a file cannot be fetched; the message lists the files of the repository.
        ImportError: If `huggingface_hub` is not installed.
        ValueError: If the address has another form.
    """
    wanted = parse_hub_address(address)
    repository = _Repository(address, wanted, offline, attempts, backoff)
    revision, filename = wanted.revision or "main", wanted.filename or DEFAULT_FILE
    filename = index_name(filename) or filename
    try:
        try:
            path = repository.fetch(filename, revision, sha256, size)
        except (_MissingFileError, _UnreachableError) as error:
            if wanted.filename is not None:
                raise
            filename = f"{DEFAULT_FILE}.index.json"
            try:
                path = repository.fetch(filename, revision, sha256, size)
            except (_MissingFileError, _UnreachableError):
                raise error from None
        is_split = index_name(filename) is not None
        shards = list(_fetch_shards(repository, filename, path)) if is_split else []
    except _UnreachableError as error:
        kind = NotCachedError if repository.offline else DownloadError
        raise kind(
            f"{address} is not in the cache of the Hugging Face client, and {error}, or pass the "
            "path of a file."
        ) from error
    except _MissingFileError as error:
        files = repository.list_files()
        missing = str(error) or wanted.filename or DEFAULT_FILE
        raise DownloadError(_missing_message(address, missing, files)) from error
    if path.suffix == ".safetensors" or shards:
        _fetch_sidecar_files(repository, filename, path)
    return [(each, _published_hash(each)) for each in (path, *shards)]


def _fetch_shards(
    repository: _Repository, filename: str, path: pathlib.Path
) -> Iterator[pathlib.Path]:
    """Fetches the files that an index lists, of the same commit."""
    revision = _commit(path) or repository.wanted.revision or "main"
    folder = filename.rpartition("/")[0]
    for name in dict.fromkeys(read_index(path).values()):
        shard = f"{folder}/{name}" if folder else name
        try:
            yield repository.fetch(shard, revision)
        except _MissingFileError:
            raise _MissingFileError(shard) from None


def _fetch_sidecar_files(repository: _Repository, filename: str, path: pathlib.Path) -> None:
    """Fetches the sidecar files of a file, of the same commit: the branch may move meanwhile."""
    revision = _commit(path) or repository.wanted.revision or "main"
    folder = filename.rpartition("/")[0]
    for name in NAMES:
        if path.with_name(name).exists():
            continue
        try:
            repository.fetch(f"{folder}/{name}" if folder else name, revision)
        except _MissingFileError:
            continue
        except (DownloadError, _UnreachableError) as error:
            if repository.offline:
                continue  # it was not fetched before
            raise DownloadError(
                f"{name}, the sidecar file of {filename} in {repository.name}, could not be "
                f"downloaded: {error}"
            ) from error


def _link(blob: pathlib.Path, path: pathlib.Path) -> None:
    """Makes a path in a snapshot mean a file of `blobs`."""
    path.unlink(missing_ok=True)  # a link to a file that is gone
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except (OSError, NotImplementedError):  # a system without links
        os.replace(blob, path)


def _commit(path: pathlib.Path) -> str | None:
    """Commit of a file in the client's cache: the folder below `snapshots`."""
    parts = path.parts[::-1]  # the last such folder: the user's own may be called so too
    return parts[parts.index("snapshots") - 1] if "snapshots" in parts[1:] else None


def _published_hash(path: pathlib.Path) -> str | None:
    """Hash that the hub states; the client names large files by it, and links to them."""
    name = path.resolve().name
    return name if _SHA256.fullmatch(name) else None


def _missing_message(address: str, filename: str, files: list[str]) -> str:
    message = f"There is no file {filename!r} at {address}."
    readable = [file for file in files if file.endswith(_READABLE)]
    pickled = [file for file in files if file.endswith(PICKLE_SUFFIXES)]
    if readable:
        return message + f" Name one of: {', '.join(readable[:20])}."
    if pickled:
        return message + (
            f" The weights there ({', '.join(pickled[:5])}) are pickled, and reading such a file "
            "runs whatever code it holds. Look for a safetensors copy: the hub's page "
            "https://huggingface.co/spaces/safetensors/convert makes one, and "
            "hf://owner/name@refs%2Fpr%2FN then names it before it is merged."
        )
    return message
