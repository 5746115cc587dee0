"""Perception Encoder."""

from __future__ import annotations

from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family

# Published checkpoints, by timm. Classes of the core models are dimensions of their projection.
_DIMENSIONS = {
    "pe_core_ti16": 512, "pe_core_s16": 512, "pe_core_b16": 1024, "pe_core_l14": 1024,
    "pe_core_gigantic14": 1280,
}  # fmt: skip
_PE = Origin(TIMM, "https://arxiv.org/abs/2504.13181", classes=_DIMENSIONS)
CARDS = (
    Published(_PE, "fb", tuple(
        (f"pe_{part}_{size}{patch}", f"vit_pe_{part}_{name}_patch{patch}_{side}.fb", side)
        for part, size, name, patch, side in (
            ("core", "ti", "tiny", 16, 384),
            ("core", "s", "small", 16, 384),
            ("core", "b", "base", 16, 224),
            ("core", "l", "large", 14, 336),
            ("core", "gigantic", "gigantic", 14, 448),
            ("lang", "l", "large", 14, 448),
            ("lang", "gigantic", "gigantic", 14, 448),
            ("spatial", "ti", "tiny", 16, 512),
            ("spatial", "s", "small", 16, 512),
            ("spatial", "b", "base", 16, 512),
            ("spatial", "l", "large", 14, 448),
            ("spatial", "gigantic", "gigantic", 14, 448),
        )
    )),
    Published(_PE, "fb_tiling", (
        ("pe_lang_l14", "vit_pe_lang_large_patch14_448.fb_tiling", 448),
        ("pe_lang_gigantic14", "vit_pe_lang_gigantic_patch14_448.fb_tiling", 448),
    )),
)  # fmt: skip

FAMILY = Family(CARDS)
