"""What the small files beside a checkpoint say: timm and transformers publish them together."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from keras_vit.config import Preprocessing

_MAX_BYTES = 1_000_000  # such files have a few thousand
_GELUS = {
    "gelu": "exact",
    "gelu_pytorch_tanh": "tanh",
    "gelu_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
}
_RESAMPLES = {2: "bilinear", 3: "bicubic"}  # numbers of Pillow


def read_neighbours(path: pathlib.Path) -> dict[str, Any]:
    """Options from `config.json` and `preprocessor_config.json` beside a checkpoint.

    Args:
        path: The checkpoint.

    Returns:
        Fields of the configuration, empty where nothing lies beside it. Whatever cannot be
        understood there is left out: such files are not part of the checkpoint.
    """
    options: dict[str, Any] = {}
    config = _read(path.with_name("config.json"))
    if config.get("hidden_act") in _GELUS:
        options["gelu"] = _GELUS[config["hidden_act"]]
    epsilon = config.get("layer_norm_eps")
    if isinstance(epsilon, float) and 0 < epsilon < 1:
        options["norm_epsilon"] = epsilon
    preprocessing = _timm(config.get("pretrained_cfg")) or _transformers(
        _read(path.with_name("preprocessor_config.json"))
    )
    if preprocessing is not None:
        options["preprocessing"] = preprocessing
    return options


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _timm(fields: Any) -> Preprocessing | None:
    """timm's `pretrained_cfg`: statistics in [0, 1], a centre crop."""
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
    """transformers' image processor: statistics in [0, 1], a crop where it says so."""
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
