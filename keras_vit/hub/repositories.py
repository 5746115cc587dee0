"""Files of the Hugging Face hub, through its own client and cache."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from keras_vit.errors import DownloadError
from keras_vit.hub.addresses import HubAddress, parse_hub_address
from keras_vit.weights.sidecar import NAMES

DEFAULT_FILE = "model.safetensors"
_READABLE = (".safetensors", ".npz", ".weights.h5")
_PICKLED = (".bin", ".pth", ".pt", ".ckpt", ".pkl")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_from_hub(address: str, offline: bool = False) -> tuple[pathlib.Path, str | None]:
    """Fetches `hf://owner/name[@revision][/file]` with `huggingface_hub`.

    With a `.safetensors` file come the small ones that say how its model computes, where the
    repository has them: `config.json` and `preprocessor_config.json`. The client has its own
    cache, endpoint and token: `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`.

    Args:
        address: The address; without a file it means `model.safetensors`.
        offline: Whether only the client's cache is looked into.

    Returns:
        The path of the file, and the sha256 that the hub publishes of it or `None`.

    Raises:
        DownloadError: If the file does not come. The message names the files that there are.
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
    except (errors.HfHubHTTPError, OSError) as error:
        raise DownloadError(f"{address} could not be downloaded: {error}") from error
    path = pathlib.Path(found)
    if path.suffix == ".safetensors":
        _fetch_neighbours(huggingface_hub, wanted, filename, path, offline)
    return path, _published_hash(path)


def _fetch_neighbours(
    huggingface_hub: Any, wanted: HubAddress, filename: str, path: pathlib.Path, offline: bool
) -> None:
    """Brings what lies beside a file to the same folder of the client's cache.

    Of the same commit, for the branch may move between two requests.
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
        except (errors.EntryNotFoundError, errors.HfHubHTTPError, OSError) as error:
            cut = isinstance(error, errors.LocalEntryNotFoundError) and not offline
            if isinstance(error, errors.EntryNotFoundError) and not cut:
                continue  # the repository has no such file, or it was not fetched before
            raise DownloadError(
                f"{name} beside {filename} of {wanted.repository}, which says how the model "
                f"computes, could not be downloaded: {error}"
            ) from error


def _commit(path: pathlib.Path) -> str | None:
    """The commit that a file of the client's cache is of: the folder below `snapshots`."""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else None


def _published_hash(path: pathlib.Path) -> str | None:
    """The client keeps a large file under the sha256 that the hub states, and links to it."""
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


def _list_files(huggingface_hub, wanted: HubAddress) -> list[str]:
    try:
        return huggingface_hub.list_repo_files(wanted.repository, revision=wanted.revision)
    except Exception:  # the list only helps the message
        return []


def _missing_message(address: str, filename: str, files: list[str]) -> str:
    message = f"There is no file {filename!r} at {address}."
    readable = [file for file in files if file.endswith(_READABLE)]
    pickled = [file for file in files if file.endswith(_PICKLED)]
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
