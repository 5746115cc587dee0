"""All cards, and how they are found."""

from __future__ import annotations

import difflib

from keras_vit.hub.cards.big_vision import BIG_VISION_CARDS
from keras_vit.hub.cards.card import Card
from keras_vit.hub.cards.huggingface import HUGGING_FACE_CARDS
from keras_vit.hub.cards.official import OFFICIAL_CARDS
from keras_vit.hub.cards.timm import TIMM_CARDS

CARDS: dict[tuple[str, str], Card] = {
    (card.variant, card.tag): card
    for card in (*OFFICIAL_CARDS, *BIG_VISION_CARDS, *TIMM_CARDS, *HUGGING_FACE_CARDS)
}


def list_cards(variant: str | None = None) -> list[Card]:
    """The cards of an architecture, or of all, sorted by architecture and tag.

    Args:
        variant: Its name in the table of architectures, or `None`.
    """
    cards = [card for card in CARDS.values() if variant in (None, card.variant)]
    return sorted(cards, key=lambda card: (card.variant, card.tag))


def find_card(variant: str, tag: str) -> Card:
    """The card of one checkpoint.

    Args:
        variant: Name of an architecture in the table, as `"vit_b16"`.
        tag: Name of a checkpoint of it, as `"augreg_in21k"`.

    Returns:
        Its card.

    Raises:
        ValueError: If there is none. The message lists those that there are.
    """
    if (variant, tag) in CARDS:
        return CARDS[variant, tag]
    tags = [card.tag for card in list_cards(variant)]
    if not tags:
        variants = ", ".join(sorted({card.variant for card in CARDS.values()}))
        raise ValueError(
            f"No checkpoint of {variant!r} is published, so there is no {tag!r}. "
            f"There are checkpoints of {variants}. Any file can be loaded by its path or address."
        )
    nearest = difflib.get_close_matches(tag, tags, n=3)
    advice = f"Did you mean {', '.join(map(repr, nearest))}? " if nearest else ""
    elsewhere = sorted(card.variant for card in CARDS.values() if card.tag == tag)
    if elsewhere:
        advice += f"That tag exists for {', '.join(elsewhere)}. "
    raise ValueError(
        f"There are no weights {tag!r} of {variant!r}. {advice}There are: {', '.join(tags)}."
    )
