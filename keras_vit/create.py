"""From the name of an architecture, and weights, to a model."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable
from typing import Any

from keras_vit.config import POOLINGS, RESNET_POOLINGS, ResNetConfig, ViTConfig
from keras_vit.hub.addresses import is_address
from keras_vit.hub.cards.card import Card
from keras_vit.hub.published import find_tag, find_weights
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from keras_vit.trainers.model import Model
from keras_vit.variants import find_config, find_variant
from keras_vit.weights.follow import follow_file
from keras_vit.weights.load import inspect_file, load_weights

# Fields of the configuration that `create_model` has other arguments for.
_OWN_ARGUMENTS = {
    "image_size": "input_shape=(height, width, channels)",
    "channels": "input_shape=(height, width, channels)",
}

_SHAPE_ADVICE = (
    "`input_shape` must be (height, width, channels), all three known, for positions are learned "
    "for one size; only a BiT ResNet takes (None, None, channels). Received: {}."
)


def create_model(
    variant: str,
    include_top: bool = True,
    weights: str | os.PathLike | None = None,
    input_shape: tuple[int, int, int] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: str | None = None,
    include_preprocessing: bool = True,
    name: str | None = None,
    **options: Any,
) -> Model:
    """Creates a model by the name of its architecture.

    Args:
        variant: `"vit_b16"`, `"B/16"`, `"vit_base_patch16_384"`, `"r50_vit_b16"`, `"bit_r50x1"`
            and the like: see `list_variants`.
        include_top: Whether the model ends in a classification head.
        weights: `None` for the paper's random start; a tag of published weights, such as
            `"augreg_in21k"`, see `list_weights`; the path of a checkpoint in a layout of the
            official projects, timm or transformers (`.npz`, `.safetensors`) or of Keras
            (`.weights.h5`); its address (`https://`, `gs://`, `hf://owner/name`). The
            configuration follows the checkpoint where no option says otherwise, and
            `model.load_report` tells what became of every array.
        input_shape: Height and width in pixels, and channels. `None` takes the variant's own, or
            those that the weights of a tag were made for. A BiT ResNet also takes
            `(None, None, channels)`, and then images of any size.
        pooling: What the head reads, `"token"`, `"gap"` or `"map"`; `None` takes the variant's
            own. Without a head: what is returned, of shape `(B, D)`, where `None` returns all
            tokens after the last norm, of shape `(B, T, D)`. A BiT ResNet knows `"gap"` alone, and
            without it returns its maps, of shape `(B, H / 32, W / 32, D)`.
        classes: Outputs of the head. Where the checkpoint's head has as many, it is loaded;
            otherwise the head starts at zero.
        classifier_activation: Activation of the head; `None` returns logits.
        include_preprocessing: Whether the model takes pixels in [0, 255]. Otherwise it takes the
            range its architecture was trained on, [-1, 1] in the official code.
        name: Name of the model; `None` takes the variant's.
        **options: Other fields of `ViTConfig` or `ResNetConfig`, such as `dropout_rate`.

    Returns:
        A `keras_vit.Model` from images `(B, H, W, C)` to float32 logits `(B, classes)`, or to
        features.

    Raises:
        ValueError: If the variant or an option is unknown, or values do not fit together; if
            `weights` is damaged or does not fit (`CheckpointMismatchError`).
        DownloadError: If weights cannot be fetched, or are not what was published.

    Example:

    >>> model = keras_vit.create_model("vit_ti16", classes=10, input_shape=(64, 64, 3))
    >>> model.output_shape
    (None, 10)
    """
    _check_is_name(variant)
    config = configure(
        variant,
        include_top=include_top,
        input_shape=input_shape,
        pooling=pooling,
        classes=classes,
        classifier_activation=classifier_activation,
        include_preprocessing=include_preprocessing,
        **options,
    )
    name = name or find_variant(variant)
    if weights is None:
        return build(config, name=name)
    card = find_tag(variant, weights)
    path = find_weights(weights, card)
    if path.name.endswith(".weights.h5"):
        model = build(config, name=name)
        model.load_weights(path)
        return model
    chosen = _chosen(variant, include_top, input_shape, pooling, options)
    config = follow_file(config, inspect_file(path), chosen, _known_from(card))
    model = build(config, name=name)
    flexible = card is not None and card.flexible
    load_weights(model, path, resize_patches=flexible or "patch_size" in options)
    return model


def build(config: ViTConfig | ResNetConfig, name: str | None = None) -> Model:
    """The model of a configuration, whichever its family.

    Args:
        config: A `ViTConfig` or a `ResNetConfig`.
        name: Name of the model.

    Returns:
        A `keras_vit.Model`, see `build_vit` and `build_resnet`.
    """
    if isinstance(config, ResNetConfig):
        return build_resnet(config, name=name)
    return build_vit(config, name=name)


def configure(
    variant: str,
    include_top: bool = True,
    input_shape: tuple[int, int, int] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: str | None = None,
    include_preprocessing: bool = True,
    **options: Any,
) -> ViTConfig | ResNetConfig:
    """The configuration that `create_model` builds: the variant's, with what the caller changed.

    Args:
        variant: Name of the architecture.
        include_top: As in `create_model`, and so are the others.
        input_shape: Height and width in pixels, and channels.
        pooling: What the head reads, or what is returned without one.
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
        changes["image_size"], changes["channels"] = _split_shape(input_shape, config)
    if include_top:
        changes["classes"] = classes
        changes["classifier_activation"] = classifier_activation
    else:
        changes["classes"] = None
    if pooling is not None or not include_top:
        _check_pooling(pooling, config)
        changes["pooling"] = pooling
    return dataclasses.replace(config, **changes)


def _known_from(card: Card | None) -> dict[str, Any]:
    """Fields of the configuration that a card decides."""
    if card is None:
        return {}
    return {
        "image_size": card.image_size,
        "preprocessing": card.preprocessing,
        **card.options,
    }


def _chosen(
    variant: str,
    include_top: bool,
    input_shape: tuple[int, int, int] | None,
    pooling: str | None,
    options: dict[str, Any],
) -> set[str]:
    """Fields of the configuration that the caller decided."""
    chosen = set(options)
    if pooling is not None or not include_top:
        chosen.add("pooling")
    name_has_size = find_config(variant) != find_config(find_variant(variant))
    if input_shape is not None or name_has_size:  # "vit_base_patch16_384"
        chosen.add("image_size")
    return chosen


def _check_is_name(variant: str) -> None:
    text = os.fspath(variant)
    if is_address(text) or os.path.isfile(text):
        raise ValueError(
            f"{text!r} is a checkpoint, not the name of an architecture. Use "
            "`from_pretrained`, which finds the architecture, or name it: "
            f'create_model("vit_b16", weights={text!r}).'
        )


def _check_options(options: dict[str, Any], config: ViTConfig | ResNetConfig) -> None:
    fields = [field.name for field in dataclasses.fields(config)]
    for option in options:
        if option in _OWN_ARGUMENTS:
            raise ValueError(f"Pass {_OWN_ARGUMENTS[option]} in place of `{option}`.")
        if option not in fields:
            nearest = difflib.get_close_matches(option, fields, n=3)
            advice = f"Did you mean {', '.join(nearest)}? " if nearest else ""
            raise ValueError(
                f"There is no option `{option}`. {advice}All: {', '.join(sorted(fields))}."
            )


def _split_shape(
    input_shape: tuple[int | None, int | None, int], config: ViTConfig | ResNetConfig
) -> tuple[tuple[int, int] | None, int]:
    if len(input_shape) != 3:
        raise ValueError(_SHAPE_ADVICE.format(tuple(input_shape)))
    height, width, channels = input_shape
    if height is None and width is None and isinstance(config, ResNetConfig):
        return None, channels
    if height is None or width is None or channels is None:
        raise ValueError(_SHAPE_ADVICE.format(tuple(input_shape)))
    if height <= 4 < channels:
        raise ValueError(
            "`input_shape` must be (height, width, channels), channels last. Received: "
            f"{tuple(input_shape)}; did you mean {(width, channels, height)}?"
        )
    return (height, width), channels


def _check_pooling(pooling: str | None, config: ViTConfig | ResNetConfig) -> None:
    poolings = RESNET_POOLINGS if isinstance(config, ResNetConfig) else POOLINGS
    if pooling not in (None, *poolings):
        raise ValueError(
            f"`pooling` must be None or one of {', '.join(map(repr, poolings))}. "
            f"Received: {pooling!r}."
        )


def _constructor(variant: str, title: str) -> Callable[..., Model]:
    """The function of one variant, with the signature of `keras.applications`."""

    def construct(
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        input_shape: tuple[int, int, int] | None = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: str | None = None,
        include_preprocessing: bool = True,
        name: str | None = None,
        **options: Any,
    ) -> Model:
        return create_model(
            variant,
            include_top=include_top,
            weights=weights,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            include_preprocessing=include_preprocessing,
            name=name,
            **options,
        )

    construct.__name__ = construct.__qualname__ = title
    construct.__doc__ = f"Creates {title}: `create_model({variant!r}, ...)`, with its arguments."
    return construct


# One function a variant, under the names that `keras.applications` would give them.
ViTTi16 = _constructor("vit_ti16", "ViTTi16")
ViTS8 = _constructor("vit_s8", "ViTS8")
ViTS14 = _constructor("vit_s14", "ViTS14")
ViTS16 = _constructor("vit_s16", "ViTS16")
ViTS32 = _constructor("vit_s32", "ViTS32")
ViTM16 = _constructor("vit_m16", "ViTM16")
ViTB8 = _constructor("vit_b8", "ViTB8")
ViTB14 = _constructor("vit_b14", "ViTB14")
ViTB16 = _constructor("vit_b16", "ViTB16")
ViTB32 = _constructor("vit_b32", "ViTB32")
ViTL14 = _constructor("vit_l14", "ViTL14")
ViTL16 = _constructor("vit_l16", "ViTL16")
ViTL32 = _constructor("vit_l32", "ViTL32")
ViTSo400m14 = _constructor("vit_so400m14", "ViTSo400m14")
ViTSo400m16 = _constructor("vit_so400m16", "ViTSo400m16")
ViTH14 = _constructor("vit_h14", "ViTH14")
ViTGiantOpt16 = _constructor("vit_giantopt16", "ViTGiantOpt16")
ViTGiant14 = _constructor("vit_giant14", "ViTGiant14")
ViTGigantic14 = _constructor("vit_gigantic14", "ViTGigantic14")
ViTCordonnier2 = _constructor("vit_cordonnier2", "ViTCordonnier2")
RViTTi16 = _constructor("r_vit_ti16", "RViTTi16")
R26ViTS32 = _constructor("r26_vit_s32", "R26ViTS32")
R26ViTB32 = _constructor("r26_vit_b32", "R26ViTB32")
R50ViTB16 = _constructor("r50_vit_b16", "R50ViTB16")
R50ViTB32 = _constructor("r50_vit_b32", "R50ViTB32")
R50ViTL16 = _constructor("r50_vit_l16", "R50ViTL16")
R50ViTL32 = _constructor("r50_vit_l32", "R50ViTL32")
BiTR50x1 = _constructor("bit_r50x1", "BiTR50x1")
BiTR50x2 = _constructor("bit_r50x2", "BiTR50x2")
BiTR50x3 = _constructor("bit_r50x3", "BiTR50x3")
BiTR101x1 = _constructor("bit_r101x1", "BiTR101x1")
BiTR101x3 = _constructor("bit_r101x3", "BiTR101x3")
BiTR152x1 = _constructor("bit_r152x1", "BiTR152x1")
BiTR152x2 = _constructor("bit_r152x2", "BiTR152x2")
BiTR152x4 = _constructor("bit_r152x4", "BiTR152x4")
BiTR200x3 = _constructor("bit_r200x3", "BiTR200x3")
