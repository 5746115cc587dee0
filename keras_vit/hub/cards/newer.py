"""Checkpoints of CLIP, DINOv3, EVA-02, Perception Encoder, AIMv2, BEiT and other newer ViTs."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, UNIT_RANGE, Preprocessing
from keras_vit.hub.cards.card import PAPERS, Card

_SOURCE = "https://github.com/huggingface/pytorch-image-models"
_RESULTS = "timm's results-imagenet.csv"
_OPENAI = Preprocessing(
    mean=(122.7709383, 116.7460125, 104.09373615),
    std=(68.5005327, 66.6321579, 70.32316305),
    interpolation="bicubic",
)
_SATELLITE = Preprocessing(mean=(109.65, 104.805, 75.48), std=(54.315, 39.78, 36.465))
_NOT_COMMERCIAL = "Not for commercial use."
_DINOV3_NOTE = (
    "The DINOv3 License is no open-source licence: whoever passes the weights on, or models made "
    "from them, must include the agreement, https://ai.meta.com/resources/models-and-libraries/"
    "dinov3-license/."
)


@dataclasses.dataclass(frozen=True)
class _Family:
    """What the files of one origin share."""

    paper: str
    licence: str
    statistics: Preprocessing = _OPENAI
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    note: str | None = None
    project: str = "timm"


_QUICK, _EXACT = {"gelu": "quick"}, {"gelu": "exact"}
_NO_BIAS = {"without_bias": ("query", "key", "value"), "pooling": "token"}
_TOKEN = {"pooling": "token"}
_CLIP = _Family("clip", "MIT", options=_QUICK)
_OPEN_CLIP = _Family("open_clip", "MIT", options=_EXACT)
_OPEN_CLIP_HALF = dataclasses.replace(_OPEN_CLIP, statistics=UNIT_RANGE)
_DATACOMP = _Family("datacomp", "MIT", options=_EXACT)
_DFN = _Family("dfn", "Apple-ASCL", options=_QUICK, note="Under Apple's sample code licence.")
_METACLIP = _Family("metaclip", "CC-BY-NC-4.0", options=_QUICK, note=_NOT_COMMERCIAL)
_DINOV3 = _Family("dinov3", "DINOv3 License", IMAGENET_STATISTICS, _NO_BIAS, _DINOV3_NOTE)
_DINOV3_HUB = dataclasses.replace(_DINOV3, options=_TOKEN, project="transformers")
_EUPE = _Family(
    "eupe", "FAIR Noncommercial Research License", IMAGENET_STATISTICS, _TOKEN, _NOT_COMMERCIAL
)
_EVA02 = _Family("eva02", "MIT")
_EVA02_PRETRAINED = dataclasses.replace(_EVA02, options={"pooling": "gap"})
_PERCEPTION = _Family("perception", "Apache-2.0", UNIT_RANGE)
_BEIT = _Family("beit", "Apache-2.0", UNIT_RANGE)
_BEITV2 = _Family("beitv2", "Apache-2.0", IMAGENET_STATISTICS)
_AIMV2 = _Family("aimv2", "Apple-ASCL", note="Under Apple's sample code licence.")
# The encoder of SigLIP without its pooling, which timm calls "gap".
_GAP = {"pooling": "gap", "class_token": False, "position_on_class_token": False}
_SIGLIP = _Family("siglip", "Apache-2.0", UNIT_RANGE, {**_EXACT, **_GAP})
_SIGLIP2 = dataclasses.replace(_SIGLIP, paper="siglip2")
_SIGLIP2_TANH = dataclasses.replace(_SIGLIP2, options={"gelu": "tanh", **_GAP})
_SIGLIP2_NAFLEX = _Family("siglip2", "Apache-2.0", UNIT_RANGE, project="transformers")
# timm's own recipe for small models, "sbb".
_SBB = _Family(
    "registers",
    "Apache-2.0",
    UNIT_RANGE,
    {**_EXACT, **_GAP, "num_registers": 4, "layer_scale": 1e-5},
)
_SBB_ONE = dataclasses.replace(_SBB, options={**_SBB.options, "num_registers": 1})
_DINOV2 = _Family("dinov2", "Apache-2.0", IMAGENET_STATISTICS)
_REGISTERS = _Family(
    "registers",
    "Apache-2.0",
    IMAGENET_STATISTICS,
    {"num_registers": 4, "position_on_class_token": False},
)

# Family; variant, tag, repository, image size, crop ratio (negative: squashed), classes, top-1. The
# classes of CLIP and the Perception Encoder are dimensions of their projection.
_ROWS: tuple[tuple[_Family, tuple[tuple[Any, ...], ...]], ...] = (
    (
        _CLIP,
        (
            ("clip_b32", "openai", "vit_base_patch32_clip_224.openai", 224, 0.9, 512),
            ("clip_b16", "openai", "vit_base_patch16_clip_224.openai", 224, 0.9, 512),
            ("clip_l14", "openai", "vit_large_patch14_clip_224.openai", 224, 1.0, 768),
            ("clip_l14", "openai", "vit_large_patch14_clip_336.openai", 336, 1.0, 768),
        ),
    ),
    (
        _OPEN_CLIP,
        (
            ("clip_b32", "laion2b", "vit_base_patch32_clip_224.laion2b", 224, 0.9, 512),
            ("clip_b16", "laion2b", "vit_base_patch16_clip_224.laion2b", 224, 1.0, 512),
            ("clip_h14", "laion2b", "vit_huge_patch14_clip_224.laion2b", 224, 1.0, 1024),
            ("clip_giant14", "laion2b", "vit_giant_patch14_clip_224.laion2b", 224, 1.0, 1024),
            ("clip_gigantic14", "laion2b", "vit_gigantic_patch14_clip_224.laion2b", 224, 1.0, 1280),
            ("clip_b16", "laion400m", "vit_base_patch16_clip_224.laion400m_e32", 224, 1.0, 512),
            ("clip_l14", "laion400m", "vit_large_patch14_clip_224.laion400m_e32", 224, 1.0, 768),
        ),
    ),
    (
        _OPEN_CLIP_HALF,
        (("clip_l14", "laion2b", "vit_large_patch14_clip_224.laion2b", 224, 1.0, 768),),
    ),
    (
        _DATACOMP,
        (
            ("clip_b32", "datacompxl", "vit_base_patch32_clip_224.datacompxl", 224, 1.0, 512),
            ("clip_b16", "datacompxl", "vit_base_patch16_clip_224.datacompxl", 224, 1.0, 512),
            ("clip_l14", "datacompxl", "vit_large_patch14_clip_224.datacompxl", 224, 1.0, 768),
        ),
    ),
    (
        _DFN,
        (
            ("clip_b16", "dfn2b", "vit_base_patch16_clip_224.dfn2b", 224, 1.0, 512),
            ("clip_l14", "dfn2b", "vit_large_patch14_clip_224.dfn2b", 224, 1.0, 768),
            ("clip_h14", "dfn5b", "vit_huge_patch14_clip_224.dfn5b", 224, 1.0, 1024),
            ("clip_h14", "dfn5b", "vit_huge_patch14_clip_378.dfn5b", 378, 1.0, 1024),
        ),
    ),
    (
        dataclasses.replace(_DFN, options=_EXACT),
        (("clip_l14", "dfn2b_s39b", "vit_large_patch14_clip_224.dfn2b_s39b", 224, 1.0, 768),),
    ),
    (
        _METACLIP,
        (
            ("clip_b32", "metaclip", "vit_base_patch32_clip_224.metaclip_2pt5b", 224, 1.0, 512),
            ("clip_b16", "metaclip", "vit_base_patch16_clip_224.metaclip_2pt5b", 224, 1.0, 512),
            ("clip_l14", "metaclip", "vit_large_patch14_clip_224.metaclip_2pt5b", 224, 1.0, 768),
            ("clip_h14", "metaclip", "vit_huge_patch14_clip_224.metaclip_2pt5b", 224, 1.0, 1024),
        ),
    ),
    (
        _DINOV3,
        (
            ("dinov3_s16", "lvd1689m", "vit_small_patch16_dinov3.lvd1689m", 256, 1.0, None),
            ("dinov3_splus16", "lvd1689m", "vit_small_plus_patch16_dinov3.lvd1689m", 256, 1.0,
             None),
            ("dinov3_b16", "lvd1689m", "vit_base_patch16_dinov3.lvd1689m", 256, 1.0, None),
            ("dinov3_l16", "lvd1689m", "vit_large_patch16_dinov3.lvd1689m", 256, 1.0, None),
            ("dinov3_hplus16", "lvd1689m", "vit_huge_plus_patch16_dinov3.lvd1689m", 256, 1.0, None),
            ("dinov3_7b16", "lvd1689m", "vit_7b_patch16_dinov3.lvd1689m", 256, 1.0, None),
        ),
    ),
    (
        dataclasses.replace(_DINOV3, statistics=_SATELLITE),
        (("dinov3_l16", "sat493m", "vit_large_patch16_dinov3.sat493m", 256, 1.0, None),),
    ),
    (
        _DINOV3_HUB,
        tuple(
            (f"dinov3_{size}16", "lvd1689m", f"facebook/dinov3-vit{hub}-pretrain-lvd1689m", 224,
             None, None)
            for size, hub in (
                ("s", "s16"), ("splus", "s16plus"), ("b", "b16"), ("l", "l16"),
                ("hplus", "h16plus"),
            )
        ),
    ),
    (
        _EUPE,
        (
            ("dinov3_s16", "eupe", "vit_small_patch16_dinov3_qkvb.eupe_lvd1689m", 256, 1.0, None),
            ("dinov3_b16", "eupe", "vit_base_patch16_dinov3_qkvb.eupe_lvd1689m", 256, 1.0, None),
        ),
    ),
    (
        _EVA02,
        (
            ("eva02_ti14", "mim_in22k_ft_in1k", "eva02_tiny_patch14_336.mim_in22k_ft_in1k", 336,
             1.0, 1000),
            ("eva02_s14", "mim_in22k_ft_in1k", "eva02_small_patch14_336.mim_in22k_ft_in1k", 336,
             1.0, 1000),
            ("eva02_b14", "mim_in22k_ft_in1k", "eva02_base_patch14_448.mim_in22k_ft_in1k", 448, 1.0,
             1000),
            ("eva02_b14", "mim_in22k_ft_in22k_in1k",
             "eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", 448, -1.0, 1000),
            ("eva02_l14", "mim_m38m_ft_in22k_in1k",
             "eva02_large_patch14_448.mim_m38m_ft_in22k_in1k", 448, -1.0, 1000, 90.05),
        ),
    ),
    (
        _EVA02_PRETRAINED,
        (
            ("eva02_ti14", "mim_in22k", "eva02_tiny_patch14_224.mim_in22k", 224, 0.9, None),
            ("eva02_s14", "mim_in22k", "eva02_small_patch14_224.mim_in22k", 224, 0.9, None),
            ("eva02_b14", "mim_in22k", "eva02_base_patch14_224.mim_in22k", 224, 0.9, None),
            ("eva02_l14", "mim_m38m", "eva02_large_patch14_224.mim_m38m", 224, 0.9, None),
        ),
    ),
    (
        _PERCEPTION,
        (
            ("pe_core_ti16", "fb", "vit_pe_core_tiny_patch16_384.fb", 384, 1.0, 512),
            ("pe_core_s16", "fb", "vit_pe_core_small_patch16_384.fb", 384, 1.0, 512),
            ("pe_core_b16", "fb", "vit_pe_core_base_patch16_224.fb", 224, 1.0, 1024),
            ("pe_core_l14", "fb", "vit_pe_core_large_patch14_336.fb", 336, 1.0, 1024),
            ("pe_core_gigantic14", "fb", "vit_pe_core_gigantic_patch14_448.fb", 448, 1.0, 1280),
            *(
                (f"pe_{part}_{size}{patch}", tag, f"vit_pe_{part}_{name}_patch{patch}_{side}.{tag}",
                 side, 1.0, None)
                for part, size, name, patch, side, tags in (
                    ("lang", "l", "large", 14, 448, ("fb", "fb_tiling")),
                    ("lang", "gigantic", "gigantic", 14, 448, ("fb", "fb_tiling")),
                    ("spatial", "ti", "tiny", 16, 512, ("fb",)),
                    ("spatial", "s", "small", 16, 512, ("fb",)),
                    ("spatial", "b", "base", 16, 512, ("fb",)),
                    ("spatial", "l", "large", 14, 448, ("fb",)),
                    ("spatial", "gigantic", "gigantic", 14, 448, ("fb",)),
                )
                for tag in tags
            ),
        ),
    ),
    (
        _BEIT,
        tuple(
            (f"beit_{size}16", tag, f"beit_{name}_patch16_{side}.{tag}", side, crop, classes)
            for size, name, sides in (("b", "base", (224, 384)), ("l", "large", (224, 384, 512)))
            for tag, side, crop, classes in (
                ("in22k_ft_in22k", 224, 0.9, 21841),
                *(
                    ("in22k_ft_in22k_in1k", side, 0.9 if side == 224 else 1.0, 1000)
                    for side in sides
                ),
            )
        ),
    ),
    (
        _BEITV2,
        tuple(
            (f"beitv2_{size}16", tag, f"beitv2_{name}_patch16_224.{tag}", 224, crop, classes)
            for size, name, fine in (("b", "base", 0.9), ("l", "large", 0.95))
            for tag, crop, classes in (
                ("in1k_ft_in22k", 0.9, 21841),
                ("in1k_ft_in22k_in1k", fine, 1000),
                ("in1k_ft_in1k", fine, 1000),
            )
        ),
    ),
    (
        _AIMV2,
        (
            ("aimv2_l14", "apple_pt", "aimv2_large_patch14_224.apple_pt", 224, 1.0, None),
            ("aimv2_l14", "apple_pt", "aimv2_large_patch14_336.apple_pt", 336, 1.0, None),
            ("aimv2_l14", "apple_pt", "aimv2_large_patch14_448.apple_pt", 448, 1.0, None),
            ("aimv2_h14", "apple_pt", "aimv2_huge_patch14_224.apple_pt", 224, 1.0, None),
        ),
    ),
    (
        _SIGLIP,
        (
            ("vit_b16", "siglip_gap_webli", "vit_base_patch16_siglip_gap_224.webli", 224, 0.9,
             None),
            ("vit_b16", "siglip_gap_webli", "vit_base_patch16_siglip_gap_256.webli", 256, 0.9,
             None),
            ("vit_b16", "siglip_gap_webli", "vit_base_patch16_siglip_gap_384.webli", 384, 0.9,
             None),
            ("vit_l16", "siglip_gap_webli", "vit_large_patch16_siglip_gap_256.webli", 256, 0.9,
             None),
            ("vit_l16", "siglip_gap_webli", "vit_large_patch16_siglip_gap_384.webli", 384, 0.9,
             None),
            ("vit_so400m14", "siglip_gap_webli", "vit_so400m_patch14_siglip_gap_224.webli", 224,
             0.9, None),
        ),
    ),
    (
        _SIGLIP2,
        (
            ("vit_b16", "siglip2_gap_webli", "vit_base_patch16_siglip_gap_224.v2_webli", 224, 0.9,
             None),
            ("vit_b16", "siglip2_gap_webli", "vit_base_patch16_siglip_gap_256.v2_webli", 256, 0.9,
             None),
            ("vit_l16", "siglip2_gap_webli", "vit_large_patch16_siglip_gap_256.v2_webli", 256, 0.9,
             None),
            ("vit_so400m14", "siglip2_gap_webli", "vit_so400m_patch14_siglip_gap_224.v2_webli", 224,
             0.9, None),
        ),
    ),
    (
        _SIGLIP2_TANH,
        (("vit_b32", "siglip2_gap_webli", "vit_base_patch32_siglip_gap_256.v2_webli", 256, 0.9,
          None),),
    ),
    (
        _SIGLIP2_NAFLEX,
        tuple(
            (f"siglip2_naflex_{size}16", "webli", f"google/siglip2-{hub}-patch16-naflex", 256,
             None, None)
            for size, hub in (("b", "base"), ("so400m", "so400m"))
        ),
    ),
    (
        _SBB,
        (
            ("vit_m16", "sbb_reg4_in12k_ft_in1k",
             "vit_medium_patch16_reg4_gap_256.sbb_in12k_ft_in1k", 256, 0.95, 1000),
            ("vit_m16", "sbb_reg4_in1k", "vit_medium_patch16_reg4_gap_256.sbb_in1k", 256, 0.95,
             1000),
        ),
    ),
    (
        _SBB_ONE,
        (("vit_m16", "sbb_reg1_in1k", "vit_medium_patch16_reg1_gap_256.sbb_in1k", 256, 0.95,
          1000),),
    ),
    (
        _DINOV2,
        (("dinov2_giant14", "lvd142m", "vit_giant_patch14_dinov2.lvd142m", 518, 1.0, None),),
    ),
    (
        _REGISTERS,
        (("dinov2_giant14", "reg4_lvd142m", "vit_giant_patch14_reg4_dinov2.lvd142m", 518, 1.0,
          None),),
    ),
)  # fmt: skip


def _card(family: _Family, row: tuple[Any, ...]) -> Card:
    variant, tag, name, size, crop, classes, *top1 = row
    timm = family.project == "timm"
    images = dataclasses.replace(
        family.statistics,
        interpolation="bicubic" if timm else "bilinear",
        crop_ratio=None if crop is None or crop < 0 else crop,
        library=family.project,
    )
    ending = "" if size == 224 else f"_{size}"
    return Card(
        variant,
        f"{'timm' if timm else 'hf'}_{tag}{ending}",
        f"hf://timm/{name}" if timm else f"hf://{name}",
        family.project,
        image_size=(size, size),
        classes=classes,
        preprocessing=images,
        options=family.options,
        paper=PAPERS[family.paper],
        licence=family.licence,
        source=_SOURCE if timm else f"https://huggingface.co/{name}",
        top1=top1[0] if top1 else None,
        top1_source=_RESULTS if top1 else None,
        note=family.note,
    )


NEWER_CARDS: tuple[Card, ...] = tuple(_card(family, row) for family, rows in _ROWS for row in rows)
