"""Architectures of timm's plain ViTs that have no name of this package.

Sizes and options are those of `timm.create_model` (timm 1.0.31). Layer scale starts at 1e-5 in all.
`tests/golden/timm_parameters.json` lists the names, with those that are variants.
"""

from __future__ import annotations

import re
from typing import Any

Fields = dict[str, Any]

# Width, blocks, heads and hidden dimension of the MLP, by the word in the name.
_SIZES = {
    "tiny": (192, 12, 3, 768),
    "wee": (256, 14, 4, 1280),
    "xsmall": (256, 10, 4, 1024),
    "little": (320, 14, 5, 1792),
    "small": (384, 12, 6, 1536),
    "medium": (512, 12, 8, 2048),
    "mediumd": (512, 20, 8, 2048),
    "betwixt": (640, 12, 10, 2560),
    "base": (768, 12, 12, 3072),
    "so150m": (896, 18, 14, 2304),
    "so150m2": (832, 21, 13, 2176),
    "large": (1024, 24, 16, 4096),
    "so400m": (1152, 27, 16, 4304),
    "huge": (1280, 32, 16, 5120),
    "giant": (1408, 40, 16, 6144),
    "giantopt": (1536, 40, 16, 6144),
    "1b": (2048, 24, 16, 5632),
    "3b": (3072, 24, 24, 8192),
}

_EXACT: Fields = {"gelu": "exact"}
_SCALED: Fields = {**_EXACT, "layer_scale": 1e-5}
_GAP: Fields = {"pooling": "gap", "class_token": False}
_MAP: Fields = {"pooling": "map", "class_token": False, "map_prefix_tokens": False}
_NORM_LAST: Fields = {"norm_after_pooling": True}
_FREE: Fields = {"position_on_class_token": False}
_ROPE: Fields = {"base": 100.0, "order": "wh"}
_ROPE_EVA: Fields = {"reference_grid": (16, 16)}
_SBB: Fields = {**_SCALED, **_GAP, **_NORM_LAST}
_NO_KEY: Fields = {"without_bias": ("key",)}
_SBB_ROPE: Fields = {**_SBB, **_NO_KEY, "position_embedding": "none", "rope": _ROPE_EVA}
_CLIP: Fields = {
    **_EXACT, "norm_epsilon": 1e-5, "norm_before_blocks": True, "without_bias": ("patch",)
}  # fmt: skip
_NO_QKV: Fields = {"without_bias": ("query", "key", "value")}
_AIMV2: Fields = {
    **_EXACT, **_GAP, "swiglu": True, "norm": "rms", "norm_epsilon": 1e-5, "norm_patches": True,
    "without_bias": ("query", "key", "value", "projection", "mlp"),
}  # fmt: skip
_DINOV3: Fields = {
    **_SCALED, "num_registers": 4, "position_embedding": "none", "norm_epsilon": 1e-5,
    "rope": {"coordinates": "centered", "base": 100.0, "interleaved": False}, **_NO_KEY,
}  # fmt: skip
_EVA02: Fields = {
    **_EXACT, "rope": _ROPE_EVA, "swiglu": True, "inner_norms": ("attention", "mlp"), **_NO_KEY,
}  # fmt: skip
_PLUS: Fields = {"width": 896, "num_heads": 14, "mlp_dim": 3584}

# A name with `{}` for its size, the sizes, and what the name says.
_ROWS: tuple[tuple[str, str, Fields], ...] = (
    ("deit_{}_patch16", "tiny small base", _EXACT),
    ("deit_{}_distilled_patch16", "tiny small base", {**_EXACT, "distillation_token": True}),
    ("deit3_{}_patch16", "small medium base large", {**_SCALED, **_FREE}),
    ("deit3_{}_patch14", "huge", {**_SCALED, **_FREE}),
    ("flexivit_{}", "small base large", {**_EXACT, **_FREE, "image_size": 240}),
    ("vit_{}_patch14_dinov2", "small base large", {**_SCALED, "image_size": 518}),
    (
        "vit_{}_patch14_reg4_dinov2", "small base large",
        {**_SCALED, **_FREE, "num_registers": 4, "image_size": 518},
    ),
    (
        "vit_{}_patch14_reg1_tipsv2", "base large so400m",
        {**_SCALED, **_FREE, "num_registers": 1, "image_size": 448},
    ),
    ("vit_{}_patch16_gap", "huge giant", {**_EXACT, **_GAP}),
    ("vit_{}_patch14_gap", "huge", {**_EXACT, **_GAP}),
    ("vit_{}_patch16_gap", "base", {**_EXACT, **_GAP, "num_heads": 16}),
    ("vit_{}_patch16_clip", "xsmall medium", _CLIP),
    ("vit_{}_patch32_clip", "medium betwixt", _CLIP),
    ("vit_{}_patch16_siglip", "base large", {**_EXACT, **_MAP}),
    ("vit_{}_patch16_siglip_512", "large", {**_MAP, "image_size": 512}),
    ("vit_{}_patch16_siglip", "so400m giantopt", _MAP),
    ("vit_{}_patch14_siglip", "so400m", {**_EXACT, **_MAP}),
    ("vit_{}_patch14_siglip_384", "so400m", {**_EXACT, **_MAP, "image_size": 378}),
    ("vit_{}_patch32_siglip", "base", _MAP),
    ("vit_{}_patch16_siglip_gap", "base large", {**_EXACT, **_GAP}),
    ("vit_{}_patch16_siglip_gap_512", "large", {**_GAP, "image_size": 512}),
    ("vit_{}_patch16_siglip_gap", "so400m giantopt", _GAP),
    ("vit_{}_patch14_siglip_gap", "so400m", {**_EXACT, **_GAP}),
    ("vit_{}_patch14_siglip_gap_384", "so400m", {**_EXACT, **_GAP, "image_size": 378}),
    ("vit_{}_patch32_siglip_gap", "base", _GAP),
    ("vit_{}_patch16_reg1_gap", "wee little medium betwixt", {**_SBB, "num_registers": 1}),
    ("vit_{}_patch16_reg4_gap", "little medium mediumd betwixt", {**_SBB, "num_registers": 4}),
    (
        "vit_{}_patch16_reg4_gap", "base",
        {**_EXACT, **_GAP, **_NORM_LAST, "num_registers": 4},
    ),
    ("vit_{}_patch16_reg1_gap", "so150m2", {**_SBB, **_NO_QKV, "num_registers": 1}),
    ("vit_{}_patch16_reg4_gap", "so150m", {**_EXACT, **_GAP, "num_registers": 4}),
    ("vit_{}_patch16_reg4_map", "so150m", {**_EXACT, **_MAP, "num_registers": 4}),
    ("vit_{}_patch16_rope_reg1_gap", "medium base", {**_SBB_ROPE, "num_registers": 1}),
    ("vit_{}_patch16_rope_reg1_gap", "mediumd", {**_SBB_ROPE, **_NO_QKV, "num_registers": 1}),
    ("vit_{}_patch16_rope_reg4_gap", "betwixt", {**_SBB_ROPE, "num_registers": 4}),
    (
        "vit_{}_patch16_rope", "small base large",
        {**_SCALED, "position_embedding": "none", "rope": _ROPE},
    ),
    ("vit_{}_patch16_rope_ape", "small base large", {**_SCALED, **_FREE, "rope": _ROPE}),
    ("vit_{}_patch16_36x1", "small", {**_SCALED, "depth": 36}),
    ("vit_{}_patch16_plus", "base", {**_SCALED, **_PLUS}),
    ("vit_{}_patch32_plus", "base", {**_SCALED, **_PLUS}),
    ("vit_{}_patch16_plus_clip", "base", {**_CLIP, **_PLUS}),
    ("eva_{}_patch14", "large", {**_EXACT, "pooling": "gap", **_NORM_LAST}),
    ("eva_{}_patch14", "giant", {**_EXACT, "pooling": "gap", **_NORM_LAST, **_NO_KEY}),
    ("eva_{}_patch14_clip", "giant", {**_EXACT, **_NO_KEY}),
    ("eva02_{}_patch16_clip", "base", {**_EVA02, "mlp_dim": 2048}),
    ("eva02_{}_patch14_clip", "large", {**_EVA02, "mlp_dim": 2730}),
    ("aimv2_{}_patch14", "1b 3b", _AIMV2),
    ("vit_{}_patch16_dinov3_qkvb", "tiny", {**_DINOV3, "pooling": "gap", "image_size": 256}),
    ("vit_{}_patch16_lingbot", "small base large", {**_DINOV3, "image_size": 512}),
    (
        "vit_{}_patch16_lingbot", "giant",
        {**_DINOV3, **_NO_QKV, "swiglu": True, "width": 1536, "num_heads": 24, "mlp_dim": 4096,
         "image_size": 512},
    ),
    (
        "naflexvit_{}_patch16_gap", "base",
        {**_SBB, "num_registers": 4, "image_size": 256},
    ),
    (
        "naflexvit_{}_patch16_map", "base",
        {**_SCALED, **_MAP, "num_registers": 1, "image_size": 256},
    ),
    (
        "naflexvit_{}_patch16_reg1_gap", "so150m2",
        {**_SBB, **_NO_QKV, "num_registers": 1, "image_size": 256},
    ),
    (
        "naflexvit_{}_patch16_reg1_map", "so150m2",
        {**_SCALED, **_MAP, **_NO_QKV, "num_registers": 1, "image_size": 256},
    ),
)  # fmt: skip


def _fields(name: str, size: str, more: Fields) -> Fields:
    names = ("width", "depth", "num_heads", "mlp_dim")
    patch = re.search(r"patch(\d+)", name)
    sizes = dict(zip(names, _SIZES[size], strict=True))
    return {"patch_size": int(patch[1]) if patch else 16, "image_size": 224, **sizes, **more}


TIMM_ARCHITECTURES: dict[str, Fields] = {
    name.format(size): _fields(name, size, more)
    for name, sizes, more in _ROWS
    for size in sizes.split()
}
