"""Names of timm whose models this package computes, with the settings that no array tells."""

from __future__ import annotations

import itertools
import pathlib
import re
from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, Preprocessing, RotaryPositions
from keras_vit.families.newer import DINOV3, EVA02, PERCEPTION, PERCEPTION_GIGANTIC
from keras_vit.families.preprocessing import OPENAI

# Every name of timm 1.0.31 in vision_transformer, vision_transformer_hybrid, deit, eva and beit
# that is a ViT of this package, by its number of attention heads. `scripts/sweep` compares each
# with timm.
_NAMES = {
    2: "test_vit test_vit2",
    3: (
        "deit_tiny_distilled_patch16_224 deit_tiny_patch16_224 test_vit3 vit_tiny_patch16_224 "
        "vit_tiny_patch16_384 vit_tiny_r_s16_p8_224 vit_tiny_r_s16_p8_384"
    ),
    4: "vit_wee_patch16_reg1_gap_256",
    5: "vit_little_patch16_reg1_gap_256 vit_little_patch16_reg4_gap_256",
    6: (
        "deit3_small_patch16_224 deit3_small_patch16_384 deit_small_distilled_patch16_224 "
        "deit_small_patch16_224 flexivit_small vit_small_patch14_dinov2 "
        "vit_small_patch14_reg4_dinov2 vit_small_patch16_224 vit_small_patch16_36x1_224 "
        "vit_small_patch16_384 vit_small_patch32_224 vit_small_patch32_384 vit_small_patch8_224 "
        "vit_small_r26_s32_224 vit_small_r26_s32_384"
    ),
    8: (
        "deit3_medium_patch16_224 vit_medium_patch16_reg1_gap_256 vit_medium_patch16_reg4_gap_256 "
        "vit_mediumd_patch16_reg4_gap_256 vit_mediumd_patch16_reg4_gap_384"
    ),
    10: (
        "vit_betwixt_patch16_reg1_gap_256 vit_betwixt_patch16_reg4_gap_256 "
        "vit_betwixt_patch16_reg4_gap_384"
    ),
    12: (
        "deit3_base_patch16_224 deit3_base_patch16_384 deit_base_distilled_patch16_224 "
        "deit_base_distilled_patch16_384 deit_base_patch16_224 deit_base_patch16_384 "
        "flexivit_base vit_base_patch14_dinov2 vit_base_patch14_reg1_tipsv2 "
        "vit_base_patch14_reg4_dinov2 vit_base_patch16_224 vit_base_patch16_384 "
        "vit_base_patch16_reg4_gap_256 vit_base_patch16_siglip_224 vit_base_patch16_siglip_256 "
        "vit_base_patch16_siglip_384 vit_base_patch16_siglip_512 vit_base_patch16_siglip_gap_224 "
        "vit_base_patch16_siglip_gap_256 vit_base_patch16_siglip_gap_384 "
        "vit_base_patch16_siglip_gap_512 vit_base_patch32_224 vit_base_patch32_384 "
        "vit_base_patch32_siglip_256 vit_base_patch32_siglip_gap_256 vit_base_patch8_224 "
        "vit_base_r26_s32_224 vit_base_r50_s16_224 vit_base_r50_s16_384"
    ),
    14: (
        "vit_base_patch16_plus_240 vit_base_patch32_plus_256 vit_so150m_patch16_reg4_gap_256 "
        "vit_so150m_patch16_reg4_gap_384 vit_so150m_patch16_reg4_map_256"
    ),
    16: (
        "deit3_huge_patch14_224 deit3_large_patch16_224 deit3_large_patch16_384 "
        "eva_large_patch14_196 eva_large_patch14_336 flexivit_large vit_base_patch16_gap_224 "
        "vit_giant_patch14_224 vit_giant_patch16_gap_224 vit_giantopt_patch16_siglip_256 "
        "vit_giantopt_patch16_siglip_384 vit_giantopt_patch16_siglip_gap_256 "
        "vit_giantopt_patch16_siglip_gap_384 vit_gigantic_patch14_224 vit_huge_patch14_224 "
        "vit_huge_patch14_gap_224 vit_huge_patch16_gap_448 vit_large_patch14_224 "
        "vit_large_patch14_dinov2 vit_large_patch14_reg1_tipsv2 vit_large_patch14_reg4_dinov2 "
        "vit_large_patch16_224 vit_large_patch16_384 vit_large_patch16_siglip_256 "
        "vit_large_patch16_siglip_384 vit_large_patch16_siglip_512 "
        "vit_large_patch16_siglip_gap_256 vit_large_patch16_siglip_gap_384 "
        "vit_large_patch16_siglip_gap_512 vit_large_patch32_224 vit_large_patch32_384 "
        "vit_large_r50_s32_224 vit_large_r50_s32_384 vit_so400m_patch14_reg1_tipsv2 "
        "vit_so400m_patch14_siglip_224 vit_so400m_patch14_siglip_378 "
        "vit_so400m_patch14_siglip_384 vit_so400m_patch14_siglip_gap_224 "
        "vit_so400m_patch14_siglip_gap_378 vit_so400m_patch14_siglip_gap_384 "
        "vit_so400m_patch14_siglip_gap_448 vit_so400m_patch14_siglip_gap_896 "
        "vit_so400m_patch16_siglip_256 vit_so400m_patch16_siglip_384 "
        "vit_so400m_patch16_siglip_512 vit_so400m_patch16_siglip_gap_256 "
        "vit_so400m_patch16_siglip_gap_384 vit_so400m_patch16_siglip_gap_512"
    ),
}
# The names of newer families.
_NEWER = {
    3: (
        "eva02_tiny_patch14_224 eva02_tiny_patch14_336 vit_pe_core_tiny_patch16_384 "
        "vit_pe_spatial_tiny_patch16_512 "
        "vit_tiny_patch16_dinov3_qkvb"
    ),
    4: "vit_xsmall_patch16_clip_224",
    6: (
        "eva02_small_patch14_224 eva02_small_patch14_336 vit_pe_core_small_patch16_384 "
        "vit_pe_spatial_small_patch16_512 "
        "vit_small_patch16_dinov3 vit_small_patch16_dinov3_qkvb vit_small_patch16_lingbot "
        "vit_small_patch16_rope_224 vit_small_patch16_rope_ape_224 vit_small_plus_patch16_dinov3 "
        "vit_small_plus_patch16_dinov3_qkvb"
    ),
    8: (
        "aimv2_large_patch14_224 aimv2_large_patch14_336 aimv2_large_patch14_448 "
        "vit_medium_patch16_clip_224 vit_medium_patch16_rope_reg1_gap_256 "
        "vit_medium_patch32_clip_224 vit_mediumd_patch16_rope_reg1_gap_256"
    ),
    10: "vit_betwixt_patch16_rope_reg4_gap_256 vit_betwixt_patch32_clip_224",
    12: (
        "beit_base_patch16_224 beit_base_patch16_384 beitv2_base_patch16_224 "
        "naflexvit_base_patch16_gap naflexvit_base_patch16_map naflexvit_base_patch16_siglip "
        "aimv2_huge_patch14_224 aimv2_huge_patch14_336 aimv2_huge_patch14_448 "
        "eva02_base_patch14_224 eva02_base_patch14_448 eva02_base_patch16_clip_224 "
        "vit_base_patch16_clip_224 vit_base_patch16_clip_384 vit_base_patch16_clip_quickgelu_224 "
        "vit_base_patch16_dinov3 vit_base_patch16_dinov3_qkvb vit_base_patch16_lingbot "
        "vit_base_patch16_rope_224 vit_base_patch16_rope_ape_224 "
        "vit_base_patch16_rope_reg1_gap_256 vit_base_patch32_clip_224 vit_base_patch32_clip_256 "
        "vit_base_patch32_clip_384 vit_base_patch32_clip_448 vit_base_patch32_clip_quickgelu_224 "
        "vit_pe_core_base_patch16_224 vit_pe_spatial_base_patch16_512"
    ),
    13: (
        "naflexvit_so150m2_patch16_reg1_gap naflexvit_so150m2_patch16_reg1_map "
        "vit_so150m2_patch16_reg1_gap_256 vit_so150m2_patch16_reg1_gap_384 "
        "vit_so150m2_patch16_reg1_gap_448"
    ),
    14: "vit_base_patch16_plus_clip_240",
    16: (
        "beit_large_patch16_224 beit_large_patch16_384 beit_large_patch16_512 "
        "beitv2_large_patch16_224 naflexvit_so400m_patch16_siglip "
        "aimv2_1b_patch14_224 aimv2_1b_patch14_336 aimv2_1b_patch14_448 "
        "eva02_large_patch14_224 eva02_large_patch14_448 eva02_large_patch14_clip_224 "
        "eva02_large_patch14_clip_336 eva_giant_patch14_224 eva_giant_patch14_336 "
        "eva_giant_patch14_560 eva_giant_patch14_clip_224 vit_giant_patch14_clip_224 "
        "vit_gigantic_patch14_clip_224 vit_gigantic_patch14_clip_378 "
        "vit_gigantic_patch14_clip_quickgelu_224 vit_huge_patch14_clip_224 "
        "vit_huge_patch14_clip_336 vit_huge_patch14_clip_378 vit_huge_patch14_clip_quickgelu_224 "
        "vit_huge_patch14_clip_quickgelu_378 vit_large_patch14_clip_224 "
        "vit_large_patch14_clip_336 vit_large_patch14_clip_quickgelu_224 "
        "vit_large_patch14_clip_quickgelu_336 vit_large_patch16_dinov3 "
        "vit_large_patch16_dinov3_qkvb vit_large_patch16_lingbot vit_large_patch16_rope_224 "
        "vit_large_patch16_rope_ape_224 vit_pe_core_large_patch14_336 "
        "vit_pe_core_gigantic_patch14_448 vit_pe_lang_gigantic_patch14_448 "
        "vit_pe_lang_large_patch14_448 vit_pe_spatial_gigantic_patch14_448 "
        "vit_pe_spatial_large_patch14_448"
    ),
    20: "vit_huge_plus_patch16_dinov3 vit_huge_plus_patch16_dinov3_qkvb",
    24: (
        "aimv2_3b_patch14_224 aimv2_3b_patch14_336 aimv2_3b_patch14_448 "
        "vit_giant_patch14_dinov2 vit_giant_patch14_reg4_dinov2 vit_giant_patch16_lingbot"
    ),
    32: "vit_7b_patch16_dinov3",
}
_HEADS = {
    name: heads
    for table in (_NAMES, _NEWER)
    for heads, names in table.items()
    for name in names.split()
}
NAMES = tuple(_HEADS)
_BIT = re.compile(r"resnetv2_(50x1|50x3|101x1|101x3|152x2|152x4)_bit")
# What differs from timm's defaults: exact GELU, epsilon 1e-6, the class token, bicubic resizing.
_DIFFERENT: tuple[tuple[str, dict[str, Any]], ...] = (
    # big_vision's GELU, which timm sets in the newer SigLIP names alone.
    (
        r"vit_(base_patch32|large_patch16(?=.*_512)|so400m_patch16|giantopt_patch16)_siglip_.*",
        {"gelu": "tanh"},
    ),
    (r".*_gap_.*|eva_large_.*|test_vit2", {"pooling": "gap"}),
    (r".*_siglip_\d+|.*_map_.*|test_vit3", {"pooling": "map", "map_prefix_tokens": False}),
    (r"test_vit3", {"map_prefix_tokens": True}),
    (r"flexivit_.*", {"position_resize": "bilinear"}),
    (r"vit_.*_clip_.*", {"norm_epsilon": 1e-5}),
    (r"vit_.*_clip_quickgelu_.*", {"gelu": "quick"}),
    (
        r".*_(dinov3|dinov3_qkvb|lingbot)",
        {"rope": DINOV3["rope"], "position_embedding": "none", "norm_epsilon": 1e-5},
    ),
    (r".*_(dinov3|dinov3_qkvb)|eva02_.*_patch14_\d+|eva_giant_.*_\d+", {"pooling": "gap"}),
    (r"eva_giant_.*_clip_.*", {"pooling": "token"}),
    (r"eva02_.*", {"rope": EVA02["rope"]}),
    (r"vit_.*_rope(_ape)?_224", {"rope": {"base": 100.0, "order": "wh"}}),
    (r"vit_.*_rope_reg\d_gap_256", {"rope": {"reference_grid": (16, 16)}}),
    (r"vit_.*_rope(_reg\d_gap)?_\d+", {"position_embedding": "none"}),
    (
        r"vit_pe_core_.*",
        {"norm_epsilon": 1e-5, "pooling": "map", "map_prefix_tokens": True, "map_heads": 8},
    ),
    (
        r"vit_pe_(lang|spatial)_.*",
        {"norm_epsilon": 1e-5, "pooling": "gap", "norm_after_blocks": False},
    ),
    *(
        (rf"vit_pe_{names}", {"rope": {**family["rope"], "reference_grid": (side, side)}})
        for names, side, family in (
            ("core_(tiny|small)_.*", 24, PERCEPTION), ("core_base_.*", 14, PERCEPTION),
            ("core_large_.*", 24, PERCEPTION), ("(lang|spatial)_.*", 32, PERCEPTION),
            (".*_gigantic_.*", 32, PERCEPTION_GIGANTIC),
        )
    ),
    # Of NaFlex those of SigLIP take images of any aspect ratio here. The others resample positions
    # bicubically and have registers, and are loaded for images of one size.
    (r"naflexvit_.*", {"position_resize": "bicubic"}),
    (r"naflexvit_.*_gap", {"pooling": "gap"}),
    (r"naflexvit_.*_(map|siglip)", {"pooling": "map", "map_prefix_tokens": False}),
    (
        r"naflexvit_.*_siglip",
        {"gelu": "tanh", "position_resize": "linear", "max_num_patches": 256},
    ),
    (r"beit(v2)?_.*", {"pooling": "gap"}),
    (r"aimv2_.*", {"norm": "rms", "norm_epsilon": 1e-5, "pooling": "gap"}),
)  # fmt: skip
_SATELLITE = Preprocessing(mean=(109.65, 104.805, 75.48), std=(54.315, 39.78, 36.465))
# Mean and standard deviation where they are not 127.5, by name and tag; the last that fits counts.
_PIXELS: tuple[tuple[Preprocessing, str], ...] = (
    (
        OPENAI,
        r"(aimv2|eva|eva02)_.*|vit_.*_clip_.*|vit_betwixt_patch16_rope_reg4_gap_256.*|.*\.bamboo",
    ),
    (Preprocessing(), r"vit_large_patch14_clip_(224|336)(\.laion2b.*)?"),
    (
        IMAGENET_STATISTICS,
        r"deit.*|beitv2_.*|vit_.*_(dinov[23]|dinov3_qkvb|lingbot)(\..*)?|.*\.(dino|mae)|"
        r"vit_.*_rope(_ape)?_224.*|vit_(huge_patch1[46]|giant_patch16)_gap_.*|"
        r"vit_small_patch8_224.*|eva_giant_patch14_560.*|eva_giant_.*\.m30m.*",
    ),
    (_SATELLITE, r".*\.sat493m"),
    (Preprocessing(mean=(0.0,), std=(255.0,)), r".*_tipsv2(\..*)?"),
)
# Share of the images that is cropped, and how, where it is not 0.9 of the centre: likewise.
_CROPS: tuple[tuple[float, str, str], ...] = (
    (
        1.0,
        "center",
        r"(aimv2|naflexvit|vit_pe)_.*|vit_.*_(dinov[23]|dinov3_qkvb|tipsv2)(\..*)?|"
        r"(beit|deit3?|vit)_.*_(384|512)(\..*)?|deit3_.*\.fb_in22k_ft_in1k|vit_.*_clip_.*|"
        r"eva02_.*_(336|448)(\..*)?|eva_large_patch14_196.*|vit_huge_patch16_gap_448.*|"
        r"vit_so150m2_.*|.*\.bamboo",
    ),
    (
        0.9,
        "center",
        r".*_siglip_.*|vit_(xsmall|medium|betwixt)_.*_clip_.*|"
        r"vit_base_patch(16|32)_clip_(quickgelu_)?224\.openai.*|"
        r"vit_base_patch32_clip_(quickgelu_)?224(\.laion.*)?|"
        r"vit_base_patch16_clip_224\.laion2b_ft_in12k",
    ),
    (
        1.0,
        "center",
        r"vit_so400m_patch14_siglip_gap_(384|448|896)(\..*)?|.*_siglip_gap_378\.webli",
    ),
    (
        0.95,
        "center",
        r"flexivit_.*|test_vit.*|beitv2_large_.*(?<!_ft_in22k)|"
        r"vit_base_patch(16|32)_plus_2\d\d(\..*)?|"
        r"vit_(?!so150m2|base_patch16_reg)\w+_reg\d_gap_256(\..*)?|"
        r"vit_base_patch16_clip_224(\..*_in12k_in1k)?",
    ),
    (
        1.0,
        "squash",
        r"vit_.*_lingbot.*|eva_(giant|large)_.*_(336|560).*|eva02_.*_448(\.\w*_ft_in22k\w*)?|"
        r"vit_(?!base_patch32)\w*_clip_(336|384)\..*ft_in1.*|vit_so150m2_.*_448.*|"
        r"vit_.*_378\.\w*(worldwide|ft_in1k)|vit_(huge|large)_patch14_clip_336|"
        r"vit_base_patch16_clip_384|vit_gigantic_patch14_clip_378",
    ),
    (0.95, "squash", r".*_clip_384\.openai_ft_in12k_in1k"),
)
# Names whose arrays are those of a plain ViT, and whose blocks are not.
_OTHER_BLOCKS = {
    "vit_base_patch16_rpn_224": "norms after attention and MLP (ResPostBlock)",
    "eva02_enormous_patch14_clip_224": "norms after attention and MLP",
    **dict.fromkeys(
        ("naflexvit_base_patch16_par_gap", *(
            f"naflexvit_{size}_patch16_radio_{version}"
            for size, version in (
                ("base", "v3"), ("large", "v3"), ("huge", "v3"), ("giant", "v3"),
                ("so400m", "v4"), ("huge", "v4"),
            )
        )),
        "positions that keep the aspect ratio when they are resampled (pos_embed_ar_preserving)",
    ),
    "naflexvit_base_patch16_parfac_gap": "positions that are sums of a row and a column part, and "
    "keep the aspect ratio when they are resampled (factorized)",
}  # fmt: skip


def timm_settings(name: str) -> dict[str, Any] | None:
    """Settings of a name of timm, fields of the configuration; `None` for an unknown name."""
    if _BIT.fullmatch(name):
        return {}
    if name not in _HEADS:
        return None
    settings: dict[str, Any] = {
        "gelu": "exact",
        "norm_epsilon": 1e-6,
        "num_heads": _HEADS[name],
        "pooling": "token",
        "rope": None,
        "norm_after_blocks": True,
    }
    for pattern, changes in _DIFFERENT:
        if re.fullmatch(pattern, name):
            settings.update(changes)
    if settings["rope"] is not None:
        settings["rope"] = RotaryPositions(**settings["rope"])
    return settings


def timm_pixels(name: str) -> Preprocessing:
    """Preprocessing of a name of timm, with its tag or as timm's default for the name."""
    pixels = Preprocessing()
    for statistics, pattern in _PIXELS:
        if re.fullmatch(pattern, name):
            pixels = statistics
    ratio: float | None = 0.9
    mode = "center"
    for share, how, pattern in _CROPS:
        if re.fullmatch(pattern, name):
            ratio, mode = share, how
    if (ratio, mode) == (1.0, "squash"):  # the whole image
        ratio, mode = None, "center"
    filter_ = "bilinear" if "_lingbot" in name else "bicubic"
    return Preprocessing(pixels.mean, pixels.std, filter_, ratio, "timm", mode)


def other_blocks(name: str) -> str | None:
    """What is unlike a plain ViT in a name, where no array shows it."""
    return _OTHER_BLOCKS.get(name)


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
