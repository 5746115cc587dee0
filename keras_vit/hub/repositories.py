"""Files of repositories on the Hugging Face hub, which its own client downloads and keeps."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from keras_vit.errors import DownloadError
from keras_vit.files import DISK_FULL
from keras_vit.hub.addresses import parse_hub_address
from keras_vit.hub.progress import ProgressLine, progress_line
from keras_vit.installation import needing
from keras_vit.weights.array_file import PICKLE_SUFFIXES
from keras_vit.weights.formats import DEFAULT_FILE
from keras_vit.weights.sharded_file import index_name, read_index
from keras_vit.weights.sidecar import NAMES

_READABLE = (".safetensors", ".npz", ".weights.h5")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CERTIFICATES = "SSL_CERT_FILE (before huggingface_hub 1.0 REQUESTS_CA_BUNDLE)"
_TIMEOUT = 10  # seconds for a list of files, which only a message needs


class NotCachedError(DownloadError):
    """A file that is not in the cache, where nothing may be downloaded."""


class MissingFileError(DownloadError):
    """A repository on the hub that has no such file."""


class _UnreachableError(Exception):
    """A file that is not in the cache, and no answer of the hub about it."""


class _Repository:
    """A repository on the hub, and the client that fetches its files.

    Args:
        address: The address.
        offline: Whether only the client's cache is used.
    """

    def __init__(self, address: str, offline: bool) -> None:
        with needing("hub", f"{address} needs the client of the Hugging Face hub"):
            import huggingface_hub
            from huggingface_hub import constants, errors, utils
        wanted = parse_hub_address(address)
        self.address, self.name, self.filename = address, wanted.repository, wanted.filename
        self.revision = wanted.revision or "main"
        self.offline = offline or constants.HF_HUB_OFFLINE
        self.forbids = "KERAS_VIT_OFFLINE" if offline else "HF_HUB_OFFLINE"
        self._errors, self._cache = errors, constants.HF_HUB_CACHE
        self._client: Any = huggingface_hub
        self._utils: Any = utils

    def fetch(
        self, filename: str, revision: str | None = None, offline: bool = False
    ) -> pathlib.Path:
        """Returns the path of a file in the client's cache, downloaded if needed.

        Args:
            filename: Path in the repository.
            revision: Branch, tag or commit; `None` takes that of the address.
            offline: Whether only the cache is used.

        Raises:
            MissingFileError: If the repository has no such file.
            _UnreachableError: If it is not in the cache, and the hub does not answer.
            DownloadError: If the hub refuses it, or the download fails.
        """
        wanted = {"filename": filename, "revision": revision or self.revision}
        is_offline = offline or self.offline
        try:
            line = None if is_offline else self._progress_line(**wanted)
            if line:
                line.update(0, None)
            with self._bars():
                found = self._client.hf_hub_download(
                    self.name, **wanted, local_files_only=is_offline, library_name="keras-vit"
                )
            path = pathlib.Path(found)
            if line:
                line.finish(path.stat().st_size)
            return path
        except MemoryError:
            raise
        except Exception as error:  # whatever an answer of a server makes the client raise
            raise self._explain(error, filename) from error

    @contextlib.contextmanager
    def _bars(self) -> Iterator[None]:
        """Hides the client's bars where ours are; afterwards they are as they were."""
        hides = progress_line("") is None and not self._utils.are_progress_bars_disabled()
        try:
            if hides:
                self._utils.disable_progress_bars()
            yield
        finally:
            if hides:
                self._utils.enable_progress_bars()

    def _progress_line(self, filename: str, revision: str) -> ProgressLine | None:
        """A progress line for a log, where the client shows nothing; a terminal has its bar."""
        line = progress_line(filename.rpartition("/")[2])
        if line is None or line.is_terminal or filename.endswith(".json"):
            return None
        known = self._client.try_to_load_from_cache(self.name, filename, revision=revision)
        return None if isinstance(known, str) else line

    def fetch_beside(self, path: pathlib.Path, filename: str, name: str) -> pathlib.Path:
        """Fetches a file of the folder and commit of another: the branch may move meanwhile."""
        if path.with_name(name).exists():
            return path.with_name(name)
        commit = path.parts[-2 - filename.count("/")]  # snapshots/COMMIT/filename
        return self.fetch(f"{filename.rpartition('/')[0]}/{name}".lstrip("/"), commit)

    def _explain(self, error: Exception, filename: str) -> Exception:
        """What an exception of the client means, and what to do."""
        errors = self._errors
        is_unreachable = isinstance(error, errors.LocalEntryNotFoundError)
        if is_unreachable and (self.offline or not error.__cause__):
            return _UnreachableError(f"{self.forbids} forbids to download it. Unset that")
        cause = error.__cause__ if is_unreachable and error.__cause__ else error
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        number = getattr(cause, "errno", None)
        told = (str(cause).strip() or type(cause).__name__).splitlines()[0].rstrip(".")
        if isinstance(cause, errors.GatedRepoError):
            return DownloadError(
                f"{self.address} is given out after its licence is accepted, on the page of "
                f"{self.name}. Accept it there, then log in with `hf auth login`."
            )
        of_repository = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
        if isinstance(cause, of_repository) or status == 401:
            return DownloadError(
                f"The hub has no repository {self.name!r} at revision {self.revision!r}, or keeps "
                "it private. Check the name; for a private one log in with `hf auth login`."
            )
        if isinstance(cause, errors.EntryNotFoundError) or status in (404, 410):
            return MissingFileError(filename)
        is_unknown = "CERTIFICATE_VERIFY_FAILED" in told
        if is_unknown or (is_unreachable and status in (0, 408, 429, *range(500, 600))):
            advice = "Check the connection"
            if is_unknown:
                advice = f"Behind a proxy, set {_CERTIFICATES} to its certificate"
            return _UnreachableError(f"the hub does not answer as it should ({told}). {advice}")
        if number in DISK_FULL:
            return DownloadError(
                f"The disk of {self._cache} is full, so {filename} of {self.address} was not "
                "downloaded. Free some space, or set HF_HOME to a folder of another disk."
            )
        if number:
            return DownloadError(
                f"{filename} of {self.address} cannot be written to {self._cache}: {told}. Set "
                "HF_HOME to a folder that this user may write to."
            )
        answer = f"the hub answered {status}" if status else f"{type(cause).__name__}: {told}"
        return DownloadError(
            f"{filename} of {self.address} could not be downloaded: {answer}. Try again, download "
            "the file by other means and pass its path, or name another hub with HF_ENDPOINT."
        )

    def list_files(self) -> list[str]:
        """Names of the files, for a message; empty if the hub does not tell."""
        try:
            found = self._client.HfApi().model_info(
                self.name, revision=self.revision, timeout=_TIMEOUT
            )
            names = [file.rfilename for file in found.siblings]
            return [name for name in names if name.isprintable() and len(name) < 200]
        except Exception:  # the message says less
            return []


def fetch_from_hub(
    address: str, offline: bool = False, beside: Sequence[str] = ()
) -> list[tuple[pathlib.Path, str | None]]:
    """Fetches `hf://owner/name[@revision][/file]` by the client of the hub, into its cache.

    A `.safetensors` file is fetched with its sidecar files `config.json` and
    `preprocessor_config.json`, if the repository has them, and a part of a split checkpoint with
    its index and all other parts, all of one commit. The client's settings hold: `HF_HOME`,
    `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`.

    Args:
        address: The address; without a file it means `model.safetensors`, whole or split.
        offline: Whether only the client's cache is used.
        beside: Names of other sidecar files, such as of a tokenizer.

    Returns:
        The paths of the files, the first that of the file or the index, each with the sha256 that
        the hub publishes of it or `None`. Their content is not checked.

    Raises:
        DownloadError: If a file cannot be fetched; the message lists the files of the repository.
        ImportError: If `huggingface_hub` is not installed.
        ValueError: If the address has another form.
    """
    repository = _Repository(address, offline)
    filename = repository.filename or DEFAULT_FILE
    try:
        filename, path = _fetch_first(repository, index_name(filename) or filename)
        is_split = index_name(filename) is not None
        names = dict.fromkeys(read_index(path).values()) if is_split else ()
        shards = [repository.fetch_beside(path, filename, name) for name in names]
    except _UnreachableError as error:
        kind = NotCachedError if repository.offline else DownloadError
        raise kind(
            f"{address} is not in the cache of the Hugging Face client, and {error}, or pass the "
            "path of a file."
        ) from error
    except MissingFileError as error:
        files = repository.list_files()
        raise MissingFileError(_missing_message(address, error.args[0], files)) from error
    if path.suffix == ".safetensors" or shards:
        for name in (*NAMES, *beside):
            _fetch_sidecar_file(repository, filename, path, name)
    return [(each, _published_hash(each)) for each in (path, *shards)]


def _fetch_first(repository: _Repository, filename: str) -> tuple[str, pathlib.Path]:
    """Fetches the file of an address, or where it names none and there is none, the index."""
    try:
        return filename, repository.fetch(filename)
    except (MissingFileError, _UnreachableError) as error:
        if repository.filename is not None:
            raise
        index = f"{DEFAULT_FILE}.index.json"
        try:  # without the hub, what is in the cache
            return index, repository.fetch(index, offline=isinstance(error, _UnreachableError))
        except (MissingFileError, _UnreachableError):
            raise error from None


def _fetch_sidecar_file(
    repository: _Repository, filename: str, path: pathlib.Path, name: str
) -> None:
    try:
        repository.fetch_beside(path, filename, name)
    except (DownloadError, _UnreachableError) as error:
        if isinstance(error, MissingFileError) or repository.offline:
            return  # there is none, or it was not fetched before
        raise DownloadError(
            f"{name}, the sidecar file of {filename} in {repository.name}, could not be "
            f"downloaded: {error}"
        ) from error


def _published_hash(path: pathlib.Path) -> str | None:
    """Hash that the hub states; the client names large files by it, and links to them."""
    name = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
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
