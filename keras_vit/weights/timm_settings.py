"""What a name of timm says of a checkpoint: the settings that no array tells, preprocessing."""

from __future__ import annotations

import itertools
import pathlib
import re
from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, Preprocessing, ResNetConfig, field_value
from keras_vit.families.preprocessing import OPENAI
from keras_vit.variants import NAMES, find_config, split_image_size

# What no array tells: of every model, and of those with another value than most.
_ALWAYS = ("gelu", "norm_epsilon", "num_heads", "pooling", "rope", "norm_after_blocks")
_SELDOM = {"position_embedding": "none", "norm": "rms"}
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
    known = NAMES.get(split_image_size(name)[0])
    if known is None or known.timm is None:
        return None
    config = find_config(name)
    if isinstance(config, ResNetConfig):
        return {}
    fields = list(_ALWAYS)
    fields += [key for key, value in _SELDOM.items() if field_value(config, key) == value]
    if config.pooling == "map":
        fields += ["map_prefix_tokens", *(["map_heads"] if config.map_heads else [])]
    if config.takes_patches:
        fields.append("max_num_patches")
    return {**{field: field_value(config, field) for field in fields}, **known.settings}


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
