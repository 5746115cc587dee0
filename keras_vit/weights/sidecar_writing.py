"""Writing of sidecar files: `config.json` and `preprocessor_config.json` as their project has them.

The inverse of `sidecar.py`, from the same tables of keys.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.config import (
    Preprocessing,
    ResNetConfig,
    ViTConfig,
    field_names,
    field_value,
    replace_fields,
)
from keras_vit.families import keys
from keras_vit.families.keys import Fields
from keras_vit.families.rules import Layout, always
from keras_vit.variants import NAMES, find_config
from keras_vit.weights.image_processors import (
    OWN,
    PROCESSORS,
    WRITTEN,
    timm_preprocessing,
    transformers_preprocessing,
)
from keras_vit.weights.sidecar import CONFIG, MODEL_TYPES, PREPROCESSOR, TIMM_MODELS, type_of
from keras_vit.weights.timm_settings import timm_settings

_LOGGER = logging.getLogger("keras_vit")
Config = ViTConfig | ResNetConfig


def describe(config: Config, layout: Layout, class_names: Sequence[str]) -> dict[str, Fields]:
    """Makes the contents of the sidecar files by their names.

    Args:
        config: Configuration of the model.
        layout: Layout of its file.
        class_names: Names of the classes; empty if there are none.

    Returns:
        `config.json`, and with transformers `preprocessor_config.json`.

    Raises:
        ValueError: If the project has no such model or preprocessing; the message names what.
    """
    if layout.project == "transformers":
        return _describe_transformers(config, layout, class_names)
    return {CONFIG: _describe_timm(config, class_names)}


def _describe_transformers(
    config: Config, layout: Layout, class_names: Sequence[str]
) -> dict[str, Fields]:
    model_type = type_of(layout.name, lambda kind: kind.holds(config)) or ""
    kind = MODEL_TYPES[model_type]
    patch_size = config.patch_size if isinstance(config, ViTConfig) else None
    sizes = [size for size in (config.image_size, patch_size) if size is not None]
    if kind.square and any(height != width for height, width in sizes):
        raise ValueError(
            f"{kind.headless} of transformers takes square images and patches. Received: "
            f"image_size={config.image_size}, patch_size={patch_size}."
        )
    name = kind.headless if config.classes is None else kind.head
    if name is None:
        raise ValueError(f"transformers has no {kind.headless} with a head that is known here.")
    rules = {key: rule for key, rule in kind.rules.items() if key not in keys.COMMON}
    fields = {"model_type": model_type, **_stated(rules, config), **kind.more(config)}
    if config.classes is not None and kind.parent:
        fields = {"model_type": kind.parent, "vision_config": fields}
    content = {"architectures": [name], **fields}
    if config.classes is not None and kind.labels:
        names = list(class_names or (f"LABEL_{i}" for i in range(config.classes)))
        content["id2label"] = {str(number): label for number, label in enumerate(names)}
        content["label2id"] = {label: number for number, label in enumerate(names)}
    return {CONFIG: content, PREPROCESSOR: _transformers_images(config, kind)}


def _stated(rules: keys.Rules, config: Config) -> Fields:
    """Values of the keys that have a rule, which state fields of the configuration."""
    fields: Fields = {}
    for key, rule in rules.items():
        if isinstance(rule, keys.Sets) and field_value(config, rule.field, None) is not None:
            fields[key] = _theirs(rule, field_value(config, rule.field), key)
        elif isinstance(rule, keys.Size) and rule.field in field_names(config):
            fields[key] = _plain(field_value(config, rule.field))
        elif isinstance(rule, keys.Only) and rule.values:
            fields[key] = rule.values[0]
        elif isinstance(rule, keys.Images) and config.image_size is not None:
            fields[key] = _plain(config.image_size)
    return fields


def _theirs(rule: keys.Sets, value: Any, key: str) -> Any:
    """The value of a key that means a value of a field."""
    if isinstance(rule.values, type):
        return value
    if not isinstance(rule.values, Mapping):  # rotary positions, by their base
        return value.base
    for theirs, ours in rule.values.items():
        if ours == value:
            return theirs
    raise ValueError(
        f"The other project has no {rule.field}={value!r}: its {key} can be "
        f"{', '.join(map(repr, rule.values.values()))}. Save the model with `model.save`."
    )


def _plain(value: Any) -> Any:
    """A size as one number where it is a square."""
    if not isinstance(value, tuple):
        return value
    return value[0] if len(set(value)) == 1 else list(value)


# Fields that tell models of timm's other classes apart, which have names alone.
_TELLING = (
    "patch_size", "width", "depth", "num_heads", "mlp_dim", "pooling", "class_token",
    "num_registers", "position_embedding", "rope", "gelu", "swiglu", "norm", "norm_epsilon",
    "norm_patches", "norm_before_blocks", "inner_norms", "norm_after_blocks", "norm_after_pooling",
    "without_bias", "qk_norm", "map_heads", "map_mlp_dim", "max_num_patches",
)  # fmt: skip


def _describe_timm(config: Config, class_names: Sequence[str]) -> Fields:
    height, width = config.image_size or (224, 224)
    model = next(model for model in (*TIMM_MODELS, *_BY_NAME) if model.holds(config))
    rules = model.rules or keys.TIMM_ARGS
    written = {key: rules[key] for key in model.written.split()}
    name, args = model.name(config), {**_stated(written, config), **model.more(config)}
    classes = config.classes or 0
    content: Fields = {
        "architecture": name,
        "num_classes": classes,
        "num_features": config.width,
        **_stated({"global_pool": rules["global_pool"]}, config),
        **({"label_names": list(class_names)} if class_names else {}),
        "model_args": args,
        "pretrained_cfg": {
            "num_classes": classes,
            "input_size": [config.channels, height, width],
            "fixed_input_size": isinstance(config, ViTConfig),
            **_timm_images(config.preprocessing, config.channels),
        },
    }
    own = _own_images(config.preprocessing, timm_preprocessing(content["pretrained_cfg"]), "timm")
    return {**content, **own}


def _timm_name(config: Config) -> str:
    """The name of timm that makes a model, of a class whose arguments are not in the table."""
    for name in (each.timm for each in NAMES.values() if each.timm is not None):
        theirs = find_config(name)
        if not isinstance(theirs, ViTConfig):
            continue
        known, settings = field_names(theirs), timm_settings(name) or {}
        own = replace_fields(theirs, **{key: settings[key] for key in settings if key in known})
        if all(field_value(own, field) == field_value(config, field) for field in _TELLING):
            return name
    raise ValueError(
        "timm has models with rotary positions, gated MLPs, biases in some dense layers or images "
        "of any aspect ratio by name alone, and none has these sizes and options. Save the model "
        "with `model.save`."
    )


# Of models that have names alone.
_BY_NAME = (
    keys.TimmModel(lambda config: config.takes_patches, _timm_name, written=""),
    keys.TimmModel(always, _timm_name),
)


def _timm_images(images: Preprocessing, channels: int) -> Fields:
    """Fields of `pretrained_cfg` about images."""
    mean, std = ([value / 255 for value in each] for each in images.per_channel(channels))
    whole = images.crop_ratio is None
    return {
        "mean": mean,
        "std": std,
        "interpolation": images.interpolation,
        "crop_pct": 1.0 if whole else images.crop_ratio,
        "crop_mode": "squash" if whole else images.crop_mode,
    }


def _transformers_images(config: Config, kind: keys.ModelType) -> Fields:
    """Content of `preprocessor_config.json`."""
    images, channels = config.preprocessing, config.channels
    size = config.image_size or (224, 224)
    mean, std = ([value / 255 for value in each] for each in images.per_channel(channels))
    mode = "whole" if images.crop_ratio is None else images.crop_mode
    resamples = {"bilinear": 2, "bicubic": 3}
    if mode not in WRITTEN or images.interpolation not in resamples:
        raise ValueError(
            "The image processors of transformers cannot resize so. Received: interpolation="
            f'{images.interpolation!r}, crop_mode={images.crop_mode!r}. Save with layout="timm".'
        )
    content: Fields = {
        "image_processor_type": f"{WRITTEN[mode]}ImageProcessor",
        "do_resize": True,
        "size": {"height": size[0], "width": size[1]},
        "resample": resamples[images.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }
    if images.crop_ratio is not None:
        larger = [math.floor(side / images.crop_ratio) for side in size]
        content["do_center_crop"] = True
        content["crop_size"] = content["size"]
        content["size"] = {"height": larger[0], "width": larger[1]}
        if mode == "center":
            content["size"] = {"shortest_edge": min(larger)}
    if kind.processor is not None:
        content = {
            **{key: value for key, value in content.items() if "size" not in key},
            "image_processor_type": f"{kind.processor}ImageProcessor",
            **_stated(PROCESSORS[kind.processor].rules, config),
        }
    own = _own_images(images, transformers_preprocessing(content), "transformers")
    return {**content, **own}


def _own_images(ours: Preprocessing, read: Preprocessing, project: str) -> Fields:
    """What the format cannot say of the preprocessing, for this package alone."""
    names = ("interpolation", "crop_ratio", "library", "crop_mode", "exif_orientation")
    own = {
        name: getattr(ours, name) for name in names if getattr(ours, name) != getattr(read, name)
    }
    if "library" in own:
        _LOGGER.warning(
            "The model resizes images as %s does, and %s resizes them otherwise: pixels of images "
            "of another size than the model's will differ there.", ours.library, project
        )  # fmt: skip
    return {OWN: own} if own else {}
