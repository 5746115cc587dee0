"""Publishes a model on the Hugging Face hub, with a card that says where it is from."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import keras

from keras_vit.checks import check_choice
from keras_vit.errors import UploadError
from keras_vit.files import write_atomically
from keras_vit.hub.addresses import parse_hub_address
from keras_vit.hub.cache import is_offline
from keras_vit.hub.model_card import CardFacts, make_card
from keras_vit.installation import needing
from keras_vit.models.cloning import clone
from keras_vit.models.lora import merge_lora
from keras_vit.runtime.private_names import flatten_layers
from keras_vit.weights.save_folder import save_pretrained

if TYPE_CHECKING:
    from keras_vit.runtime.model import Model

CARD, KERAS_FILE = "README.md", "model.keras"
LAYOUTS = ("transformers", "timm")


class Trained(Protocol):
    """A training run, such as a `train.Run`: its model, and what is known of it."""

    @property
    def model(self) -> Any:
        """The model."""

    def card_facts(self) -> CardFacts:
        """What the run's files say about the model."""


def push(
    source: Model | Trained,
    address: str,
    *,
    layout: str | None = None,
    licence: str | None = None,
    private: bool | None = None,
    dry_run: str | os.PathLike[str] | None = None,
) -> str:
    """Publishes a model on the Hugging Face hub, in one commit.

    The repository gets `model.keras`; `model.safetensors` with its sidecar files in the layout of
    transformers or timm, where one of them can represent the model; and `README.md`, made from the
    run: classes, data, hyperparameters, accuracy with intervals and confusion (of the last result
    page), licence of the weights that training began with, and how to load it. Paths and names of
    images are not published. Log in before, with `hf auth login`.

    Args:
        source: A run of `train.load_run`, or a model of this package.
        address: `hf://owner/name`, or `hf://owner/name@branch`. The repository is made if needed.
        layout: `"transformers"` or `"timm"`, whose error is raised then; `None` takes the one that
            can represent the model, or leaves `model.safetensors` out and says why in the card.
        licence: Licence of the model, for the card; `None` states only that of the weights that
            training began with.
        private: Whether a new repository is private; `None` leaves it to the hub.
        dry_run: A new or empty folder to write the files to, without a connection.

    Returns:
        The address of the commit, or the path of the folder of a dry run.

    Raises:
        ValueError: If the address or the folder does not fit, or the layout cannot represent the
            model.
        UploadError: If the hub refuses it, or cannot be reached.
        ImportError: If `huggingface_hub` is not installed.

    Example:

    >>> run = keras_vit.train.load_run("runs/pets")  # doctest: +SKIP
    >>> keras_vit.hub.push(run, "hf://me/pets", private=True)  # doctest: +SKIP
    """
    wanted = parse_hub_address(address)
    if wanted.filename is not None:
        raise ValueError(
            f"A model is pushed to hf://owner/name, without a file. Received: {address!r}."
        )
    check_choice("layout", layout, (None, *LAYOUTS))
    if dry_run is not None:
        folder = pathlib.Path(dry_run).expanduser()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} is not an empty folder. Choose another one for `dry_run`.")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            write_files(source, folder, wanted.repository, layout, licence)
        finally:
            with contextlib.suppress(OSError):  # it holds files
                folder.rmdir()
        return str(folder)
    with needing("hub", f"{address} needs the client of the Hugging Face hub"):
        import huggingface_hub
    if is_offline():
        raise UploadError(f"KERAS_VIT_OFFLINE forbids to connect to {address}. Unset it.")
    with tempfile.TemporaryDirectory() as name:
        write_files(source, pathlib.Path(name), wanted.repository, layout, licence)
        try:
            client = huggingface_hub.HfApi(library_name="keras-vit")
            client.create_repo(wanted.repository, private=private, exist_ok=True)
            done = client.upload_folder(
                repo_id=wanted.repository,
                folder_path=name,
                revision=wanted.revision,
                commit_message="Upload a model of keras_vit",
            )
        except Exception as error:  # whatever an answer of a server makes the client raise
            raise _explain(error, address) from error
    return str(done.commit_url)


def write_files(
    source: Model | Trained,
    folder: pathlib.Path,
    repository: str,
    layout: str | None = None,
    licence: str | None = None,
) -> None:
    """Writes the files of a repository: see `push`.

    Args:
        source: A run, or a model.
        folder: An empty folder.
        repository: `"owner/name"`, for the card.
        layout: As for `push`.
        licence: As for `push`.
    """
    model: Any = source if isinstance(source, keras.Model) else cast(Trained, source).model
    is_model = model is source
    facts = _facts_of(model) if is_model else cast(Trained, source).card_facts()
    if licence is not None:
        facts = dataclasses.replace(facts, licence=licence)
    bare = _plain_copy(model)
    written, reason = _write_weights(bare, folder, layout, facts.class_names)
    bare.save(folder / KERAS_FILE)
    card = make_card(facts, repository, written, reason)
    with write_atomically(folder / CARD) as unfinished:
        unfinished.write_text(card, encoding="utf-8")


def _plain_copy(model: Any) -> Any:
    """A copy with merged updates of low rank, and without the optimizer, most of the file."""
    if any(getattr(layer, "quantization_mode", None) for layer in flatten_layers(model)):
        return model
    merged = merge_lora(model)
    if merged is not model or not getattr(model, "compiled", False):
        return merged
    return clone(model, model.get_config(), lambda layer: {})


def _write_weights(
    model: Model, folder: pathlib.Path, layout: str | None, class_names: Sequence[str]
) -> tuple[str | None, str]:
    """Writes `model.safetensors`, and returns its layout; or `None`, and why there is none."""
    preprocessing = getattr(getattr(model, "config", None), "preprocessing", None)
    first = "timm" if getattr(preprocessing, "library", None) == "timm" else "transformers"
    reasons = []
    for each in [layout] if layout else sorted(LAYOUTS, key=lambda name: name != first):
        try:
            save_pretrained(model, folder, each, class_names)
            return each, ""
        except ValueError as error:
            if layout is not None:
                raise
            reasons.append(f"{each}: {error}")
    return None, " ".join(reasons)


def _facts_of(model: Model) -> CardFacts:
    """What a model alone says."""
    report = getattr(model, "load_report", None)
    return CardFacts(
        model=model.name,
        summary=f"{model.count_params():,} parameters.",
        class_names=tuple(getattr(model, "class_names", None) or ()),
        weights=None if report is None else os.path.basename(report.path),
        weights_licence=None if report is None else report.licence,
    )


def _explain(error: Exception, address: str) -> UploadError:
    """What an exception of the client means, and what to do."""
    told = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    status, cause = 0, cast(BaseException | None, error)
    while not status and cause is not None:  # of a large file, it is that of the cause
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        cause = cause.__cause__
    if status and f"{status}" not in told:
        told = f"{told} (HTTP status {status})"
    advice = "Try again: nothing of it was published"
    words = re.sub(r"\S+://\S+", "", told).lower()  # addresses of the hub have "token" in them
    if status in (401, 403) or "token" in words:
        advice = "Log in with `hf auth login`, with a token that may write to this repository"
    elif not status:
        advice = "Check the connection, and HF_HUB_OFFLINE and HF_ENDPOINT; nothing was published"
    return UploadError(f"The model was not pushed to {address}: {told}. {advice}.")
