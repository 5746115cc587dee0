"""Published weights by the names that users know them by."""

from __future__ import annotations

import os
import pathlib

from keras_vit.hub.addresses import is_address
from keras_vit.hub.cache import fetch
from keras_vit.hub.cards.augreg import INDEX, read_augreg_index
from keras_vit.hub.cards.card import Card
from keras_vit.hub.cards.catalog import find_card, list_cards
from keras_vit.hub.repositories import DEFAULT_FILE
from keras_vit.variants import find_variant

_SUFFIXES = (".npz", ".safetensors", ".h5")


def list_weights(variant: str | None = None) -> list[Card]:
    """Lists the published weights of an architecture, or of all.

    Args:
        variant: Any name of an architecture: `"vit_b16"`, `"B/16"`, `"vit_base_patch16_384"`.

    Returns:
        Their cards, sorted by architecture and tag. A card's `tag` is what `weights=` takes.

    Raises:
        ValueError: If there is no such architecture.

    Example:

    >>> [card.tag for card in list_weights("r26_vit_b32")]
    ['orig_in21k']
    """
    return list_cards(None if variant is None else find_variant(variant))


def fetch_weights(
    weights: str | os.PathLike, variant: str | None = None, rehash: bool = False
) -> pathlib.Path:
    """Finds the local file of published weights, and downloads it where it is not there yet.

    Args:
        weights: A tag, an address (`https://`, `gs://`, `hf://owner/name`) or a path.
        variant: Any name of the architecture that a tag belongs to.
        rehash: Whether a file that lies in the cache unchanged is hashed again.

    Returns:
        The path of the file.

    Raises:
        DownloadError: If the file cannot be fetched or is not the one that it should be.
        ValueError: If there is no such tag, architecture or file.
    """
    return find_weights(weights, find_tag(variant, weights) if variant else None, rehash)


def find_tag(variant: str, weights: str | os.PathLike) -> Card | None:
    """The card of published weights, where `weights` is a tag.

    Args:
        variant: Any name of the architecture.
        weights: Tag, path or address. A single word that is no file is taken for a tag.

    Returns:
        The card, or `None` for a path or an address.

    Raises:
        ValueError: If there is no such tag. The message lists those that there are.
    """
    text = os.fspath(weights)
    if not text.isidentifier() or os.path.exists(text):
        return None
    return find_card(find_variant(variant), text)


def find_weights(
    weights: str | os.PathLike, card: Card | None = None, rehash: bool = False
) -> pathlib.Path:
    """The local file of a card, an address or a path, downloaded where it must be.

    Args:
        weights: Path or address, where there is no card; of a folder `model.safetensors` in it.
        card: What is published about the weights.
        rehash: Whether a file that lies in the cache unchanged is hashed again.

    Returns:
        Path of an existing file.

    Raises:
        DownloadError: If the file cannot be fetched or is not the one that it should be.
        ValueError: If there is no such file.
    """
    if card is not None:
        return fetch(card.address, sha256=card.sha256, size=card.size, rehash=rehash)
    text = os.fspath(weights)
    if is_address(text):
        return fetch(text, rehash=rehash)
    if os.path.isdir(text):
        return _file_in(pathlib.Path(text))
    if not os.path.isfile(text):
        raise ValueError(
            "`weights` must be None, a tag (see `list_weights`), the path of a file (.npz, "
            ".safetensors, .weights.h5) or an address (https://, gs://, hf://owner/name). "
            f"Received: {text!r}, and there is no such file.{hub_advice(text)}"
        )
    return pathlib.Path(text)


def hub_advice(text: str) -> str:
    """A hint for who names a repository as the hub's own client does."""
    is_name = text.count("/") == 1 and not text.startswith((".", "/", "~"))
    return f" On the Hugging Face hub it is hf://{text}." if is_name else ""


def _file_in(folder: pathlib.Path) -> pathlib.Path:
    """The checkpoint in a folder that was copied from the Hugging Face hub."""
    if (folder / DEFAULT_FILE).is_file():
        return folder / DEFAULT_FILE
    files = sorted(each.name for each in folder.iterdir() if each.suffix in _SUFFIXES)
    shown = ", ".join(files[:9]) if files else f"none is a {' or '.join(_SUFFIXES)} file"
    raise ValueError(f"{str(folder)!r} is a folder; name the file in it ({shown}).")


def load_augreg_index() -> list[dict[str, str | float]]:
    """Downloads and reads the index of the more than 50,000 AugReg files.

    Returns:
        One row for each fine-tuned file, by the names of the index's columns. What
        `find_best_augreg` takes.

    Raises:
        DownloadError: If it cannot be fetched.
    """
    return read_augreg_index(fetch(INDEX))
