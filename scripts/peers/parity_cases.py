"""The pairs of models that `scripts/parity` compares: one row each."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import ResNetStem, field_value
from keras_vit.variants import find_config


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of another project and ours.

    Args:
        name: As the report names it.
        project: `"timm"`, `"timm (ViT-5 authors)"`, `"transformers"`, `"transformers 4"` for what
            version 5 dropped, or `"flax"`, the official networks in the library that their code
            uses.
        model: timm's name, the class of transformers, or the network in `parity_flax.py`.
        variant: Our architecture.
        image_size: Pixels of a side.
        theirs: Options of their model.
        ours: Options of ours beyond what the file says.
        output: What their model without a head gives: `"token"` or `"pooler"`.
        layout: How ours is written, where it is not the project's own.
        include_top: Whether the model has a head.
    """

    name: str
    project: str
    model: str
    variant: str
    image_size: int = 224
    theirs: dict[str, Any] = dataclasses.field(default_factory=dict)
    ours: dict[str, Any] = dataclasses.field(default_factory=dict)
    output: str = "token"
    layout: str = ""
    include_top: bool = True

    @property
    def title(self) -> str:
        """What its row is called."""
        return f"{self.project}, {self.name}"


def _case(name: str, project: str, model: str, variant: str, **more: Any) -> Case:
    """A case without a head where the options of their model say so."""
    headless = (more.get("theirs") or {}).get("num_classes") == 0
    return Case(name, project, model, variant, **{"include_top": not headless, **more})


_NO_HEAD, _HEAD = {"num_classes": 0}, {"num_classes": 1000}
_P14 = {"patch_size": 14}
_SIGLIP = "vit_base_patch16_siglip_224"

TIMM = [
    _case(name, "timm", model, variant, image_size=size, theirs=theirs, ours=ours)
    for name, model, variant, size, theirs, ours in [
        ("ViT-B/16", "vit_base_patch16_224", "vit_b16", 224, {}, {}),
        ("ViT-S/32 (AugReg)", "vit_small_patch32_224", "vit_s32", 224, {}, {}),
        ("ViT-Ti/16 at 384", "vit_tiny_patch16_384", "vit_ti16", 384, {}, {}),
        ("ViT-L/16", "vit_large_patch16_224", "vit_l16", 224, {}, {}),
        ("DeiT-S", "deit_small_patch16_224", "vit_s16", 224, {}, {}),
        ("DeiT-S distilled", "deit_small_distilled_patch16_224", "vit_s16", 224, {}, {}),
        ("DeiT-III-B", "deit3_base_patch16_224", "vit_b16", 224, {}, {}),
        ("DINOv2-S/14", "vit_small_patch14_dinov2", "vit_s16", 518, _NO_HEAD, _P14),
        (
            "DINOv2-S/14 registers", "vit_small_patch14_reg4_dinov2", "vit_s16", 518, _NO_HEAD,
            _P14,
        ),
        ("MAE-B/16", "vit_base_patch16_224", "vit_b16", 224, _NO_HEAD, {}),
        ("SigLIP-B/16", _SIGLIP, "vit_b16", 224, _NO_HEAD, {"gelu": "exact"}),
        ("FlexiViT-B", "flexivit_base", "vit_b16", 240, {}, {}),
        ("R50+ViT-B/16", "vit_base_r50_s16_224", "r50_vit_b16", 224, _HEAD, {}),
        ("R26+ViT-S/32", "vit_small_r26_s32_224", "r26_vit_s32", 224, {}, {}),
        ("R+ViT-Ti/16", "vit_tiny_r_s16_p8_224", "r_vit_ti16", 224, {}, {}),
        ("BiT R50x1", "resnetv2_50x1_bit", "bit_r50x1", 224, {}, {}),
    ]
]  # fmt: skip

# What no array tells; the files have no `config.json` here.
_UNTOLD = ("gelu", "norm_epsilon", "rope", "position_embedding", "pooling")


def untold(name: str, **more: Any) -> dict[str, Any]:
    """Options of a variant, or of a name of timm, that no array tells."""
    config = find_config(name)
    return {**{field: field_value(config, field) for field in _UNTOLD}, **more}


TIMM += [
    _case(name, "timm", model, variant, image_size=size, theirs=theirs, ours=ours)
    for name, model, variant, size, theirs, ours in [
        (
            "CLIP-B/16", "vit_base_patch16_clip_224", "clip_b16", 224, _HEAD,
            untold("clip_b16", gelu="exact"),
        ),
        (
            "DINOv3-S/16", "vit_small_patch16_dinov3_qkvb", "dinov3_s16", 256,
            {**_HEAD, "global_pool": "token"}, untold("dinov3_s16"),
        ),
        ("EVA-02-S/14", "eva02_small_patch14_224", "eva02_s14", 224, _HEAD, untold("eva02_s14")),
        (
            "PE-core-L/14", "vit_pe_core_large_patch14_336", "pe_core_l14", 336, _HEAD,
            untold("pe_core_l14", map_prefix_tokens=True),
        ),
        (
            "AIMv2-L/14", "aimv2_large_patch14_224", "aimv2_l14", 224, _HEAD,
            untold("aimv2_l14", norm="rms"),
        ),
        ("BEiT v2-B/16", "beitv2_base_patch16_224", "beitv2_b16", 224, {}, {}),
        (
            "DINOv2-g/14", "vit_giant_patch14_dinov2", "dinov2_giant14", 224,
            {**_NO_HEAD, "img_size": 224}, {},
        ),
    ]
]  # fmt: skip
# Names of timm that are no variants of ours.
TIMM += [
    _case(name, "timm", model, model, image_size=size, theirs=theirs, ours=untold(model))
    for name, model, size, theirs in [
        ("EVA-02-B/14", "eva02_base_patch14_224", 224, _HEAD),
        ("EVA-CLIP-B/16", "eva02_base_patch16_clip_224", 224, _HEAD),
        ("PE-spatial-B/16", "vit_pe_spatial_base_patch16_512", 512, _HEAD),
        ("PE-lang-L/14", "vit_pe_lang_large_patch14_448", 448, _HEAD),
        ("DINOv3-S+/16", "vit_small_plus_patch16_dinov3_qkvb", 256, _HEAD),
        ("SBB medium/16", "vit_medium_patch16_reg4_gap_256", 256, _HEAD),
        ("SigLIP-B/16 gap", "vit_base_patch16_siglip_gap_224", 224, _NO_HEAD),
        ("I-JEPA-H/14", "vit_huge_patch14_gap_224", 224, _HEAD),
        ("TIPSv2-B/14", "vit_base_patch14_reg1_tipsv2", 448, _HEAD),
    ]
]  # fmt: skip
# The code of its authors, which names models and arrays as timm does.
TIMM += [Case("ViT-5-S/16", "timm (ViT-5 authors)", "vit5_small", "vit5_s16")]


def _sizes(*sizes: int, **more: Any) -> dict[str, Any]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return {**dict(zip(names, sizes, strict=True)), "num_labels": 1000, **more}


_SMALL, _BASE = (384, 12, 6, 1536), (768, 12, 12, 3072)
_DINO = _sizes(*_SMALL, patch_size=14, image_size=224)
# The backbone of google/vit-hybrid-base-bit-384, at another size.
_HYBRID_STEM = {
    "model_type": "bit",
    "layer_type": "bottleneck",
    "depths": [3, 4, 9],
    "out_features": ["stage3"],
    "embedding_dynamic_padding": True,
    "global_padding": "same",
}
_HYBRID = _sizes(
    *_BASE, image_size=224, backbone_config=_HYBRID_STEM, backbone_featmap_shape=[1, 1024, 14, 14]
)

TRANSFORMERS = [
    Case(
        name, project, f"{family}{ending}", variant, theirs=theirs,
        ours=_P14 if theirs is _DINO else {},
        include_top="ForImage" in ending or "Projection" in ending,
        output="pooler" if family.startswith("Siglip") else "token",
    )
    for name, project, family, ending, variant, theirs in [
        ("ViT-B/16", "transformers", "ViT", "ForImageClassification", "vit_b16", _sizes(*_BASE)),
        (
            "DeiT-S distilled", "transformers", "DeiT", "ForImageClassificationWithTeacher",
            "vit_s16", _sizes(*_SMALL),
        ),
        ("DINOv2-S/14", "transformers", "Dinov2", "Model", "vit_s16", _DINO),
        (
            "DINOv2-S/14 registers", "transformers", "Dinov2WithRegisters", "Model", "vit_s16",
            _DINO,
        ),
        (
            "MAE-B/16", "transformers", "ViTMAE", "Model", "vit_b16",
            _sizes(*_BASE, mask_ratio=0.0),
        ),
        (
            "SigLIP-B/16", "transformers", "SiglipVision", "Model", "vit_b16",
            _sizes(*_BASE, patch_size=16, image_size=224),
        ),
        (
            "SigLIP 2 NaFlex-B/16", "transformers", "Siglip2Vision", "Model", "siglip2_naflex_b16",
            _sizes(*_BASE, patch_size=16, num_patches=256),
        ),
        (
            "BiT R50x1", "transformers", "Bit", "ForImageClassification", "bit_r50x1",
            {"num_labels": 1000},
        ),
        (
            "R50+ViT-B/16", "transformers 4", "ViTHybrid", "ForImageClassification",
            "r50_vit_b16", _HYBRID,
        ),
        (
            "CLIP-B/32", "transformers", "CLIPVision", "ModelWithProjection", "clip_b32",
            _sizes(*_BASE, patch_size=32, image_size=224, projection_dim=1000),
        ),
        (
            "BEiT-B/16", "transformers", "Beit", "ForImageClassification", "beit_b16",
            _sizes(*_BASE, use_relative_position_bias=True),
        ),
        (
            "DINOv3-S/16", "transformers", "DINOv3ViT", "Model", "dinov3_s16",
            _sizes(*_SMALL, patch_size=16, image_size=224, num_register_tokens=4),
        ),
    ]
]  # fmt: skip

# Ours written as official files, read by timm, which computes as PyTorch's ports do; ours reads
# the same file and is told the same. (The tanh GELU is timm's where it is told so.)
_TANH = {"act_layer": "gelu_tanh"}
_TORCH = {"standardization": "torch"}


def _stem(*stages: int) -> dict[str, Any]:
    return {"stem": ResNetStem(stages, norm_epsilon=1e-5, standardization="torch")}


READ_BY_TIMM = [
    _case(
        f"{name}, {layout} file", "timm", model, variant, theirs={**_TANH, **theirs},
        ours={"gelu": "tanh", **ours} if "bit" not in variant else ours, layout=layout,
    )
    for name, layout, model, variant, theirs, ours in [
        ("ViT-Ti/16", "official", "vit_tiny_patch16_224", "vit_ti16", {}, {}),
        ("ViT-S/32", "official", "vit_small_patch32_224", "vit_s32", {}, {}),
        ("ViT-B/16", "official", "vit_base_patch16_224", "vit_b16", {}, {}),
        ("ViT-B/32", "official", "vit_base_patch32_224", "vit_b32", {}, {}),
        ("ViT-L/16", "official", "vit_large_patch16_224", "vit_l16", {}, {}),
        ("R+ViT-Ti/16", "official", "vit_tiny_r_s16_p8_224", "r_vit_ti16", {}, _stem()),
        (
            "R26+ViT-S/32", "official", "vit_small_r26_s32_224", "r26_vit_s32", {},
            _stem(2, 2, 2, 2),
        ),
        (
            "R50+ViT-B/16", "official", "vit_base_r50_s16_224", "r50_vit_b16", _HEAD,
            _stem(3, 4, 9),
        ),
        ("SigLIP-B/16", "big_vision", _SIGLIP, "vit_b16", _NO_HEAD, {}),
    ]
] + [
    Case(
        "BiT R50x1, official file", "timm", "resnetv2_50x1_bit", "bit_r50x1", ours=_TORCH,
        layout="official",
    )
]  # fmt: skip


def _flax(variant: tuple[int, ...], patch: int, **more: Any) -> dict[str, Any]:
    names = ("width", "depth", "heads", "hidden")
    return {"patch": patch, **dict(zip(names, variant, strict=True)), **more}


_TINY, _LARGE = (192, 12, 3, 768), (1024, 24, 16, 4096)
_MAP = {"layout": "big_vision", "pooling": "map", "classes": None}

# Official files, ours and theirs, with the official functions.
OFFICIAL = [
    Case(
        name, "flax", model, variant, image_size=size, theirs=theirs,
        layout=theirs.get("layout", "official"), include_top=theirs.get("classes", 1) is not None,
    )
    for name, model, variant, size, theirs in [
        ("ViT-Ti/16", "vit", "vit_ti16", 224, _flax(_TINY, 16)),
        ("ViT-S/32", "vit", "vit_s32", 224, _flax(_SMALL, 32)),
        ("ViT-B/16", "vit", "vit_b16", 224, _flax(_BASE, 16)),
        ("ViT-B/16 with pre_logits", "vit", "vit_b16", 224, _flax(_BASE, 16, pre_logits=768)),
        ("ViT-B/16 at 384", "vit", "vit_b16", 384, _flax(_BASE, 16)),
        ("ViT-B/32", "vit", "vit_b32", 224, _flax(_BASE, 32)),
        ("ViT-L/16", "vit", "vit_l16", 224, _flax(_LARGE, 16)),
        ("R+ViT-Ti/16", "vit", "r_vit_ti16", 224, _flax(_TINY, 8, stages=())),
        ("R26+ViT-S/32", "vit", "r26_vit_s32", 224, _flax(_SMALL, 1, stages=(2, 2, 2, 2))),
        ("R50+ViT-B/16", "vit", "r50_vit_b16", 224, _flax(_BASE, 1, stages=(3, 4, 9))),
        ("BiT R50x1", "bit", "bit_r50x1", 224, {"stages": (3, 4, 6, 3)}),
        ("SigLIP-B/16 (big_vision)", "vit", "vit_b16", 224, _flax(_BASE, 16, **_MAP)),
    ]
]  # fmt: skip

_GPT = "ImageGPTForCausalImageModeling"
IMAGE_GPT = [
    Case(
        name, "transformers", _GPT, "image_gpt", image_size=size,
        theirs={"n_embd": width, "n_layer": depth, "n_head": heads, "n_positions": size**2,
                "vocab_size": colors + 1},
        ours={"width": width, "depth": depth, "num_heads": heads, "colors": colors},
    )
    for name, size, width, depth, heads, colors in [
        ("Image GPT, small", 8, 32, 3, 4, 16),
        ("Image GPT S", 32, 512, 24, 8, 512),
    ]
]  # fmt: skip

CASES = [*OFFICIAL, *READ_BY_TIMM, *TIMM, *TRANSFORMERS, *IMAGE_GPT]
