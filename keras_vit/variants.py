"""Every named architecture, in one table, and the names that it answers to."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from keras_vit.checks import pair
from keras_vit.config import ResNetConfig, ResNetStem, ViTConfig

# Table 1 of https://arxiv.org/abs/2010.11929 (B, L, H); Table 2 of https://arxiv.org/abs/2106.10270
# (Ti, S); Table 2 of https://arxiv.org/abs/2106.04560 (g, G); M is DeiT III's
# (https://arxiv.org/abs/2204.07118), So400m and g-opt are SigLIP's, in
# https://github.com/google-research/big_vision; patches of 8 and 14 pixels are DINO's and DINOv2's.
# The published fine-tuning configs drop out 0.1 in L/16 and H/14 and nothing elsewhere.
_COLUMNS = ("patch_size", "width", "depth", "num_heads", "mlp_dim", "dropout_rate")
_VIT = {
    "vit_ti16": (16, 192, 12, 3, 768, 0.0),
    "vit_s8": (8, 384, 12, 6, 1536, 0.0),
    "vit_s14": (14, 384, 12, 6, 1536, 0.0),
    "vit_s16": (16, 384, 12, 6, 1536, 0.0),
    "vit_s32": (32, 384, 12, 6, 1536, 0.0),
    "vit_m16": (16, 512, 12, 8, 2048, 0.0),
    "vit_b8": (8, 768, 12, 12, 3072, 0.0),
    "vit_b14": (14, 768, 12, 12, 3072, 0.0),
    "vit_b16": (16, 768, 12, 12, 3072, 0.0),
    "vit_b32": (32, 768, 12, 12, 3072, 0.0),
    "vit_l14": (14, 1024, 24, 16, 4096, 0.0),
    "vit_l16": (16, 1024, 24, 16, 4096, 0.1),
    "vit_l32": (32, 1024, 24, 16, 4096, 0.0),
    "vit_so400m14": (14, 1152, 27, 16, 4304, 0.0),
    "vit_so400m16": (16, 1152, 27, 16, 4304, 0.0),
    "vit_h14": (14, 1280, 32, 16, 5120, 0.1),
    "vit_giantopt16": (16, 1536, 40, 16, 6144, 0.0),
    "vit_giant14": (14, 1408, 40, 16, 6144, 0.0),
    "vit_gigantic14": (14, 1664, 48, 16, 8192, 0.0),
}

# Sections 3.1 and 4.1 of https://arxiv.org/abs/2010.11929 and the configs published with it: the
# transformer, the stages of its stem, and patches on the stem's maps. The number of a name is
# what stem and patch shrink the image by together; but R+Ti/16 shrinks it by 32, in the official
# code as here, for its root has a stride of 4. R50+B/32 and R50+L/16 were trained on JFT and never
# published; their dropout is that of the two published R50.
_HYBRIDS = {
    "r_vit_ti16": ("vit_ti16", (), 8, 0.0),
    "r26_vit_s32": ("vit_s32", (2, 2, 2, 2), 1, 0.0),
    "r26_vit_b32": ("vit_b32", (2, 2, 2, 2), 1, 0.0),
    "r50_vit_b16": ("vit_b16", (3, 4, 9), 1, 0.1),
    "r50_vit_b32": ("vit_b32", (3, 4, 6, 3), 1, 0.1),
    "r50_vit_l16": ("vit_l16", (3, 4, 9), 1, 0.1),
    "r50_vit_l32": ("vit_l32", (3, 4, 6, 3), 1, 0.1),
}

# Section 3.2 of https://arxiv.org/abs/1912.11370, and the baselines of the ViT paper's Table 6:
# units of the stages, and the width factor.
_BIT = {
    "bit_r50x1": ((3, 4, 6, 3), 1),
    "bit_r50x2": ((3, 4, 6, 3), 2),
    "bit_r50x3": ((3, 4, 6, 3), 3),
    "bit_r101x1": ((3, 4, 23, 3), 1),
    "bit_r101x3": ((3, 4, 23, 3), 3),
    "bit_r152x1": ((3, 8, 36, 3), 1),
    "bit_r152x2": ((3, 8, 36, 3), 2),
    "bit_r152x4": ((3, 8, 36, 3), 4),
    "bit_r200x3": ((3, 24, 36, 3), 3),
}

# The closest relative that the ViT paper names, https://arxiv.org/abs/1911.03584: patches of 2 x 2
# pixels of CIFAR-10, 6 layers of 400 channels, no class token, relative positions. Its 9 heads have
# 400 channels each; heads that share the width, as in a ViT, must divide it, so there are 10. It
# is written as a ViT: layer norm comes before attention and MLP, not after.
_CORDONNIER = ViTConfig(
    patch_size=(2, 2),
    width=400,
    depth=6,
    num_heads=10,
    mlp_dim=512,
    image_size=(32, 32),
    pooling="gap",
    class_token=False,
    position_embedding="relative",
    gelu="exact",
    dropout_rate=0.1,
)


def _vit(*values: Any) -> ViTConfig:
    return ViTConfig(**dict(zip(_COLUMNS, values, strict=True)))


def _hybrid(transformer: str, stages: tuple[int, ...], patch: int, dropout: float) -> ViTConfig:
    return dataclasses.replace(
        _vit(*_VIT[transformer]),
        patch_size=(patch, patch),
        dropout_rate=dropout,
        stem=ResNetStem(stages),
    )


VARIANTS: dict[str, ViTConfig | ResNetConfig] = {
    **{name: _vit(*values) for name, values in _VIT.items()},
    **{name: _hybrid(*values) for name, values in _HYBRIDS.items()},
    **{name: ResNetConfig(*values) for name, values in _BIT.items()},
    "vit_cordonnier2": _CORDONNIER,
}

# The paper's short names, and timm's. Only the short g/14 and G/14 differ by case alone.
_SHORT = {"ti": "Ti", "so400m": "So400m", "giantopt": "g-opt", "giant": "g", "gigantic": "G"}
_TIMM = {
    "ti": "tiny",
    "s": "small",
    "m": "medium",
    "b": "base",
    "l": "large",
    "h": "huge",
    "so400m": "so400m",
    "giantopt": "giantopt",
    "giant": "giant",
    "gigantic": "gigantic",
}


def _split_name(name: str) -> tuple[str, str, str]:
    """`"vit_b16"` gives its size in our words and the paper's, and its patch: `b`, `B`, `16`."""
    size = name.removeprefix("vit_").rstrip("0123456789")
    patch = name.removeprefix(f"vit_{size}")
    return size, _SHORT.get(size, size.upper()), patch


def _vit_aliases(name: str) -> list[str]:
    size, short, patch = _split_name(name)
    return [
        f"{short}/{patch}",
        f"vit_{short if short in 'gG' else size}{patch}",
        f"ViT-{short}/{patch}",
        f"ViT-{short}_{patch}",  # stem of the official file
        f"{short}_{patch}",  # stem of the AugReg files
        f"vit_{_TIMM[size]}_patch{patch}",
    ]


def _hybrid_aliases(name: str) -> list[str]:
    resnet, _, transformer = name.partition("_vit_")
    size, short, patch = _split_name(f"vit_{transformer}")
    stem = resnet.upper()
    timm = f"{resnet}_s16_p8" if resnet == "r" else f"{resnet}_s{patch}"
    return [
        f"{stem}+{short}/{patch}",
        f"{stem}+ViT-{short}/{patch}",
        f"{stem}+ViT-{short}_{patch}",  # stem of the official file
        f"{stem}_{short}_{patch}",  # stem of the AugReg files
        f"vit_{_TIMM[size]}_{timm}",
    ]


def _bit_aliases(name: str) -> list[str]:
    short = name.removeprefix("bit_").replace("r", "R")  # R50x1
    stems = [f"BiT-{short}", f"BiT-S-{short}", f"BiT-M-{short}"]  # of the official files
    return [short, *stems, f"resnetv2_{short.removeprefix('R')}_bit"]


def _aliases() -> dict[str, str]:
    rows = {
        **{name: _vit_aliases(name) for name in _VIT},
        **{name: _hybrid_aliases(name) for name in _HYBRIDS},
        **{name: _bit_aliases(name) for name in _BIT},
    }
    return {alias: name for name, row in rows.items() for alias in row if alias != name}


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


def find_config(name: str) -> ViTConfig | ResNetConfig:
    """The configuration of a named architecture.

    Args:
        name: A name of the table (`"vit_b16"`, `"r50_vit_b16"`, `"bit_r50x1"`), of the paper
            (`"B/16"`, `"R50+B/16"`, `"R50x1"`), of an official file (`"ViT-B_16"`) or of timm
            (`"vit_base_patch16_384"`, whose last number is the image size in pixels).

    Returns:
        A `ViTConfig`, with a `stem` for a hybrid, or a `ResNetConfig`.

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
