"""What a name of timm says of a checkpoint: the settings that no array tells, preprocessing."""

from __future__ import annotations

import itertools
import pathlib
import re
from typing import Any

from keras_vit.config import Preprocessing, ResNetConfig, field_value
from keras_vit.families.table import FAMILIES
from keras_vit.variants import NAMES, find_config, split_image_size

# What is unlike a plain ViT, by names where no array shows it.
OTHERS = {name: text for family in FAMILIES for name, text in family.timm_others.items()}
# What no array tells: of every model, and of those with another value than most.
_ALWAYS = ("gelu", "norm_epsilon", "num_heads", "pooling", "rope", "norm_after_blocks")
_SELDOM = {"position_embedding": "none", "norm": "rms"}


def timm_settings(name: str) -> dict[str, Any] | None:
    """Settings of a name of timm, fields of the configuration; `None` for an unknown name."""
    known = NAMES.get(split_image_size(name)[0])
    if known is None or known.timm is None:
        return None
    config = find_config(name)
    if isinstance(config, ResNetConfig):
        return {}
    fields = list(_ALWAYS)
    fields += [key for key, value in _SELDOM.items() if field_value(config, key) == value]
    if config.pooling == "map" or config.block.rope:
        fields += ["map_prefix_tokens", *(["map_heads"] if config.map_heads else [])]
    if config.takes_patches:
        fields.append("max_num_patches")
    return {**{field: field_value(config, field) for field in fields}, **known.settings}


def timm_pixels(name: str) -> Preprocessing:
    """Preprocessing of a name of timm, with its tag or as timm's default for the name."""
    fields: dict[str, Any] = {"interpolation": "bicubic", "crop_ratio": 0.9, "library": "timm"}
    for family in FAMILIES:
        for pattern, changes in family.timm_images:
            if re.fullmatch(pattern, name):
                fields.update(changes)
    return Preprocessing(**fields)


def name_in_path(path: pathlib.Path) -> str | None:
    """Name and tag of timm in the path of a downloaded file, `hf://timm/NAME.TAG` or a copy.

    Both caches, that of the hub's client and ours, keep the name of the repository.
    """
    for owner, repository in itertools.pairwise(path.parts[:-1]):
        found = re.fullmatch(r"models--timm--(.+)", repository)
        name = found[1] if found else repository if owner == "timm" else ""
        if timm_settings(name.partition(".")[0]) is not None:
            return name
    return None
