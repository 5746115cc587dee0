"""Writing of sidecar files: `config.json` and `preprocessor_config.json` as their project has them.

The inverse of `sidecar.py`, from the same table of keys. What only the classes of the other project
read, since arrays tell it here, stands in the tables below.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from keras_vit.config import (
    Preprocessing,
    ResNetConfig,
    ViTConfig,
    field_names,
    field_value,
    replace_fields,
)
from keras_vit.variants import find_config
from keras_vit.weights import sidecar_keys as keys
from keras_vit.weights.layout import Layout
from keras_vit.weights.processors import OWN, timm_preprocessing, transformers_preprocessing
from keras_vit.weights.sidecar import CONFIG, PREPROCESSOR
from keras_vit.weights.sidecar_keys import Images, Only, Rules, Sets, Size
from keras_vit.weights.timm_names import NAMES, timm_settings

_LOGGER = logging.getLogger("keras_vit")
Fields = dict[str, Any]
Config = ViTConfig | ResNetConfig


class _Class(NamedTuple):
    """Classes of transformers for the files of a layout.

    Args:
        model_type: As in `config.json`.
        headless: Class without a head.
        head: Class with a head; `None` if there is none.
        more: Keys that arrays tell here, from the configuration.
        square: Whether images are squares there.
    """

    model_type: str
    headless: str
    head: str | None
    more: Callable[[Any], Fields] = lambda config: {}
    square: bool = False


def _dinov2(config: ViTConfig) -> Fields:
    ratio = _whole_ratio(config, _gated_units if config.block.swiglu else None)
    return {"use_swiglu_ffn": config.block.swiglu, "mlp_ratio": ratio, "use_mask_token": True}


def _gated_units(width: int, ratio: int) -> int:
    return (int(width * ratio * 2 / 3) + 7) // 8 * 8  # as `Dinov2SwiGLUFFN`


def _whole_ratio(config: ViTConfig, units: Callable[[int, int], int] | None = None) -> int:
    """The `mlp_ratio` of DINOv2, a whole number there."""
    units = units or (lambda width, ratio: width * ratio)
    for ratio in range(1, 17):
        if units(config.width, ratio) == config.block.mlp_dim:
            return ratio
    raise ValueError(
        "The `mlp_dim` of transformers' DINOv2 follows from a whole `mlp_ratio`. Received: width="
        f"{config.width}, mlp_dim={config.block.mlp_dim}, swiglu={config.block.swiglu}. Save with "
        'layout="timm".'
    )


def _dinov3(config: ViTConfig) -> Fields:
    parts = {"query": "query", "key": "key", "value": "value", "projection": "proj", "mlp": "mlp"}
    biases = {
        f"{theirs}_bias": ours not in config.block.without_bias for ours, theirs in parts.items()
    }
    act = {"hidden_act": "silu"} if config.block.swiglu else {}
    registers = {"num_register_tokens": config.num_registers}
    return {**biases, **registers, "use_gated_mlp": config.block.swiglu, **act}


def _beit(config: ViTConfig) -> Fields:
    return {
        "use_absolute_position_embeddings": config.position_embedding in ("learned", "sincos_2d"),
        "use_relative_position_bias": config.position_embedding == "relative_bias",
        "use_mean_pooling": config.norm_after_pooling,
        "layer_scale_init_value": config.block.layer_scale or 0,
    }


def _bit(config: ResNetConfig) -> Fields:
    root = 64 * config.width_factor
    return {
        "depths": list(config.stages),
        "hidden_sizes": [4 * root * 2**stage for stage in range(len(config.stages))],
        "embedding_size": root,
    }


_CLASSES: dict[str, _Class] = {
    "transformers_vit": _Class("vit", "ViTModel", "ViTForImageClassification"),
    "transformers_deit": _Class("deit", "DeiTModel", "DeiTForImageClassificationWithTeacher"),
    "transformers_dinov2": _Class("dinov2", "Dinov2Model", "Dinov2ForImageClassification", _dinov2),
    "transformers_registers": _Class(
        "dinov2_with_registers",
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
        lambda config: {**_dinov2(config), "num_register_tokens": config.num_registers},
    ),
    "transformers_siglip": _Class(
        "siglip_vision_model",
        "SiglipVisionModel",
        "SiglipForImageClassification",
        lambda config: {"vision_use_head": config.pooling == "map"},
        square=True,
    ),
    "transformers_clip": _Class(
        "clip_vision_model",
        "CLIPVisionModel",
        "CLIPVisionModelWithProjection",
        lambda config: {} if config.classes is None else {"projection_dim": config.classes},
        square=True,
    ),
    "transformers_dinov3": _Class("dinov3_vit", "DINOv3ViTModel", None, _dinov3, square=True),
    "transformers_aimv2": _Class("aimv2_vision_model", "Aimv2VisionModel", None, square=True),
    "transformers_beit": _Class("beit", "BeitModel", "BeitForImageClassification", _beit),
    "transformers_bit": _Class("bit", "BitModel", "BitForImageClassification", _bit),
}
_NAFLEX = _Class(
    "siglip2_vision_model",
    "Siglip2VisionModel",
    "Siglip2ForImageClassification",
    lambda config: {
        "vision_use_head": config.pooling == "map",
        "num_patches": config.grid[0] * config.grid[1],
    },
    square=True,
)


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
    if layout.name.startswith("transformers"):
        return _describe_transformers(config, layout, class_names)
    return {CONFIG: _describe_timm(config, layout, class_names)}


def _describe_transformers(
    config: Config, layout: Layout, class_names: Sequence[str]
) -> dict[str, Fields]:
    if isinstance(config, ViTConfig) and config.stem is not None:
        raise ValueError('transformers has no hybrids since version 5. Save with layout="timm".')
    naflex = isinstance(config, ViTConfig) and config.takes_patches
    kind = _NAFLEX if naflex else _CLASSES[layout.name]
    if kind.square and (_is_oblong(config.image_size) or _is_oblong(_patch_size(config))):
        raise ValueError(
            f"{kind.headless} of transformers takes square images and patches. Received: "
            f"image_size={config.image_size}, patch_size={_patch_size(config)}."
        )
    name = kind.headless if config.classes is None else kind.head
    if name is None:
        raise ValueError(f"transformers has no {kind.headless} with a head that is known here.")
    rules = {
        key: rule for key, rule in keys.TRANSFORMERS[kind.model_type].items()
        if key not in keys.COMMON
    }  # fmt: skip
    fields = {"model_type": kind.model_type, **_stated(rules, config), **kind.more(config)}
    if config.classes is not None and name.startswith("Siglip"):  # a tower of their classifier
        fields = {"model_type": kind.model_type.removesuffix("_vision_model"),
                  "vision_config": fields}  # fmt: skip
    content = {"architectures": [name], **fields}
    if config.classes is not None and "projection_dim" not in content:
        names = dict(enumerate(class_names or (f"LABEL_{i}" for i in range(config.classes))))
        content["id2label"] = {str(number): label for number, label in names.items()}
        content["label2id"] = {label: number for number, label in names.items()}
    return {CONFIG: content, PREPROCESSOR: _transformers_images(config)}


def _stated(rules: Rules, config: Config) -> Fields:
    """Values of the keys that have a rule, which state fields of the configuration."""
    fields: Fields = {}
    for key, rule in rules.items():
        if isinstance(rule, Sets) and rule.field in field_names(config):
            fields[key] = _theirs(rule, field_value(config, rule.field), key)
        elif isinstance(rule, Size) and rule.field in field_names(config):
            fields[key] = _plain(field_value(config, rule.field))
        elif isinstance(rule, Only) and rule.values:
            fields[key] = rule.values[0]
        elif isinstance(rule, Images) and config.image_size is not None:
            fields[key] = _plain(config.image_size)
    return fields


def _theirs(rule: Sets, value: Any, key: str) -> Any:
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


def _is_oblong(size: tuple[int, int] | None) -> bool:
    return size is not None and size[0] != size[1]


def _patch_size(config: Config) -> tuple[int, int] | None:
    return config.patch_size if isinstance(config, ViTConfig) else None


# timm: a name whose function makes the model, by what its arguments cannot say.
_PLAIN, _CLIP, _BEIT = (
    "vit_base_patch16_224", "vit_base_patch16_clip_quickgelu_224", "beit_base_patch16_224",
)  # fmt: skip
_DISTILLED = "deit_base_distilled_patch16_224"
_HYBRIDS: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_base_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_BITS: dict[tuple[tuple[int, ...], int], str] = {
    ((3, 4, 6, 3), 1): "50x1", ((3, 4, 6, 3), 3): "50x3", ((3, 4, 23, 3), 1): "101x1",
    ((3, 4, 23, 3), 3): "101x3", ((3, 8, 36, 3), 2): "152x2", ((3, 8, 36, 3), 4): "152x4",
}  # fmt: skip
_POOLS = {"token": "token", "gap": "avg", "map": "map"}
_ACTIVATIONS = {"exact": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}
# Fields that tell models of timm's other classes apart, which have names alone.
_TELLING = (
    "patch_size", "width", "depth", "num_heads", "mlp_dim", "pooling", "class_token",
    "num_registers", "position_embedding", "rope", "gelu", "swiglu", "norm", "norm_epsilon",
    "norm_patches", "norm_before_blocks", "inner_norms", "norm_after_blocks", "norm_after_pooling",
    "without_bias", "map_heads", "map_mlp_dim", "max_num_patches",
)  # fmt: skip


def _describe_timm(config: Config, layout: Layout, class_names: Sequence[str]) -> Fields:
    height, width = config.image_size or (224, 224)
    if isinstance(config, ResNetConfig):
        name, args = _timm_bit(config)
        pool = "avg"
    else:
        name, args = _timm_vit(config, layout)
        pool = _POOLS.get(config.pooling or "", "")
    classes = config.classes or 0
    size = [config.channels, height, width]
    content: Fields = {
        "architecture": name,
        "num_classes": classes,
        "num_features": config.width,
        **({"global_pool": pool} if pool else {}),
        **({"label_names": list(class_names)} if class_names else {}),
        "model_args": args,
        "pretrained_cfg": {
            "num_classes": classes,
            "input_size": size,
            "fixed_input_size": isinstance(config, ViTConfig),
            **_timm_images(config.preprocessing, config.channels),
        },
    }
    own = _own_images(config.preprocessing, timm_preprocessing(content["pretrained_cfg"]), "timm")
    return {**content, **own}


def _timm_bit(config: ResNetConfig) -> tuple[str, Fields]:
    size = _BITS.get((config.stages, config.width_factor))
    if size is None:
        raise ValueError(
            f"timm has no BiT of these sizes. Received: stages={config.stages}, width_factor="
            f'{config.width_factor}. Save with layout="transformers".'
        )
    return f"resnetv2_{size}_bit", {"in_chans": config.channels}


def _timm_vit(config: ViTConfig, layout: Layout) -> tuple[str, Fields]:
    image = {"img_size": _plain(config.image_size), "in_chans": config.channels}
    if layout.name not in ("timm", "timm_root") or config.block.rope or config.block.norm == "rms":
        return _timm_name(config), {} if config.takes_patches else image
    sizes = {
        "patch_size": _plain(config.patch_size),
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.block.num_heads,
        "mlp_ratio": _ratio(config),
        "init_values": config.block.layer_scale,
    }
    pool = {"global_pool": _POOLS[config.pooling]} if config.pooling else {}
    if config.position_embedding == "relative_bias":
        if config.block.norm_epsilon != 1e-6 or config.block.gelu != "exact":
            raise _no_such("norm_epsilon, gelu", (config.block.norm_epsilon, config.block.gelu))
        bias = {"qkv_bias": "query" not in config.block.without_bias}
        return _BEIT, {**image, **sizes, **pool, **bias}
    args = {
        **image,
        **sizes,
        **pool,
        "act_layer": _ACTIVATIONS[config.block.gelu],
        "class_token": config.class_token,
        "reg_tokens": config.num_registers,
        "no_embed_class": not (config.class_token and config.position_on_class_token),
        "pos_embed": "none" if config.position_embedding == "none" else "learn",
        "pre_norm": config.norm_before_blocks,
        "final_norm": config.norm_after_blocks,
        "fc_norm": config.norm_after_pooling,
    }
    if config.stem is not None:
        if config.stem.stages not in _HYBRIDS or config.stem.width_factor != 1:
            raise _no_such("stem", config.stem)
        return _check_epsilon(config, _HYBRIDS[config.stem.stages]), args
    if config.distillation_token:
        return _check_epsilon(config, _DISTILLED), {
            key: value for key, value in args.items() if key not in ("class_token", "fc_norm")
        }
    if config.block.norm_epsilon == 1e-5:
        return _CLIP, args
    return _check_epsilon(config, _PLAIN), args


def _check_epsilon(config: ViTConfig, name: str) -> str:
    if config.block.norm_epsilon != 1e-6:
        raise _no_such("norm_epsilon", config.block.norm_epsilon)
    return name


def _no_such(field: str, value: Any) -> ValueError:
    return ValueError(
        f'config.json of timm cannot say {field}={value!r}. Save with layout="transformers", or '
        "the model with `model.save`."
    )


def _timm_name(config: ViTConfig) -> str:
    """The name of timm that makes a model, of a class whose arguments are not in the table."""
    for name in NAMES:
        try:
            theirs = find_config(name)
        except ValueError:
            continue
        own = replace_fields(theirs, **_settings_of(name, theirs))
        if all(field_value(own, field) == field_value(config, field) for field in _TELLING):
            return name
    raise ValueError(
        "timm has models with rotary positions, RMS norms or images of any aspect ratio by name "
        "alone, and none has these sizes and options. Save the model with `model.save`."
    )


def _settings_of(name: str, config: Config) -> Fields:
    fields = field_names(config)
    return {key: value for key, value in (timm_settings(name) or {}).items() if key in fields}


def _ratio(config: ViTConfig) -> float:
    """The `mlp_ratio` whose product with the width, rounded down, is the hidden dimension."""
    ratio = config.block.mlp_dim / config.width
    while int(config.width * ratio) < config.block.mlp_dim:
        ratio = math.nextafter(ratio, math.inf)
    return int(ratio) if ratio == int(ratio) else ratio


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


# By how images are cropped; `CLIP` resizes the shorter side, `DeiT` both sides.
_PROCESSORS = {None: "ViT", "center": "CLIP", "squash": "DeiT"}


def _transformers_images(config: Config) -> Fields:
    """Content of `preprocessor_config.json`."""
    images, channels = config.preprocessing, config.channels
    size = config.image_size or (224, 224)
    mean, std = ([value / 255 for value in each] for each in images.per_channel(channels))
    mode = None if images.crop_ratio is None else images.crop_mode
    resamples = {"bilinear": 2, "bicubic": 3}
    if mode not in _PROCESSORS or images.interpolation not in resamples:
        raise ValueError(
            "The image processors of transformers cannot resize so. Received: interpolation="
            f'{images.interpolation!r}, crop_mode={images.crop_mode!r}. Save with layout="timm".'
        )
    content: Fields = {
        "image_processor_type": f"{_PROCESSORS[mode]}ImageProcessor",
        "do_resize": True,
        "size": {"height": size[0], "width": size[1]},
        "resample": resamples[images.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }
    if mode is not None and images.crop_ratio is not None:
        larger = [math.floor(side / images.crop_ratio) for side in size]
        content["do_center_crop"] = True
        content["crop_size"] = content["size"]
        content["size"] = {"height": larger[0], "width": larger[1]}
        if mode == "center":
            content["size"] = {"shortest_edge": min(larger)}
    if isinstance(config, ViTConfig) and config.takes_patches:
        content = {
            **{key: value for key, value in content.items() if "size" not in key},
            "image_processor_type": "Siglip2ImageProcessor",
            "patch_size": config.patch_size[0],
            "max_num_patches": config.max_num_patches,
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
