"""Perception Encoder."""

from __future__ import annotations

from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family
from keras_vit.families.keys import Fields
from keras_vit.families.names import WORDS, joined, of_timm, sized
from keras_vit.families.preprocessing import CENTER, TimmImages

# https://arxiv.org/abs/2504.13181: the image towers with a projection ("core"), and those tuned for
# language models ("lang") and dense prediction ("spatial"), whose outputs are tokens.
_CORE: Fields = {
    "norm_before_blocks": True,
    "without_bias": ("patch",),
    "norm_epsilon": 1e-5,
    "gelu": "exact",
    "pooling": "map",
    "map_heads": 8,
}
_TOKENS: Fields = {**_CORE, "pooling": "gap", "norm_after_blocks": False}
_SCALED: Fields = {"layer_scale": 0.1}
_SIZES = {"gigantic": (1536, 50, 16, 8960)}
# Part, size, patch and image in pixels.
_MODELS: tuple[tuple[str, str, int, int, Fields], ...] = (
    ("core", "ti", 16, 384, {}),
    ("core", "s", 16, 384, {}),
    ("core", "b", 16, 224, {}),
    ("core", "l", 14, 336, {}),
    ("core", "gigantic", 14, 448, {"map_mlp_dim": 6144}),
    ("lang", "l", 14, 448, {**_SCALED, "depth": 23}),
    ("lang", "gigantic", 14, 448, {**_SCALED, "depth": 47}),
    ("spatial", "ti", 16, 512, {}),
    ("spatial", "s", 16, 512, {}),
    ("spatial", "b", 16, 512, {}),
    ("spatial", "l", 14, 448, {}),
    ("spatial", "gigantic", 14, 448, _SCALED),
)


def _fields(part: str, size: str, patch: int, image: int, more: Fields) -> Fields:
    """The largest of each part have no class token, and count patches from 0."""
    grid = image // patch
    rope = {"order": "wh", "reference_grid": (grid, grid)}
    others = {"class_token": False} if size == "gigantic" else {"rope": {**rope, "offset": 1.0}}
    family = _CORE if part == "core" else _TOKENS
    common: Fields = {**family, "rope": rope, "image_size": image}
    return sized(_SIZES.get(size, size), patch, common, others, more)


VARIANTS: dict[str, Fields] = {
    f"pe_{part}_{size}{patch}": _fields(part, size, patch, image, more)
    for part, size, patch, image, more in _MODELS
}

_TIMM = {
    variant: f"vit_pe_{part}_{WORDS[size]}_patch{patch}_{image}"
    for variant, (part, size, patch, image, _) in zip(VARIANTS, _MODELS, strict=True)
}
NAMES = joined(of_timm(timm, variant) for variant, timm in _TIMM.items())
TIMM_IMAGES: TimmImages = ((r"vit_pe_.*", CENTER),)

# Published checkpoints, by timm. Classes of the core models are dimensions of their projection.
_DIMENSIONS = {
    "pe_core_ti16": 512, "pe_core_s16": 512, "pe_core_b16": 1024, "pe_core_l14": 1024,
    "pe_core_gigantic14": 1280,
}  # fmt: skip
_PE = Origin(TIMM, "https://arxiv.org/abs/2504.13181", classes=_DIMENSIONS)
CARDS = (
    Published(_PE, "fb", tuple(
        (variant, f"{_TIMM[variant]}.fb", fields["image_size"])
        for variant, fields in VARIANTS.items()
    )),
    Published(_PE, "fb_tiling", (
        ("pe_lang_l14", "vit_pe_lang_large_patch14_448.fb_tiling", 448),
        ("pe_lang_gigantic14", "vit_pe_lang_gigantic_patch14_448.fb_tiling", 448),
    )),
)  # fmt: skip

FAMILY = Family(VARIANTS, NAMES, CARDS, timm_images=TIMM_IMAGES)
