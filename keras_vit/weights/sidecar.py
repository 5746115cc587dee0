"""Sidecar files of a checkpoint: the JSON that timm and transformers publish with it."""

from __future__ import annotations

import json
import pathlib
from typing import Any, NamedTuple

from keras_vit.weights.processors import timm_preprocessing, transformers_preprocessing

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

    Raises:
        CheckpointError: If the preprocessing that they state cannot be followed.
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
    timm, processor = _dict(config.get("pretrained_cfg")), _read(path.with_name(PREPROCESSOR))
    if "mean" in timm:
        options["preprocessing"] = timm_preprocessing(timm)
    elif processor:
        options["preprocessing"] = transformers_preprocessing(processor)
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
