"""Published weights by the names that users know them by."""

from __future__ import annotations

import os
import pathlib

from keras_vit.cards.augreg import INDEX, read_augreg_index
from keras_vit.cards.card import Card
from keras_vit.cards.catalog import find_card, list_cards
from keras_vit.variants import find_variant
from keras_vit.weights.addresses import is_address
from keras_vit.weights.cache import fetch


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


def fetch_weights(weights: str | os.PathLike, variant: str | None = None) -> pathlib.Path:
    """Finds the local file of published weights, and downloads it where it is not there yet.

    Args:
        weights: A tag, an address (`https://`, `gs://`, `hf://owner/name`) or a path.
        variant: Any name of the architecture that a tag belongs to.

    Returns:
        The path of the file.

    Raises:
        DownloadError: If the file cannot be fetched or is not the one that it should be.
        ValueError: If there is no such tag or architecture.
    """
    text = os.fspath(weights)
    if variant is not None and not is_address(text) and not os.path.exists(text):
        card = find_card(find_variant(variant), text)
        return fetch(card.address, sha256=card.sha256, size=card.size)
    return fetch(text)


def load_augreg_index() -> list[dict[str, str | float]]:
    """Downloads and reads the index of the more than 50,000 AugReg files.

    Returns:
        One row for each fine-tuned file, by the names of the index's columns. What
        `find_best_augreg` takes.

    Raises:
        DownloadError: If it cannot be fetched.
    """
    return read_augreg_index(fetch(INDEX))
