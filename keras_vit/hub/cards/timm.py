"""Checkpoints that timm publishes on the Hugging Face hub, as safetensors."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, UNIT_RANGE, Preprocessing
from keras_vit.hub.cards.card import PAPERS, Card

_SOURCE = "https://github.com/huggingface/pytorch-image-models"
_RESULTS = "timm's results-imagenet.csv"
_EXACT = {"gelu": "exact"}


@dataclasses.dataclass(frozen=True)
class _Family:
    """What the files of one origin share."""

    paper: str
    options: dict[str, Any]
    statistics: Preprocessing = UNIT_RANGE
    classes: int | None = 1000
    licence: str = "Apache-2.0"


_VIT = _Family("vit", _EXACT)
_AUGREG = _Family("augreg", _EXACT)
_SAM = _Family("sam", _EXACT)
_DEIT = _Family("deit", _EXACT, IMAGENET_STATISTICS)
_DISTILLED = _Family("deit", {**_EXACT, "distillation_token": True}, IMAGENET_STATISTICS)
_DEIT3 = _Family(
    "deit3",
    {**_EXACT, "layer_scale": 1e-6, "position_on_class_token": False},
    IMAGENET_STATISTICS,
)
_MAE = _Family("mae", _EXACT, IMAGENET_STATISTICS, None, "CC-BY-NC-4.0")
_DINO = _Family("dino", _EXACT, IMAGENET_STATISTICS, None)
_DINOV2 = _Family("dinov2", {**_EXACT, "layer_scale": 1e-5}, IMAGENET_STATISTICS, None)
_REGISTERS = _Family(
    "registers",
    {**_DINOV2.options, "num_registers": 4, "position_on_class_token": False},
    IMAGENET_STATISTICS,
    None,
)
_MAP = {"pooling": "map", "class_token": False, "position_on_class_token": False}
_SIGLIP = _Family("siglip", {**_EXACT, **_MAP}, UNIT_RANGE, None)
_SIGLIP2_EXACT = dataclasses.replace(_SIGLIP, paper="siglip2")  # timm runs some with either GELU
_SIGLIP2 = _Family("siglip2", {"gelu": "tanh", **_MAP}, UNIT_RANGE, None)
_SIGLIP_TANH = dataclasses.replace(_SIGLIP2, paper="siglip")
_SIGLIP_IN1K = dataclasses.replace(_SIGLIP, classes=1000)
_FLEXIVIT = _Family("flexivit", {**_EXACT, "position_on_class_token": False})
_BIT = _Family("bit", {})

# Family; variant, tag, name on the hub, image size, crop ratio (None squashes), top-1.
_ROWS: tuple[tuple[_Family, tuple[tuple[Any, ...], ...]], ...] = (
    (
        _AUGREG,
        (
            ("vit_b16", "augreg2_in21k_ft_in1k", "vit_base_patch16_224", 224, 0.9, 85.108),
            ("vit_b8", "augreg2_in21k_ft_in1k", "vit_base_patch8_224", 224, 0.9, 86.252),
            ("vit_ti16", "augreg_in21k_ft_in1k", "vit_tiny_patch16_224", 224, 0.9, 75.452),
            ("vit_ti16", "augreg_in21k_ft_in1k", "vit_tiny_patch16_384", 384, 1.0, 78.438),
            ("vit_s32", "augreg_in21k_ft_in1k", "vit_small_patch32_224", 224, 0.9, 76.010),
            ("vit_s32", "augreg_in21k_ft_in1k", "vit_small_patch32_384", 384, 1.0, 80.476),
            ("vit_s16", "augreg_in21k_ft_in1k", "vit_small_patch16_224", 224, 0.9, 81.402),
            ("vit_s16", "augreg_in21k_ft_in1k", "vit_small_patch16_384", 384, 1.0, 83.814),
            ("vit_b32", "augreg_in21k_ft_in1k", "vit_base_patch32_224", 224, 0.9, 80.732),
            ("vit_b32", "augreg_in21k_ft_in1k", "vit_base_patch32_384", 384, 1.0, 83.358),
            ("vit_b16", "augreg_in21k_ft_in1k", "vit_base_patch16_224", 224, 0.9, 84.534),
            ("vit_b16", "augreg_in21k_ft_in1k", "vit_base_patch16_384", 384, 1.0, 86.010),
            ("vit_b8", "augreg_in21k_ft_in1k", "vit_base_patch8_224", 224, 0.9, 85.838),
            ("vit_l16", "augreg_in21k_ft_in1k", "vit_large_patch16_224", 224, 0.9, 85.856),
            ("vit_l16", "augreg_in21k_ft_in1k", "vit_large_patch16_384", 384, 1.0, 87.096),
            ("r_vit_ti16", "augreg_in21k_ft_in1k", "vit_tiny_r_s16_p8_224", 224, 0.9, 71.800),
            ("r_vit_ti16", "augreg_in21k_ft_in1k", "vit_tiny_r_s16_p8_384", 384, 1.0, 75.962),
            ("r26_vit_s32", "augreg_in21k_ft_in1k", "vit_small_r26_s32_224", 224, 0.9, 81.856),
            ("r26_vit_s32", "augreg_in21k_ft_in1k", "vit_small_r26_s32_384", 384, 1.0, 84.066),
            ("r50_vit_l32", "augreg_in21k_ft_in1k", "vit_large_r50_s32_224", 224, 0.9, 84.434),
            ("r50_vit_l32", "augreg_in21k_ft_in1k", "vit_large_r50_s32_384", 384, 1.0, 86.188),
            ("vit_s16", "augreg_in1k", "vit_small_patch16_224", 224, 0.9, 78.842),
            ("vit_s16", "augreg_in1k", "vit_small_patch16_384", 384, 1.0, 81.130),
            ("vit_b32", "augreg_in1k", "vit_base_patch32_224", 224, 0.9, 74.908),
            ("vit_b32", "augreg_in1k", "vit_base_patch32_384", 384, 1.0, 78.750),
            ("vit_b16", "augreg_in1k", "vit_base_patch16_224", 224, 0.9, 79.154),
            ("vit_b16", "augreg_in1k", "vit_base_patch16_384", 384, 1.0, 81.102),
        ),
    ),
    (
        dataclasses.replace(_AUGREG, classes=21843),
        (
            ("vit_ti16", "augreg_in21k", "vit_tiny_patch16_224", 224, 0.9, None),
            ("vit_s32", "augreg_in21k", "vit_small_patch32_224", 224, 0.9, None),
            ("vit_s16", "augreg_in21k", "vit_small_patch16_224", 224, 0.9, None),
            ("vit_b32", "augreg_in21k", "vit_base_patch32_224", 224, 0.9, None),
            ("vit_b16", "augreg_in21k", "vit_base_patch16_224", 224, 0.9, None),
            ("vit_b8", "augreg_in21k", "vit_base_patch8_224", 224, 0.9, None),
            ("vit_l16", "augreg_in21k", "vit_large_patch16_224", 224, 0.9, None),
            ("r_vit_ti16", "augreg_in21k", "vit_tiny_r_s16_p8_224", 224, 0.9, None),
            ("r26_vit_s32", "augreg_in21k", "vit_small_r26_s32_224", 224, 0.9, None),
            ("r50_vit_l32", "augreg_in21k", "vit_large_r50_s32_224", 224, 0.9, None),
        ),
    ),
    (
        _VIT,
        (
            ("vit_b16", "orig_in21k_ft_in1k", "vit_base_patch16_224", 224, 0.9, 81.782),
            ("vit_b16", "orig_in21k_ft_in1k", "vit_base_patch16_384", 384, 1.0, 84.212),
            ("vit_l32", "orig_in21k_ft_in1k", "vit_large_patch32_384", 384, 1.0, 81.508),
            ("r50_vit_b16", "orig_in21k_ft_in1k", "vit_base_r50_s16_384", 384, 1.0, 84.988),
        ),
    ),
    (
        dataclasses.replace(_VIT, classes=None),
        (
            ("vit_b32", "orig_in21k", "vit_base_patch32_224", 224, 0.9, None),
            ("vit_b16", "orig_in21k", "vit_base_patch16_224", 224, 0.9, None),
            ("vit_l32", "orig_in21k", "vit_large_patch32_224", 224, 0.9, None),
            ("vit_l16", "orig_in21k", "vit_large_patch16_224", 224, 0.9, None),
            ("vit_h14", "orig_in21k", "vit_huge_patch14_224", 224, 0.9, None),
            ("r50_vit_b16", "orig_in21k", "vit_base_r50_s16_224", 224, 0.9, None),
        ),
    ),
    (
        _SAM,
        (
            ("vit_b32", "sam_in1k", "vit_base_patch32_224", 224, 0.9, 73.704),
            ("vit_b16", "sam_in1k", "vit_base_patch16_224", 224, 0.9, 80.246),
        ),
    ),
    (
        _DEIT,
        (
            ("vit_ti16", "fb_in1k", "deit_tiny_patch16_224", 224, 0.9, 72.190),
            ("vit_s16", "fb_in1k", "deit_small_patch16_224", 224, 0.9, 79.856),
            ("vit_b16", "fb_in1k", "deit_base_patch16_224", 224, 0.9, 81.980),
            ("vit_b16", "fb_in1k", "deit_base_patch16_384", 384, 1.0, 83.108),
        ),
    ),
    (
        _DISTILLED,
        (
            ("vit_ti16", "fb_in1k", "deit_tiny_distilled_patch16_224", 224, 0.9, 74.538),
            ("vit_s16", "fb_in1k", "deit_small_distilled_patch16_224", 224, 0.9, 81.204),
            ("vit_b16", "fb_in1k", "deit_base_distilled_patch16_224", 224, 0.9, 83.384),
            ("vit_b16", "fb_in1k", "deit_base_distilled_patch16_384", 384, 1.0, 85.438),
        ),
    ),
    (
        _DEIT3,
        (
            ("vit_s16", "fb_in1k", "deit3_small_patch16_224", 224, 0.9, 81.382),
            ("vit_s16", "fb_in1k", "deit3_small_patch16_384", 384, 1.0, 83.432),
            ("vit_m16", "fb_in1k", "deit3_medium_patch16_224", 224, 0.9, 83.090),
            ("vit_b16", "fb_in1k", "deit3_base_patch16_224", 224, 0.9, 83.800),
            ("vit_b16", "fb_in1k", "deit3_base_patch16_384", 384, 1.0, 85.088),
            ("vit_l16", "fb_in1k", "deit3_large_patch16_224", 224, 0.9, 84.772),
            ("vit_l16", "fb_in1k", "deit3_large_patch16_384", 384, 1.0, 85.820),
            ("vit_h14", "fb_in1k", "deit3_huge_patch14_224", 224, 0.9, 85.204),
            ("vit_s16", "fb_in22k_ft_in1k", "deit3_small_patch16_224", 224, 1.0, 83.082),
            ("vit_s16", "fb_in22k_ft_in1k", "deit3_small_patch16_384", 384, 1.0, 84.846),
            ("vit_m16", "fb_in22k_ft_in1k", "deit3_medium_patch16_224", 224, 1.0, 84.550),
            ("vit_b16", "fb_in22k_ft_in1k", "deit3_base_patch16_224", 224, 1.0, 85.728),
            ("vit_b16", "fb_in22k_ft_in1k", "deit3_base_patch16_384", 384, 1.0, 86.742),
            ("vit_l16", "fb_in22k_ft_in1k", "deit3_large_patch16_224", 224, 1.0, 86.990),
            ("vit_l16", "fb_in22k_ft_in1k", "deit3_large_patch16_384", 384, 1.0, 87.736),
            ("vit_h14", "fb_in22k_ft_in1k", "deit3_huge_patch14_224", 224, 1.0, 87.180),
        ),
    ),
    (
        _MAE,
        (
            ("vit_b16", "mae", "vit_base_patch16_224", 224, 0.9, None),
            ("vit_l16", "mae", "vit_large_patch16_224", 224, 0.9, None),
            ("vit_h14", "mae", "vit_huge_patch14_224", 224, 0.9, None),
        ),
    ),
    (
        _DINO,
        (
            ("vit_s16", "dino", "vit_small_patch16_224", 224, 0.9, None),
            ("vit_s8", "dino", "vit_small_patch8_224", 224, 0.9, None),
            ("vit_b16", "dino", "vit_base_patch16_224", 224, 0.9, None),
            ("vit_b8", "dino", "vit_base_patch8_224", 224, 0.9, None),
        ),
    ),
    (
        _DINOV2,
        (
            ("vit_s14", "lvd142m", "vit_small_patch14_dinov2", 518, 1.0, None),
            ("vit_b14", "lvd142m", "vit_base_patch14_dinov2", 518, 1.0, None),
            ("vit_l14", "lvd142m", "vit_large_patch14_dinov2", 518, 1.0, None),
        ),
    ),
    (
        _REGISTERS,
        (
            ("vit_s14", "lvd142m", "vit_small_patch14_reg4_dinov2", 518, 1.0, None),
            ("vit_b14", "lvd142m", "vit_base_patch14_reg4_dinov2", 518, 1.0, None),
            ("vit_l14", "lvd142m", "vit_large_patch14_reg4_dinov2", 518, 1.0, None),
        ),
    ),
    (
        _SIGLIP,
        (
            ("vit_b16", "webli", "vit_base_patch16_siglip_224", 224, 0.9, None),
            ("vit_b16", "webli", "vit_base_patch16_siglip_256", 256, 0.9, None),
            ("vit_b16", "webli_i18n", "vit_base_patch16_siglip_256", 256, 0.9, None),
            ("vit_b16", "webli", "vit_base_patch16_siglip_384", 384, 0.9, None),
            ("vit_b16", "webli", "vit_base_patch16_siglip_512", 512, 0.9, None),
            ("vit_l16", "webli", "vit_large_patch16_siglip_256", 256, 0.9, None),
            ("vit_l16", "webli", "vit_large_patch16_siglip_384", 384, 0.9, None),
            ("vit_so400m14", "webli", "vit_so400m_patch14_siglip_224", 224, 0.9, None),
            ("vit_so400m14", "webli", "vit_so400m_patch14_siglip_378", 378, 0.9, None),
        ),
    ),
    (
        _SIGLIP_IN1K,
        (("vit_so400m14", "webli_ft_in1k", "vit_so400m_patch14_siglip_378", 378, None, 89.410),),
    ),
    (
        _SIGLIP_TANH,
        (("vit_so400m16", "webli_i18n", "vit_so400m_patch16_siglip_256", 256, 0.9, None),),
    ),
    (
        _SIGLIP2_EXACT,
        (
            ("vit_b16", "v2_webli", "vit_base_patch16_siglip_224", 224, 0.9, None),
            ("vit_b16", "v2_webli", "vit_base_patch16_siglip_256", 256, 0.9, None),
            ("vit_b16", "v2_webli", "vit_base_patch16_siglip_384", 384, 0.9, None),
            ("vit_b16", "v2_webli", "vit_base_patch16_siglip_512", 512, 0.9, None),
            ("vit_l16", "v2_webli", "vit_large_patch16_siglip_256", 256, 0.9, None),
            ("vit_l16", "v2_webli", "vit_large_patch16_siglip_384", 384, 0.9, None),
            ("vit_so400m14", "v2_webli", "vit_so400m_patch14_siglip_224", 224, 0.9, None),
            ("vit_so400m14", "v2_webli", "vit_so400m_patch14_siglip_378", 378, 0.9, None),
        ),
    ),
    (
        _SIGLIP2,
        (
            ("vit_b32", "v2_webli", "vit_base_patch32_siglip_256", 256, 0.9, None),
            ("vit_l16", "v2_webli", "vit_large_patch16_siglip_512", 512, 0.9, None),
            ("vit_so400m16", "v2_webli", "vit_so400m_patch16_siglip_256", 256, 0.9, None),
            ("vit_so400m16", "v2_webli", "vit_so400m_patch16_siglip_384", 384, 0.9, None),
            ("vit_so400m16", "v2_webli", "vit_so400m_patch16_siglip_512", 512, 0.9, None),
            ("vit_giantopt16", "v2_webli", "vit_giantopt_patch16_siglip_256", 256, 0.9, None),
            ("vit_giantopt16", "v2_webli", "vit_giantopt_patch16_siglip_384", 384, 0.9, None),
        ),
    ),
    (
        _FLEXIVIT,
        (
            ("vit_s16", "1200ep_in1k", "flexivit_small", 240, 0.95, 82.576),
            ("vit_s16", "600ep_in1k", "flexivit_small", 240, 0.95, 82.388),
            ("vit_s16", "300ep_in1k", "flexivit_small", 240, 0.95, 82.170),
            ("vit_b16", "1200ep_in1k", "flexivit_base", 240, 0.95, 84.678),
            ("vit_b16", "600ep_in1k", "flexivit_base", 240, 0.95, 84.564),
            ("vit_b16", "300ep_in1k", "flexivit_base", 240, 0.95, 84.402),
            ("vit_l16", "1200ep_in1k", "flexivit_large", 240, 0.95, 85.646),
            ("vit_l16", "600ep_in1k", "flexivit_large", 240, 0.95, 85.530),
            ("vit_l16", "300ep_in1k", "flexivit_large", 240, 0.95, 85.284),
        ),
    ),
    (
        _BIT,
        (
            ("bit_r50x1", "goog_in21k_ft_in1k", "resnetv2_50x1_bit", 448, 1.0, 80.386),
            ("bit_r50x3", "goog_in21k_ft_in1k", "resnetv2_50x3_bit", 448, 1.0, 83.982),
            ("bit_r101x1", "goog_in21k_ft_in1k", "resnetv2_101x1_bit", 448, 1.0, 82.332),
            ("bit_r101x3", "goog_in21k_ft_in1k", "resnetv2_101x3_bit", 448, 1.0, 84.430),
            ("bit_r152x2", "goog_in21k_ft_in1k", "resnetv2_152x2_bit", 448, 1.0, 84.468),
            ("bit_r152x4", "goog_in21k_ft_in1k", "resnetv2_152x4_bit", 480, 1.0, 84.936),
        ),
    ),
    (
        dataclasses.replace(_BIT, classes=21843),
        (
            ("bit_r50x1", "goog_in21k", "resnetv2_50x1_bit", 224, 0.875, None),
            ("bit_r50x3", "goog_in21k", "resnetv2_50x3_bit", 224, 0.875, None),
            ("bit_r101x1", "goog_in21k", "resnetv2_101x1_bit", 224, 0.875, None),
            ("bit_r101x3", "goog_in21k", "resnetv2_101x3_bit", 224, 0.875, None),
            ("bit_r152x2", "goog_in21k", "resnetv2_152x2_bit", 224, 0.875, None),
            ("bit_r152x4", "goog_in21k", "resnetv2_152x4_bit", 224, 0.875, None),
        ),
    ),
)


def _tag(timm_tag: str, name: str, paper: str, size: int) -> str:
    """Ours: what it is, in the words of the other cards, and the size where it is not 224."""
    words = {"siglip2": "siglip2_", "registers": "dinov2_reg4_", "vit": "", "augreg": "", "sam": ""}
    origin = words.get(paper, "" if timm_tag.startswith(paper) else f"{paper}_")
    recipe = timm_tag.removeprefix("fb_").removeprefix("goog_").removeprefix("v2_")
    if "distilled" in name:
        origin += "distilled_"
    return f"timm_{origin}{recipe}" + ("" if size == 224 else f"_{size}")


def _card(family: _Family, row: tuple[Any, ...]) -> Card:
    variant, timm_tag, name, size, crop, top1 = row
    interpolation = "bilinear" if family.paper == "bit" else "bicubic"
    return Card(
        variant,
        _tag(timm_tag, name, family.paper, size),
        f"hf://timm/{name}.{timm_tag}",
        "timm",
        image_size=(size, size),
        classes=family.classes,
        preprocessing=dataclasses.replace(
            family.statistics, interpolation=interpolation, crop_ratio=crop, library="timm"
        ),
        options=family.options,
        flexible=family.paper == "flexivit",
        paper=PAPERS[family.paper],
        licence=family.licence,
        source=_SOURCE,
        top1=top1,
        top1_source=_RESULTS if top1 else None,
    )


TIMM_CARDS: tuple[Card, ...] = tuple(_card(family, row) for family, rows in _ROWS for row in rows)
