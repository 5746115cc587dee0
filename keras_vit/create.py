"""`create_model` and the constructors: models by the name of their architecture."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import pathlib
from collections.abc import Callable, Collection
from typing import Any

import keras

from keras_vit.config import ResNetConfig, ViTConfig
from keras_vit.errors import printable
from keras_vit.families.augreg import is_augreg_name
from keras_vit.hub.addresses import is_address
from keras_vit.hub.card import OPEN_LICENCES, Card
from keras_vit.hub.catalog import find_tag, find_weights
from keras_vit.models.heads import shape_of
from keras_vit.models.naflex import build_naflex
from keras_vit.models.resizing import copy_weights
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from keras_vit.runtime.model import Model, with_config
from keras_vit.variants import chosen_fields, configure, find_config, find_variant
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.inspection import adapt_config, find_size, inspect_checkpoint
from keras_vit.weights.load import check_supported, load_checkpoint
from keras_vit.weights.matching import HEADS
from keras_vit.weights.weights_h5 import config_of_file, load_keras_weights

_LOGGER = logging.getLogger("keras_vit")


def create_model(
    variant: str,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: str | None = None,
    include_preprocessing: bool = True,
    name: str | None = None,
    prefix: str | None = None,
    **options: Any,
) -> Model:
    """Creates a model by the name of its architecture.

    Args:
        variant: `"vit_b16"`, `"B/16"`, `"r50_vit_b16"`, `"bit_r50x1"` or another name of
            `list_variants`; `"vit_base_patch16_384"` or another name of timm's plain ViTs.
        include_top: Whether the model ends in a classification head.
        weights: `None` for the paper's random initialisation; a tag of published weights, such as
            `"augreg_in21k"`, see `list_weights`; the path of a checkpoint in a layout of the
            official projects, timm or transformers (`.npz`, `.safetensors`) or of Keras
            (`.weights.h5`); its address (`https://`, `gs://`, `hf://owner/name`). The
            configuration follows the checkpoint, except for the options given here, and
            `model.load_report` lists the outcome for every array. A file of Keras has none: only
            image size and head follow the file, the rest is given here or of the architecture.
        input_tensor: Symbolic images of shape `(B, H, W, C)` to use as the input: a `keras.Input`,
            or the output of layers that follow one. Those layers become part of the model, which
            then has no `config`. Its shape is that of the images where `input_shape` is not given.
        input_shape: Height and width in pixels, and channels. `None` takes the variant's own; with
            `weights` those of their preprocessing or positions, as in `from_pretrained`.
            `(None, None, channels)` makes a model for images of any size: learned positions are
            those of the checkpoint, resized to the grid of every batch, and images are filled up to
            whole patches. See `docs/dense.md`.
        pooling: How tokens become the input of the head: `"token"`, `"gap"` or `"map"`; `None`
            takes the variant's own. Without a head: how they become the output, of shape
            `(B, D)`; `None` returns all tokens after the last norm, of shape `(B, T, D)`. A BiT
            ResNet has `"gap"` alone; without it, it returns its feature maps, of shape
            `(B, H / 32, W / 32, D)`.
        classes: Outputs of the head. Where the checkpoint's head has as many, it is loaded;
            otherwise the head starts at zero.
        classifier_activation: Activation of the head; `None` returns logits.
        include_preprocessing: Whether the model takes pixels in [0, 255]. Otherwise it takes the
            range its architecture was trained on, [-1, 1] in the official code.
        name: Name of the model; `None` takes the variant's.
        prefix: As in `load_weights`, for `weights` of a checkpoint.
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
    input_shape = input_shape or shape_of(input_tensor)
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
    is_keras = os.fspath(weights or "").endswith(".weights.h5")
    if prefix is not None and (weights is None or is_keras):
        raise ValueError(
            "`prefix` is of names in a checkpoint, an .npz or .safetensors file. Received: prefix="
            f"{prefix!r}, weights={weights!r}. Leave it out."
        )
    if weights is None:
        return build(config, name, input_tensor)
    card = find_tag(variant, weights)
    path = find_weights(weights, card)
    chosen = chosen_fields(variant, include_top, input_shape, pooling, options)
    if path.name.endswith(".weights.h5"):
        of_file = config_of_file(config, path, find_config(variant).pooling)
        return _build_from_keras(path, config, of_file, chosen, name, input_tensor)
    with open_checkpoint(path, prefix) as checkpoint:
        return build_from(checkpoint, config, chosen, card, name, input_tensor)


def build(
    config: ViTConfig | ResNetConfig,
    name: str | None = None,
    input_tensor: keras.KerasTensor | None = None,
) -> Model:
    """Builds the model of a configuration of either family.

    Args:
        config: A `ViTConfig` or a `ResNetConfig`.
        name: Name of the model.
        input_tensor: As in `create_model`.

    Returns:
        A `keras_vit.Model`, see `build_vit`, `build_naflex` and `build_resnet`.
    """
    if isinstance(config, ResNetConfig):
        return build_resnet(config, name, input_tensor)
    if not config.takes_patches:
        return build_vit(config, name, input_tensor)
    if input_tensor is not None:
        raise ValueError(
            "A model of images of any aspect ratio (max_num_patches) has two inputs, `patches` "
            "and `grid`. Received: input_tensor. Call the model with a dict of both."
        )
    return build_naflex(config, name)


def build_from(
    checkpoint: Checkpoint,
    config: ViTConfig | ResNetConfig,
    chosen: set[str],
    card: Card | None = None,
    name: str | None = None,
    input_tensor: keras.KerasTensor | None = None,
    found: Collection[str] = (),
) -> Model:
    """Builds a model as a checkpoint asks for, and loads it.

    Args:
        checkpoint: The open file.
        config: The variant's configuration, with the caller's changes.
        chosen: Fields that the caller chose; the others follow the checkpoint.
        card: What is published about the file.
        name: Name of the model.
        input_tensor: As in `create_model`.
        found: Those of `chosen` that were found in the file, rather than given by the caller.

    Returns:
        The model, with a `load_report`.

    Raises:
        CheckpointError: If the file is damaged.
        CheckpointMismatchError: If it does not fit the model.
    """
    known: dict[str, Any] = {}
    if card is not None:
        known = {"image_size": card.image_size, "preprocessing": card.preprocessing, **card.options}
    if card is None and is_augreg_name(checkpoint.file.path.name):
        known["dropout_rate"] = 0.0  # as its fine-tuning, and its cards
    if "preprocessing" in checkpoint.sidecar.settings:  # of the file itself
        known.pop("preprocessing", None)
    info = inspect_checkpoint(checkpoint)
    if info.input_size is not None:
        known.pop("image_size", None)
    check_supported(checkpoint, {*chosen, *known})
    origins = {field: setting.origin for field, setting in checkpoint.settings.items()}
    if "image_size" not in {*chosen, *known}:
        origins["image_size"] = find_size(config, info, chosen).origin
    config = adapt_config(config, info, chosen, known)
    model = build(config, name, input_tensor)
    if card is not None:
        origins.update(dict.fromkeys(known, f"the card {card.name}"))
    origins.update(dict.fromkeys(chosen - set(found), "the caller"))
    if config.pooling is None:
        origins["pooling"] = "include_top=False"
    part = _after_input(model, input_tensor, config)
    model.load_report = load_checkpoint(
        part,
        checkpoint,
        resize_patches=(card is not None and card.flexible) or "patch_size" in chosen,
        position_resize=getattr(config, "position_resize", None)
        if "position_resize" in chosen
        else None,
        origins=origins,
        preprocessing=None
        if "preprocessing" in chosen
        else known.get("preprocessing", checkpoint.options.get("preprocessing")),
    )
    model.class_names = part.class_names
    state_licence(model, card)
    return model


def _build_from_keras(
    path: pathlib.Path,
    config: ViTConfig | ResNetConfig,
    of_file: ViTConfig | ResNetConfig,
    chosen: set[str],
    name: str,
    input_tensor: keras.KerasTensor | None,
) -> Model:
    """Builds a model, and loads a `.weights.h5` file of another image size or head."""
    leave = () if config.classes == of_file.classes else HEADS
    changes: dict[str, Any] = {}
    if "image_size" not in chosen:
        changes["image_size"] = of_file.image_size
    if isinstance(of_file, ViTConfig) and "pre_logits" not in chosen:
        changes["pre_logits"] = None if leave else of_file.pre_logits  # as the paper fine-tunes
    config = dataclasses.replace(config, **changes)
    model = build(config, name, input_tensor)
    part = _after_input(model, input_tensor, config)
    if config == of_file:
        model.load_report = load_keras_weights(part, path, chosen)
        return model
    source = build(of_file, name)
    report = load_keras_weights(source, path, chosen)
    copy_weights(source, part, leave)
    old = {weight.path: weight.shape for weight in source.weights}
    new = {weight.path: weight.shape for weight in part.weights}
    fresh = tuple(path for path in new if path.split("/")[0] in leave)
    resized = [path for path, shape in new.items() if path not in fresh and shape != old[path]]
    model.load_report = dataclasses.replace(
        report,
        loaded=tuple(path for path in new if path not in fresh),
        resized=dict.fromkeys(resized, _grids(of_file, config)),
        fresh=fresh,
        left_out=tuple(path for path in old if path not in new or path in fresh),
    )
    return model


def _grids(old: ViTConfig | ResNetConfig, new: ViTConfig | ResNetConfig) -> str:
    """Describes the resizing of positions for the load report."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig):
        return ""  # which has no positions
    grids = (f"{rows} x {columns}" for rows, columns in (old.grid, new.grid))
    return f"{' to '.join(grids)} patches ({new.position_resize})"


def state_licence(model: Model, card: Card | None) -> None:
    """Puts the licence on the load report, and logs one that asks for more than to be named."""
    report = model.load_report
    if card is not None and card.licence:
        report = dataclasses.replace(report, licence=card.licence)
        model.load_report = report
    if report.licence and report.licence.lower() not in OPEN_LICENCES:
        note = f" {card.note}" if card is not None and card.note else ""
        _LOGGER.warning(
            "Licence of the weights: %s (%s).%s",
            *map(printable, (report.licence, report.path, note)),
        )


def _after_input(
    model: Model, input_tensor: keras.KerasTensor | None, config: ViTConfig | ResNetConfig
) -> Model:
    """The part of a model that a checkpoint holds: its layers after `input_tensor`."""
    if model.config is not None:
        return model
    return with_config(Model(input_tensor, model.output, name=model.name), config)


def _check_is_name(variant: str) -> None:
    text = os.fspath(variant)
    if is_address(text) or os.path.isfile(text):
        raise ValueError(
            f"{text!r} is a checkpoint, not the name of an architecture. Use "
            "`from_pretrained`, which finds the architecture, or name it: "
            f'create_model("vit_b16", weights={text!r}).'
        )


_SIGNATURE = inspect.signature(create_model)
_SIGNATURE = _SIGNATURE.replace(
    parameters=[p for p in _SIGNATURE.parameters.values() if p.name not in ("variant", "prefix")]
)


def _constructor(variant: str, title: str) -> Callable[..., Model]:
    """The function of one variant, with the signature of `keras.applications`."""

    def construct(*arguments: Any, **options: Any) -> Model:
        return create_model(variant, *arguments, **options)

    construct.__signature__ = _SIGNATURE  # type: ignore[attr-defined]
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
