"""From a checkpoint alone to the model that it was made for."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from keras_vit.create import create_model
from keras_vit.hub.cards.card import Card
from keras_vit.hub.published import find_tag, find_weights
from keras_vit.trainers.model import Model
from keras_vit.weights.inspection import FileInfo, inspect_file

# A variant of each family, for the sizes of a file to take the place of its own.
_BASES = {"vit": "vit_b16", "hybrid": "r50_vit_b16", "bit": "bit_r50x1"}


def from_pretrained(
    weights: str | os.PathLike,
    variant: str | None = None,
    include_top: bool | None = None,
    input_shape: tuple[int, int, int] | None = None,
    pooling: str | None = None,
    classes: int | None = None,
    classifier_activation: str | None = None,
    include_preprocessing: bool = True,
    name: str | None = None,
    **options: Any,
) -> Model:
    """Creates the model that a checkpoint was made for: `create_model` that is not told what.

    The architecture is found from names and shapes in the file, and from the `config.json` that
    timm and transformers publish beside it; it need not be one of `list_variants`.

    Args:
        weights: An address (`https://`, `gs://`, `hf://owner/name`), the path of a checkpoint
            (`.npz`, `.safetensors`), or `"VARIANT/TAG"` of `list_weights`.
        variant: Name of the architecture, where the checkpoint does not tell it.
        include_top: Whether the model ends in a head; `None` follows the checkpoint. One without
            a head gives features of shape `(B, D)`, pooled as its source does, unless `classes`
            asks for a head that starts at zero.
        input_shape: Height and width in pixels, and channels; `None` takes the checkpoint's.
        pooling: As in `create_model`.
        classes: Outputs of the head; `None` takes the checkpoint's.
        classifier_activation: As in `create_model`, and so are the rest.
        include_preprocessing: Whether the model takes pixels in [0, 255].
        name: Name of the model.
        **options: Fields of its configuration that shall be others than the checkpoint says.

    Returns:
        A `keras_vit.Model`, whose `load_report` tells what became of every array.

    Raises:
        ValueError: If the file is damaged (`CheckpointError`), or of no architecture that can be
            found; the message says what to name.
        DownloadError: If it cannot be fetched.

    Example:

    >>> model = keras_vit.from_pretrained("hf://google/vit-base-patch16-224")  # doctest: +SKIP
    """
    card = _find_card(weights)
    path = find_weights(weights, card)
    info = inspect_file(path)
    sizes: dict[str, Any] = {}
    if card is not None:
        variant = card.variant
    elif variant is None:
        variant, sizes = _find_architecture(info, options)
    if include_top is None:
        include_top = classes is not None or info.classes is not None
        if not include_top:
            pooling = pooling or {"pooling": "gap", **info.options, **_known(card)}["pooling"]
    return create_model(
        variant,
        include_top=include_top,
        weights=path if card is None else card.tag,
        input_shape=input_shape or _input_shape(info, bool(sizes)),
        pooling=pooling,
        classes=classes or info.classes or 1000,
        classifier_activation=classifier_activation,
        include_preprocessing=include_preprocessing,
        name=name,
        **{**sizes, **options},
    )


def _known(card: Card | None) -> dict[str, Any]:
    return {} if card is None else card.options


def _find_card(weights: str | os.PathLike) -> Card | None:
    """The card of `"vit_b16/augreg_in21k"`, or `None` for a path or an address."""
    text = os.fspath(weights)
    variant, _, tag = text.rpartition("/")
    if not variant or not tag.isidentifier() or "://" in text or os.path.exists(text):
        return None
    return find_tag(variant, tag)


def _find_architecture(info: FileInfo, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A variant of the table, and the fields in which the file differs from it."""
    if info.variant is not None:
        return info.variant, {}
    sizes = {key: value for key, value in info.sizes.items() if key != "channels"}
    if not sizes:
        raise ValueError(
            f"{info.path} ({info.layout} layout) lacks arrays that tell its architecture. Name it: "
            "create_model(variant, weights=...) lists what else does not fit."
        )
    heads = options.get("num_heads", info.options.get("num_heads"))
    if "width" in sizes and heads is None:
        shown = ", ".join(f"{key}={value}" for key, value in sizes.items())
        raise ValueError(
            f"{info.path} is of no architecture in the table ({shown}), and no shape tells how "
            "many attention heads it has. Pass num_heads (--num-heads), or fetch the config.json "
            "of its repository to the same folder."
        )
    if "width" in sizes:
        sizes["num_heads"] = heads
    if "stem" in sizes:
        sizes["stem"] = dataclasses.replace(sizes["stem"], **info.options.get("stem", {}))
    family = "bit" if "stages" in sizes else "hybrid" if "stem" in sizes else "vit"
    return _BASES[family], sizes


def _input_shape(info: FileInfo, is_other: bool) -> tuple[int, int, int] | None:
    """Pixels and channels of the file, where they differ from what a variant has anyway."""
    channels = info.sizes.get("channels", 3)
    if channels == 3 and not is_other:
        return None
    if info.image_size is None:
        if "stages" in info.sizes:
            return (224, 224, channels)
        raise ValueError(
            f"{info.path} does not tell what size of images its positions are for. Pass "
            f"input_shape=(height, width, {channels})."
        )
    return (*info.image_size, channels)
