"""`keras-vit weights list`, `info`, `fetch` and `convert`."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from keras_vit.cli.output import print_table, say
from keras_vit.cli.resolve import find_checkpoint, open_model, resolve_model
from keras_vit.hub.addresses import is_address
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import fetch_weights, find_card, list_weights
from keras_vit.hub.repositories import NotCachedError
from keras_vit.pretrained import build_pretrained, shape_for
from keras_vit.variants import find_variant
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.inspection import inspect_file
from keras_vit.weights.save import check_target, save_weights

# What `weights info` prints as it was found.
_FOUND = (
    *("variant", "classes", "image_size", "input_size", "patch_size", "grid", "sizes"),
    "parameters",
)


def list_published(variant: str | None = None, as_json: bool = False) -> None:
    """Prints the published weights of an architecture, or of all, one per line."""
    cards = list_weights(variant)
    if as_json:
        for card in cards:
            print(json.dumps(dataclasses.asdict(card)))
        return
    header = ("weights", "pixels", "classes", "top-1", "MiB", "layout", "address")
    print_table([header, *map(_row, cards)])


def show_file(
    file: str,
    arrays: bool = False,
    as_json: bool = False,
    prefix: str | None = None,
    download: bool = False,
) -> None:
    """Prints the architecture and sizes of a checkpoint, from the names and shapes in it."""
    kind = resolve_model(file).kind
    try:
        if kind == "keras":
            if is_address(file):
                file = os.fspath(fetch_weights(file, download=download))
            _show_model(file, as_json)
            return
        path = find_checkpoint(file, download=download)
    except NotCachedError as error:
        if download:
            raise
        advice = "pass --download to connect to its server"
        if kind != "published":
            raise NotCachedError(f"{file} is not in the cache: {advice}.") from error
        variant, _, tag = file.rpartition("/")
        facts: dict[str, Any] = dataclasses.asdict(find_card(find_variant(variant), tag))
        _print_info({**facts, "arrays": f"not in the cache: {advice}"}, as_json)
        return
    info = inspect_file(path, prefix)
    sizes = {name: (list(entry.shape), str(entry.dtype)) for name, entry in info.arrays.items()}
    facts = {
        "file": os.fspath(info.path),
        "layout": f"{info.layout} ({info.kind})",
        "prefix": info.prefix or None,
        **{name: getattr(info, name) for name in _FOUND},
        "arrays": len(sizes),
        "options": info.options,
    }
    if info.input_size is not None:
        facts["input_size"] = info.input_size.value
    _print_info({**facts, "arrays": sizes} if as_json else facts, as_json)
    if arrays and not as_json:
        print()
        print_table([(name, dtype, _text(shape)) for name, (shape, dtype) in sizes.items()])


def _show_model(file: str, as_json: bool) -> None:
    """Prints the architecture and sizes of the model of a run, or of a .keras file."""
    model = open_model(file)
    config = getattr(model, "config", None)
    facts = {
        "file": file,
        "model": model.name,
        "classes": model.output_shape[-1],
        "image_size": model.input_shape[1:3],
        "parameters": model.count_params(),
        "options": {} if config is None else config.to_dict(),
    }
    _print_info(facts, as_json)


def _print_info(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, default=_plain))
    else:
        print_table([(f"{name}:", _text(value)) for name, value in facts.items()])


def fetch_file(name: str, rehash: bool = False) -> None:
    """Downloads weights unless they are in the cache, checks them and prints their path."""
    say(find_checkpoint(name, rehash))


def convert_file(
    source: str,
    target: str,
    layout: str,
    variant: str | None = None,
    image_size: tuple[int, int] | None = None,
    num_heads: int | None = None,
    prefix: str | None = None,
) -> None:
    """Writes a checkpoint, or the model of a run, with the names of another project."""
    check_target(target, layout)
    if resolve_model(source).kind == "keras":
        if (variant, num_heads, prefix) != (None,) * 3:
            raise ValueError(
                f"{source!r} is a model, whose architecture is known. Leave out --variant, "
                "--num-heads and --prefix."
            )
        model = open_model(source, image_size)
    else:
        options: dict[str, Any] = {} if num_heads is None else {"num_heads": num_heads}
        with open_checkpoint(find_checkpoint(source), prefix) as checkpoint:
            if image_size is None:
                checkpoint.keep_size()  # positions are written as they are
            options["input_shape"] = shape_for(checkpoint, image_size)
            model = build_pretrained(checkpoint, variant=variant, **options)
        say(model.load_report)
    written = save_weights(model, target, layout)
    say(f"Wrote {written} ({os.path.getsize(written) / 2**20:.1f} MiB, {layout} layout).")


def _row(card: Card) -> tuple[str, ...]:
    height, width = card.image_size
    return (
        card.name,
        f"{height}" if height == width else f"{height}x{width}",
        _text(card.classes),
        _text(card.top1),
        "-" if card.mebibytes is None else f"{card.mebibytes:.0f}",
        card.layout,
        card.address,
    )


def _text(value: object) -> str:
    if value is None or value == {}:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={each!r}" for name, each in value.items())
    if isinstance(value, (tuple, list)):
        return " x ".join(map(str, value)) or "scalar"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: Any) -> dict[str, Any] | str:
    """A value that JSON cannot hold: dataclasses as dicts, others as text."""
    return {**vars(value)} if dataclasses.is_dataclass(value) else str(value)
