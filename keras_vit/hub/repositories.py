"""Download of files from the Hugging Face hub with its own client and cache."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from keras_vit.errors import DownloadError
from keras_vit.hub.addresses import HubAddress, parse_hub_address
from keras_vit.weights.array_file import PICKLE_SUFFIXES
from keras_vit.weights.sidecar import NAMES

DEFAULT_FILE = "model.safetensors"
_READABLE = (".safetensors", ".npz", ".weights.h5")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_from_hub(address: str, offline: bool = False) -> tuple[pathlib.Path, str | None]:
    """Fetches `hf://owner/name[@revision][/file]` with `huggingface_hub`.

    A `.safetensors` file is fetched with its sidecar files `config.json` and
    `preprocessor_config.json`, if the repository has them. The client has its own cache,
    endpoint and token: `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`.

    Args:
        address: The address; without a file it means `model.safetensors`.
        offline: Whether only the client's cache is used.

    Returns:
        The path of the file, and the sha256 that the hub publishes of it or `None`.

    Raises:
        DownloadError: If the file cannot be fetched; the message lists the files of the repository.
        ImportError: If `huggingface_hub` is not installed.
        ValueError: If the address has another form.
    """
    wanted = parse_hub_address(address)
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ImportError(
            f"{address} needs the client of the Hugging Face hub. "
            'Install it with `pip install "keras_vit[hub]"`.'
        ) from error
    filename = wanted.filename or DEFAULT_FILE
    try:
        found = huggingface_hub.hf_hub_download(
            wanted.repository, filename, revision=wanted.revision, local_files_only=offline
        )
    except errors.LocalEntryNotFoundError as error:
        raise DownloadError(_unreachable_message(address, offline)) from error
    except errors.EntryNotFoundError as error:
        files = _list_files(huggingface_hub, wanted)
        raise DownloadError(_missing_message(address, filename, files)) from error
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{address} is given out after its licence is accepted, on the page of "
            f"{wanted.repository}. Accept it there, then log in with `hf auth login`."
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        revision = f" at revision {wanted.revision!r}" if wanted.revision else ""
        raise DownloadError(
            f"The hub has no repository {wanted.repository!r}{revision}, or keeps it private. "
            "Check the name; for a private one log in with `hf auth login`."
        ) from error
    except Exception as error:  # the client passes on whatever its HTTP library raises
        raise DownloadError(
            f"{address} could not be downloaded: {type(error).__name__}: {error}"
        ) from error
    path = pathlib.Path(found)
    if path.suffix == ".safetensors":
        _fetch_sidecar_files(huggingface_hub, wanted, filename, path, offline)
    return path, _published_hash(path)


def _fetch_sidecar_files(
    huggingface_hub: Any, wanted: HubAddress, filename: str, path: pathlib.Path, offline: bool
) -> None:
    """Fetches the sidecar files of a file, of the same commit.

    The branch may move between two requests.
    """
    errors = huggingface_hub.errors
    commit = _commit(path) or wanted.revision
    folder = filename.rpartition("/")[0]
    for name in NAMES:
        if path.with_name(name).exists():
            continue
        try:
            huggingface_hub.hf_hub_download(
                wanted.repository,
                f"{folder}/{name}" if folder else name,
                revision=commit,
                local_files_only=offline,
            )
        except Exception as error:
            cut = isinstance(error, errors.LocalEntryNotFoundError) and not offline
            if isinstance(error, errors.EntryNotFoundError) and not cut:
                continue  # the repository has no such file, or it was not fetched before
            raise DownloadError(
                f"{name}, the sidecar file of {filename} in {wanted.repository}, could not be "
                f"downloaded: {error}"
            ) from error


def _commit(path: pathlib.Path) -> str | None:
    """Commit of a file in the client's cache: the folder below `snapshots`."""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else None


def _published_hash(path: pathlib.Path) -> str | None:
    """Hash that the hub states; the client names large files by it, and links to them."""
    name = path.resolve().name
    return name if _SHA256.fullmatch(name) else None


def _unreachable_message(address: str, offline: bool) -> str:
    reason = "the hub does not answer. Check the connection"
    if offline:
        reason = "KERAS_VIT_OFFLINE forbids to download it. Unset that"
    return (
        f"{address} is not in the cache of the Hugging Face client, and {reason}, or pass the "
        "path of a file."
    )


def _list_files(huggingface_hub: Any, wanted: HubAddress) -> list[str]:
    try:
        return huggingface_hub.list_repo_files(wanted.repository, revision=wanted.revision)
    except Exception:  # the list only helps the message
        return []


def _missing_message(address: str, filename: str, files: list[str]) -> str:
    message = f"There is no file {filename!r} at {address}."
    readable = [file for file in files if file.endswith(_READABLE)]
    pickled = [file for file in files if file.endswith(PICKLE_SUFFIXES)]
    if f"{filename}.index.json" in files:
        return message + (
            " Its weights are split over several files, which cannot be read yet: "
            f"{', '.join(readable[:5])}."
        )
    if readable:
        return message + f" Name one of: {', '.join(readable)}."
    if pickled:
        return message + (
            f" The weights there ({', '.join(pickled)}) are pickled, and reading such a file runs "
            "whatever code it holds. Look for a safetensors copy: the hub's page "
            "https://huggingface.co/spaces/safetensors/convert makes one, and "
            "hf://owner/name@refs%2Fpr%2FN then names it before it is merged."
        )
    return message
