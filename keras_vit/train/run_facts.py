"""What the files of a training run say about its model, for the card of `hub.push`."""

from __future__ import annotations

import collections
import csv
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_vit.data.strata import HELD_OUT
from keras_vit.evaluate.counting import count_stages, describe_macs
from keras_vit.hub.addresses import is_address
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import CARDS, find_tag
from keras_vit.hub.model_card import CardFacts, Counts
from keras_vit.reading import open_text, refusing
from keras_vit.train.image_lists import IMAGE_LISTS
from keras_vit.train.run_folder import PREDICTIONS, read_config, read_results

# Settings of a run that are paths or lists, which are nobody's business, or stand elsewhere.
_LEFT_OUT = {
    *("data", "data_dir", "validation", "test", "output", "class_names", "skipped", "task"),
    *("image_lists", HELD_OUT, "unreadable", "versions", "weights", "model", "strategy"),
}


def card_facts_of(folder: pathlib.Path, model: Any, is_predicted: bool) -> CardFacts:
    """Collects what is known of the model of a run.

    Args:
        folder: Folder of the run.
        model: Its model.
        is_predicted: Whether the predictions in the folder are of this model.

    Returns:
        Facts without paths and names of images.

    Raises:
        ValueError: If a file of the run is damaged.
    """
    config = read_config(folder)
    weights, card = _find_origin(config)
    source = card.address if card is not None else weights
    task = config.get("task", "single_label")
    class_names = tuple(map(str, config.get("class_names", ())))
    has_counts = is_predicted and task == "single_label"
    return CardFacts(
        model=model.name,
        summary=_describe_size(model),
        task=task,
        class_names=class_names,
        data=_describe_data(config),
        settings={key: x for key, x in config.items() if key not in _LEFT_OUT and x is not None},
        counts=_read_counts(folder, class_names, config) if has_counts else None,
        metrics=_metrics_of(read_results(folder)),
        weights=weights,
        source=source if source and source.startswith("hf://") else None,
        weights_licence=card.licence if card is not None else None,
    )


def _find_origin(config: Mapping[str, Any]) -> tuple[str | None, Card | None]:
    """The weights that training began with, by a name without folders, and their card.

    Both are `None` for random weights, the card for files and addresses that no card lists.
    """
    model, weights = str(config.get("model") or ""), config.get("weights")
    variant, _, tag = model.rpartition("/")
    if weights is None and not variant and not pathlib.PurePath(model).suffix:
        return None, None  # the name of an architecture
    if weights is None:  # VARIANT/TAG, an address or a path
        is_tag = (variant, tag) in CARDS
        model, weights = (variant, tag) if is_tag else ("", model)
    text = str(weights)
    card = find_tag(model, text) if model else None
    card = card or next((each for each in CARDS.values() if each.address == text), None)
    if card is not None:
        return card.name, card
    if is_address(text):
        return text.partition("?")[0], None  # a query may hold a key
    return pathlib.PurePath(text).name, None


def _describe_size(model: Any) -> str:
    text = f"{model.count_params():,} parameters"
    try:
        return f"{text}, {describe_macs(count_stages(model))}."
    except ValueError:  # a layer that cannot be counted
        return f"{text}."


def _describe_data(config: Mapping[str, Any]) -> str:
    lists = config.get(IMAGE_LISTS, {})
    counts = [f"{kind} {lists[kind]['images']:,}" for kind in lists if "images" in lists[kind]]
    return f"Images: {', '.join(counts)}." if counts else ""


def _metrics_of(results: Mapping[str, Any]) -> dict[str, float]:
    left_out = ("seconds", "steps_per_epoch", "peak_memory_bytes", "first_epoch")
    return {
        name: float(value)
        for name, value in results.items()
        if isinstance(value, int | float) and name not in left_out
    }


def _read_counts(
    folder: pathlib.Path, class_names: tuple[str, ...], config: Mapping[str, Any]
) -> Counts | None:
    """Counts the predictions of the last result page, if there is one."""
    path, advice = folder / PREDICTIONS, f"Write it again with `keras-vit report {folder}`."
    if not path.is_file():
        return None
    with refusing(path, advice=advice), open_text(path) as file:
        rows = csv.DictReader(file)
        pairs = collections.Counter((row["true"], row["predicted"]) for row in rows)
    unknown = {name for pair in pairs for name in pair} - set(class_names)
    if unknown or not pairs:
        raise ValueError(
            f"{path} names {len(unknown)} classes that the run does not have, or no images. "
            f"{advice}"
        )
    total, lists = sum(pairs.values()), config.get(IMAGE_LISTS, {})
    kinds = [kind for kind in ("test", "validation") if lists.get(kind, {}).get("images") == total]
    return Counts(f"{total:,} {kinds[0] if kinds else 'labelled'} images", class_names, pairs)
