"""The published weights: cards, tags, and the local files of both."""

from __future__ import annotations

import difflib
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from keras_vit.config import field_value
from keras_vit.families.cards import File, Published, Publisher
from keras_vit.families.table import FAMILIES
from keras_vit.hub.addresses import is_address
from keras_vit.hub.cache import fetch
from keras_vit.hub.card import Card
from keras_vit.variants import VARIANTS, find_variant
from keras_vit.weights.formats import find_file
from keras_vit.weights.timm_settings import timm_pixels, timm_settings


def _cards(published: Published) -> Iterator[Card]:
    origin, publisher = published.origin, published.origin.publisher
    for file in (File(*row) for row in published.files):
        size, classes = file.image_size, origin.classes
        measured = file.measured or origin.measured or publisher.measured
        yield Card(
            file.variant,
            f"{publisher.prefix}{published.tag}" + ("" if size == 224 else f"_{size}"),
            publisher.address.format(file.name),
            publisher.layout,
            image_size=(size, size),
            classes=classes.get(file.variant) if isinstance(classes, Mapping) else classes,
            preprocessing=origin.preprocessing or timm_pixels(file.name),
            options={**_gelu(file, publisher), **origin.options},
            flexible=origin.flexible,
            paper=origin.paper,
            licence=origin.licence,
            source=publisher.page.format(file.name),
            top1=file.top1,
            top1_source=measured if file.top1 else None,
            mebibytes=file.mebibytes,
            note=origin.note,
        )


def _gelu(file: File, publisher: Publisher) -> dict[str, str]:
    """The GELU of a name of timm, where it differs from the architecture's."""
    settings = timm_settings(file.name.partition(".")[0]) if publisher.layout == "timm" else None
    if not settings or settings["gelu"] == field_value(VARIANTS[file.variant], "gelu"):
        return {}
    return {"gelu": settings["gelu"]}


CARDS: dict[tuple[str, str], Card] = {
    (card.variant, card.tag): card
    for family in FAMILIES
    for published in family.cards
    for card in _cards(published)
}


def list_weights(variant: str | None = None) -> list[Card]:
    """Lists the published weights of one architecture, or of all.

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
    wanted = None if variant is None else find_variant(variant)
    cards = [card for card in CARDS.values() if wanted in (None, card.variant)]
    return sorted(cards, key=lambda card: (card.variant, card.tag))


def find_card(variant: str, tag: str) -> Card:
    """Finds the card of one checkpoint.

    Args:
        variant: Name of an architecture in the table, as `"vit_b16"`.
        tag: Name of a checkpoint of it, as `"augreg_in21k"`.

    Returns:
        Its card.

    Raises:
        ValueError: If there is none; the message lists the tags of the variant.
    """
    if (variant, tag) in CARDS:
        return CARDS[variant, tag]
    tags = sorted(card.tag for card in CARDS.values() if card.variant == variant)
    if not tags:
        raise ValueError(
            f"No checkpoint of {variant!r} has a tag, so there is no {tag!r}; `list_weights` lists "
            "all. Other files are loaded by their path or address, such as "
            'keras_vit.from_pretrained("hf://timm/NAME").'
        )
    nearest = difflib.get_close_matches(tag, tags, n=3)
    advice = f"Did you mean {', '.join(map(repr, nearest))}? " if nearest else ""
    elsewhere = sorted(card.variant for card in CARDS.values() if card.tag == tag)
    if elsewhere:
        advice += f"That tag exists for {', '.join(elsewhere)}. "
    raise ValueError(
        f"There are no weights {tag!r} of {variant!r}. {advice}There are: {', '.join(tags)}."
    )


def fetch_weights(
    weights: str | os.PathLike[str],
    variant: str | None = None,
    rehash: bool = False,
    download: bool = True,
) -> pathlib.Path:
    """Finds the local file of published weights, and downloads it if needed.

    Args:
        weights: A tag, an address (`https://`, `gs://`, `hf://owner/name`) or a path.
        variant: Any name of the architecture that a tag belongs to.
        rehash: Whether an unchanged file in the cache is hashed again.
        download: Whether to connect to a server; otherwise the cache alone is used.

    Returns:
        The path of the file.

    Raises:
        DownloadError: If the file cannot be fetched, or differs from the published one.
        ValueError: If there is no such tag, architecture or file.
    """
    card = find_tag(variant, weights) if variant else None
    return find_weights(weights, card, rehash, download)


def find_tag(variant: str, weights: str | os.PathLike[str]) -> Card | None:
    """Finds the card of published weights, if `weights` is a tag.

    Args:
        variant: Any name of the architecture.
        weights: Tag, path or address. A single word that is not a file is a tag.

    Returns:
        The card, or `None` for a path or an address.

    Raises:
        ValueError: If there is no such tag; the message lists the tags of the variant.
    """
    text = os.fspath(weights)
    if not text.isidentifier() or os.path.exists(text):
        return None
    return find_card(find_variant(variant), text)


def find_weights(
    weights: str | os.PathLike[str],
    card: Card | None = None,
    rehash: bool = False,
    download: bool = True,
    beside: Sequence[str] = (),
) -> pathlib.Path:
    """Finds the local file of a card, an address or a path, and downloads it if needed.

    Args:
        weights: Path or address, if there is no card. In a folder, `model.safetensors`, whole or
            split.
        card: Card of the weights.
        rehash: Whether an unchanged file in the cache is hashed again.
        download: As for `fetch_weights`.
        beside: Names of further files of an address, as for `fetch`.

    Returns:
        Path of an existing file.

    Raises:
        DownloadError: If the file cannot be fetched, or differs from the published one.
        ValueError: If there is no such file.
    """
    if card is not None:
        return fetch(card.address, rehash=rehash, download=download)
    text = os.fspath(weights)
    if is_address(text):
        return fetch(text, rehash=rehash, download=download, beside=beside)
    if os.path.isdir(text):
        return find_file(pathlib.Path(text))
    if not os.path.isfile(text):
        raise ValueError(
            "`weights` must be None, a tag (see `list_weights`), the path of a file (.npz, "
            ".safetensors, .weights.h5) or an address (https://, gs://, hf://owner/name). "
            f"Received: {text!r}, and there is no such file.{hub_advice(text)}"
        )
    return pathlib.Path(text)


def hub_advice(text: str) -> str:
    """Suggests `hf://` for a name of the form `owner/name`."""
    is_name = text.count("/") == 1 and not text.startswith((".", "/", "~"))
    return f" On the Hugging Face hub it is hf://{text}." if is_name else ""
