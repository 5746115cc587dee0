"""The table of architectures, their names, and their configurations."""

from __future__ import annotations

import difflib
from typing import Any

from keras_vit.checks import check_choice, check_names, pair
from keras_vit.config import (
    POOLINGS,
    RESNET_POOLINGS,
    ResNetConfig,
    ViTConfig,
    field_names,
    make_config,
    replace_fields,
)
from keras_vit.families.keys import Fields
from keras_vit.families.names import Name
from keras_vit.families.table import FAMILIES

# Fields of the configuration that `create_model` has other arguments for.
_OWN_ARGUMENTS = {
    "image_size": "input_shape=(height, width, channels)",
    "channels": "input_shape=(height, width, channels)",
    "any_size": "input_shape=(None, None, channels)",
}


def _make(fields: Fields) -> ViTConfig | ResNetConfig:
    return ResNetConfig(**fields) if "stages" in fields else make_config(**fields)


VARIANTS: dict[str, ViTConfig | ResNetConfig] = {
    name: _make(fields) for family in FAMILIES for name, fields in family.variants.items()
}
# Without image sizes.
NAMES: dict[str, Name] = {
    name: meaning for family in FAMILIES for name, meaning in family.names.items()
}


def list_variants(prefix: str = "") -> list[str]:
    """Lists the names of this package's architectures that start with `prefix`, sorted.

    `create_model` takes those of the paper and of timm's plain ViTs too.
    """
    return sorted(name for name in VARIANTS if name.startswith(prefix))


def find_variant(name: str) -> str:
    """Finds the variant of any of its names: `"B/16"` gives `"vit_b16"`.

    Names of timm that mean no variant are variants of their own, without an image size.

    Raises:
        ValueError: If nothing has that name; the message lists the nearest names.
    """
    stem, _ = split_image_size(name)
    if stem not in VARIANTS and stem not in NAMES:
        nearest = difflib.get_close_matches(name, [*VARIANTS, *NAMES], n=3, cutoff=0.4)
        advice = f"Did you mean {', '.join(map(repr, nearest))}? " if nearest else ""
        raise ValueError(
            f"There is no variant {name!r}. {advice}All: {', '.join(list_variants())}."
        )
    return NAMES[stem].variant or stem if stem in NAMES else stem


def find_config(name: str) -> ViTConfig | ResNetConfig:
    """Finds the configuration of a named architecture.

    Args:
        name: A name of the table (`"vit_b16"`, `"r50_vit_b16"`), of the paper (`"B/16"`,
            `"R50+B/16"`, `"R50x1"`), of an official file (`"ViT-B_16"`), of timm
            (`"vit_base_patch16_384"`, whose last number is the image size in pixels) or of a
            repository on the Hugging Face hub (`"OWNER/NAME"`).

    Returns:
        A `ViTConfig`, with a `stem` for a hybrid, or a `ResNetConfig`.

    Raises:
        ValueError: If nothing has that name; the message lists the nearest names.
    """
    variant = find_variant(name)
    config = VARIANTS.get(variant) or _make({**NAMES[variant].fields})
    stem, image_size = split_image_size(name)
    changes = {**NAMES[stem].fields} if stem in NAMES and stem != variant else {}
    if image_size is not None:
        changes["image_size"] = image_size
    return replace_fields(config, **changes)


def split_image_size(name: str) -> tuple[str, tuple[int, int] | None]:
    """Splits `"vit_base_patch16_384"` into `("vit_base_patch16", (384, 384))`."""
    stem, _, size = str(name).rpartition("_")
    if name not in NAMES and stem in NAMES and size.isdigit():
        return stem, pair("image_size", int(size))
    return str(name), None  # some sizes are part of the name


def configure(
    variant: str,
    include_top: bool = True,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: str | None = None,
    include_preprocessing: bool = True,
    **options: Any,
) -> ViTConfig | ResNetConfig:
    """Makes the configuration of `create_model`: the variant's, with the caller's changes.

    Args:
        variant: Name of the architecture.
        include_top: As in `create_model`, and so are the others.
        input_shape: Height and width in pixels, or `None` twice for any size, and channels.
        pooling: How tokens become the input of the head, or the output without a head.
        classes: Outputs of the head.
        classifier_activation: Activation of the head.
        include_preprocessing: Whether the model takes pixels in [0, 255].
        **options: Other fields of the variant's configuration.

    Returns:
        A `ViTConfig` or a `ResNetConfig`.

    Raises:
        ValueError: If the variant or an option is unknown, or values do not fit together.
    """
    config = find_config(variant)
    _check_options(options, config)
    changes: dict[str, Any] = dict(options, include_preprocessing=include_preprocessing)
    if input_shape is not None:
        size, changes["channels"] = split_shape(input_shape)
        if size is None and isinstance(config, ViTConfig):
            changes["any_size"] = True
        else:
            changes["image_size"] = size
    if include_top:
        changes["classes"] = classes
        changes["classifier_activation"] = classifier_activation
    else:
        changes["classes"] = None
    if pooling is not None or not include_top:
        poolings = RESNET_POOLINGS if isinstance(config, ResNetConfig) else POOLINGS
        check_choice("pooling", pooling, (None, *poolings))
        changes["pooling"] = pooling
    return replace_fields(config, **changes)


def chosen_fields(
    variant: str,
    include_top: bool,
    input_shape: tuple[int | None, int | None, int] | None,
    pooling: str | None,
    options: dict[str, Any],
) -> set[str]:
    """Names the fields of the configuration that the caller chose."""
    chosen = set(options)
    if pooling is not None or not include_top:
        chosen.add("pooling")
    name_has_size = split_image_size(variant)[1] is not None
    is_any = input_shape is not None and input_shape[0] is None
    if is_any and isinstance(find_config(variant), ViTConfig):
        return chosen | {"any_size"}  # positions are for the size of the checkpoint
    if input_shape is not None or name_has_size:  # "vit_base_patch16_384"
        chosen.add("image_size")
    return chosen


def _check_options(options: dict[str, Any], config: ViTConfig | ResNetConfig) -> None:
    for option in options:
        if option in _OWN_ARGUMENTS:
            raise ValueError(f"Pass {_OWN_ARGUMENTS[option]} in place of `{option}`.")
    check_names("option", options, field_names(config))


def split_shape(
    input_shape: tuple[int | None, int | None, int],
) -> tuple[tuple[int, int] | None, int]:
    """Image size, `None` for images of any size, and channels of an `input_shape`.

    Raises:
        ValueError: If it is no (height, width, channels).
    """
    is_shape = isinstance(input_shape, (tuple, list)) and len(input_shape) == 3
    missing = [axis is None for axis in input_shape] if is_shape else None
    if missing not in ([False, False, False], [True, True, False]):
        raise ValueError(
            "`input_shape` must be (height, width, channels), or (None, None, channels) for images "
            f"of any size. Received: {input_shape}."
        )
    height, width, channels = input_shape
    if height is None or width is None:
        return None, channels
    if height <= 4 < channels:
        raise ValueError(
            "`input_shape` must be (height, width, channels), channels last. Received: "
            f"{tuple(input_shape)}; did you mean {(width, channels, height)}?"
        )
    return (height, width), channels
