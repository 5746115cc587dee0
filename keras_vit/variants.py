"""Every named architecture, in one table, and the names that it answers to."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from keras_vit.config import ViTConfig, pair

# Table 1 of https://arxiv.org/abs/2010.11929 (B, L, H); Table 2 of https://arxiv.org/abs/2106.10270
# (Ti, S); Table 2 of https://arxiv.org/abs/2106.04560 (g, G). The published fine-tuning configs
# drop out 0.1 in L/16 and H/14 and nothing elsewhere.
_COLUMNS = ("patch_size", "width", "depth", "num_heads", "mlp_dim", "dropout_rate")
_VIT = {
    "vit_ti16": (16, 192, 12, 3, 768, 0.0),
    "vit_s16": (16, 384, 12, 6, 1536, 0.0),
    "vit_s32": (32, 384, 12, 6, 1536, 0.0),
    "vit_b8": (8, 768, 12, 12, 3072, 0.0),
    "vit_b16": (16, 768, 12, 12, 3072, 0.0),
    "vit_b32": (32, 768, 12, 12, 3072, 0.0),
    "vit_l16": (16, 1024, 24, 16, 4096, 0.1),
    "vit_l32": (32, 1024, 24, 16, 4096, 0.0),
    "vit_h14": (14, 1280, 32, 16, 5120, 0.1),
    "vit_giant14": (14, 1408, 40, 16, 6144, 0.0),
    "vit_gigantic14": (14, 1664, 48, 16, 8192, 0.0),
}


def _row(*values: Any) -> ViTConfig:
    return ViTConfig(**dict(zip(_COLUMNS, values, strict=True)))


VARIANTS: dict[str, ViTConfig] = {name: _row(*values) for name, values in _VIT.items()}

# The paper's short names, and timm's. Only the short g/14 and G/14 differ by case alone.
_SHORT = {"ti": "Ti", "giant": "g", "gigantic": "G"}
_TIMM = {
    "ti": "tiny",
    "s": "small",
    "b": "base",
    "l": "large",
    "h": "huge",
    "giant": "giant",
    "gigantic": "gigantic",
}


def _aliases() -> dict[str, str]:
    aliases = {}
    for name in _VIT:
        size = name.removeprefix("vit_").rstrip("0123456789")
        patch = name.removeprefix(f"vit_{size}")
        short = _SHORT.get(size, size.upper())
        aliases[f"{short}/{patch}"] = name
        aliases[f"vit_{short if short in 'gG' else size}{patch}"] = name
        aliases[f"ViT-{short}/{patch}"] = name
        aliases[f"ViT-{short}_{patch}"] = name  # stem of the official file
        aliases[f"vit_{_TIMM[size]}_patch{patch}"] = name
    return {alias: name for alias, name in aliases.items() if alias != name}


ALIASES: dict[str, str] = _aliases()


def list_variants(prefix: str = "") -> list[str]:
    """Names of all architectures that start with `prefix`, sorted."""
    return sorted(name for name in VARIANTS if name.startswith(prefix))


def find_variant(name: str) -> str:
    """The table's own name for any name a variant answers to: `"B/16"` gives `"vit_b16"`.

    Raises:
        ValueError: If nothing has that name. The message names the nearest ones.
    """
    stem, _ = _split_image_size(name)
    variant = stem if stem in VARIANTS else ALIASES.get(stem)
    if variant is None:
        nearest = difflib.get_close_matches(name, [*VARIANTS, *ALIASES], n=3, cutoff=0.4)
        advice = f"Did you mean {', '.join(map(repr, nearest))}? " if nearest else ""
        raise ValueError(
            f"There is no variant {name!r}. {advice}All: {', '.join(list_variants())}."
        )
    return variant


def find_config(name: str) -> ViTConfig:
    """The configuration of a named architecture.

    Args:
        name: A name of the table (`"vit_b16"`), of the paper (`"B/16"`, `"ViT-B/16"`), of an
            official file (`"ViT-B_16"`) or of timm (`"vit_base_patch16_384"`, whose last number
            is the image size in pixels).

    Returns:
        A `ViTConfig`.

    Raises:
        ValueError: If nothing has that name. The message names the nearest ones.
    """
    config = VARIANTS[find_variant(name)]
    _, image_size = _split_image_size(name)
    return config if image_size is None else dataclasses.replace(config, image_size=image_size)


def _split_image_size(name: str) -> tuple[str, tuple[int, int] | None]:
    """`"vit_base_patch16_384"` gives `("vit_base_patch16", (384, 384))`."""
    stem, _, size = str(name).rpartition("_")
    if stem in ALIASES and size.isdigit():
        return stem, pair("image_size", int(size))
    return str(name), None
