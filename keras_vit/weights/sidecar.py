"""Sidecar files of a checkpoint: the JSON that timm and transformers publish with it."""

from __future__ import annotations

import json
import pathlib
from typing import Any, NamedTuple

from keras_vit.config import Preprocessing

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
NAMES = (CONFIG, PREPROCESSOR)

_MAX_BYTES = 1_000_000  # such files have a few thousand
_GELUS = {
    "gelu": "exact",
    "gelu_pytorch_tanh": "tanh",
    "gelu_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
}
_RESAMPLES = {2: "bilinear", 3: "bicubic"}  # numbers of Pillow


class Sidecar(NamedTuple):
    """Settings from sidecar files, which neither names nor shapes of a checkpoint tell.

    Args:
        options: Fields of the configuration.
        image_size: Pixels along (height, width) that the positions are for, or `None`.
    """

    options: dict[str, Any]
    image_size: tuple[int, int] | None


def read_sidecar(path: pathlib.Path) -> Sidecar:
    """Reads `config.json` and `preprocessor_config.json` in the folder of a checkpoint.

    Args:
        path: The checkpoint.

    Returns:
        Their settings. Values that cannot be understood are skipped: the files are not part of
        the checkpoint.
    """
    config = _read(path.with_name(CONFIG))
    tower = config.get("vision_config")  # of two towers
    tower = tower if isinstance(tower, dict) else config
    options: dict[str, Any] = {}
    if tower.get("hidden_act") in _GELUS:
        options["gelu"] = _GELUS[tower["hidden_act"]]
    epsilon = tower.get("layer_norm_eps")
    if isinstance(epsilon, float) and 0 < epsilon < 1:
        options["norm_epsilon"] = epsilon
    heads = _dict(config.get("model_args")).get("num_heads", tower.get("num_attention_heads"))
    if _is_count(heads):
        options["num_heads"] = heads
    preprocessing = _timm(config.get("pretrained_cfg")) or _transformers(
        _read(path.with_name(PREPROCESSOR))
    )
    if preprocessing is not None:
        options["preprocessing"] = preprocessing
    return Sidecar(options, _image_size(config, tower))


def _image_size(config: dict[str, Any], tower: dict[str, Any]) -> tuple[int, int] | None:
    """Reads transformers' `image_size`, one or two numbers, or timm's `input_size`, (C, H, W)."""
    size = tower.get("image_size")
    timm = _dict(config.get("pretrained_cfg")).get("input_size")
    if isinstance(timm, list):
        size = timm[1:]
    size = [size, size] if _is_count(size) else size
    if isinstance(size, list) and len(size) == 2 and all(map(_is_count, size)):
        return size[0], size[1]
    return None


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _timm(fields: Any) -> Preprocessing | None:
    """Reads timm's `pretrained_cfg`: statistics in [0, 1], a centre crop."""
    if not isinstance(fields, dict) or "mean" not in fields:
        return None
    crop = fields.get("crop_pct")
    squash = fields.get("crop_mode") == "squash"
    return _preprocessing(
        fields.get("mean"),
        fields.get("std"),
        fields.get("interpolation", "bicubic"),
        None if squash else crop,
    )


def _transformers(fields: dict[str, Any]) -> Preprocessing | None:
    """Reads transformers' image processor: statistics in [0, 1], a crop if it says so."""
    if "image_mean" not in fields:
        return None
    crop = None
    if fields.get("do_center_crop"):
        crop = _ratio(fields.get("crop_size"), fields.get("size"))
    resample = _RESAMPLES.get(fields.get("resample", 2), "bilinear")
    return _preprocessing(fields["image_mean"], fields.get("image_std"), resample, crop)


def _ratio(crop: Any, size: Any) -> float | None:
    crop, size = (
        value.get("height", value.get("shortest_edge")) if isinstance(value, dict) else value
        for value in (crop, size)
    )
    return crop / size if isinstance(crop, int) and isinstance(size, int) and size else None


def _preprocessing(mean: Any, std: Any, interpolation: Any, crop: Any) -> Preprocessing | None:
    try:
        return Preprocessing(
            mean=tuple(255 * float(value) for value in mean),
            std=tuple(255 * float(value) for value in std),
            interpolation=interpolation,
            crop_ratio=crop,
        )
    except (TypeError, ValueError):
        return None
