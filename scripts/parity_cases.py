"""The pairs of models that `scripts/parity` compares: one row each."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of another project and ours.

    Args:
        name: As the report names it.
        project: `"timm"` or `"transformers"`.
        model: timm's name, or the class of transformers.
        variant: Our architecture.
        image_size: Pixels of a side.
        theirs: Options of their model.
        ours: Options of ours beyond what the file says.
        config: Class of transformers' configuration.
        output: What their model without a head gives: `"token"` or `"pooler"`.
        arguments: What transformers' class takes beside its configuration.
        read_official: Whether our model is written as an official file, for timm's own reader.
        include_top: Whether the model has a head.
    """

    name: str
    project: str
    model: str
    variant: str
    image_size: int = 224
    theirs: dict[str, Any] = dataclasses.field(default_factory=dict)
    ours: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: str = ""
    output: str = "token"
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    read_official: str = ""
    include_top: bool = True


def _transformers(width: int, depth: int, heads: int, mlp: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": mlp,
        "num_labels": 1000,
        **more,
    }


_SMALL, _BASE = (384, 12, 6, 1536), (768, 12, 12, 3072)
_DINO = {"patch_size": 14, "image_size": 224}
_NO_HEAD, _HEAD = {"num_classes": 0}, {"num_classes": 1000}
_S14 = {"patch_size": 14}
# Files in official layouts carry the official functions; timm takes them where it is told so.
_SIGLIP = "vit_base_patch16_siglip_224"
_TANH = {"act_layer": "gelu_tanh"}
_TORCH_STEM = {"standardization": "torch", "norm_epsilon": 1e-5}

TIMM = [
    Case("ViT-B/16", "timm", "vit_base_patch16_224", "vit_b16"),
    Case("ViT-S/32 (AugReg)", "timm", "vit_small_patch32_224", "vit_s32"),
    Case("ViT-Ti/16 at 384", "timm", "vit_tiny_patch16_384", "vit_ti16", 384),
    Case("ViT-L/16", "timm", "vit_large_patch16_224", "vit_l16"),
    Case("DeiT-S", "timm", "deit_small_patch16_224", "vit_s16"),
    Case("DeiT-S distilled", "timm", "deit_small_distilled_patch16_224", "vit_s16"),
    Case("DeiT-III-B", "timm", "deit3_base_patch16_224", "vit_b16"),
    Case(
        "DINOv2-S/14",
        "timm",
        "vit_small_patch14_dinov2",
        "vit_s16",
        518,
        _NO_HEAD,
        {"patch_size": 14},
        include_top=False,
    ),
    Case(
        "DINOv2-S/14 registers",
        "timm",
        "vit_small_patch14_reg4_dinov2",
        "vit_s16",
        518,
        _NO_HEAD,
        {"patch_size": 14},
        include_top=False,
    ),
    Case("MAE-B/16", "timm", "vit_base_patch16_224", "vit_b16", 224, _NO_HEAD, include_top=False),
    Case(
        "SigLIP-B/16",
        "timm",
        "vit_base_patch16_siglip_224",
        "vit_b16",
        224,
        _NO_HEAD,
        include_top=False,
    ),
    Case("FlexiViT-B", "timm", "flexivit_base", "vit_b16", 240),
    Case("R50+ViT-B/16", "timm", "vit_base_r50_s16_224", "r50_vit_b16", 224, _HEAD),
    Case("R26+ViT-S/32", "timm", "vit_small_r26_s32_224", "r26_vit_s32"),
    Case("R+ViT-Ti/16", "timm", "vit_tiny_r_s16_p8_224", "r_vit_ti16"),
    Case("BiT R50x1", "timm", "resnetv2_50x1_bit", "bit_r50x1"),
]

TRANSFORMERS = [
    Case(
        "ViT-B/16",
        "transformers",
        "ViTForImageClassification",
        "vit_b16",
        theirs=_transformers(*_BASE),
        config="ViTConfig",
    ),
    Case(
        "DeiT-S distilled",
        "transformers",
        "DeiTForImageClassificationWithTeacher",
        "vit_s16",
        theirs=_transformers(*_SMALL),
        config="DeiTConfig",
    ),
    Case(
        "DINOv2-S/14",
        "transformers",
        "Dinov2Model",
        "vit_s16",
        theirs=_transformers(*_SMALL, **_DINO),
        ours=_S14,
        config="Dinov2Config",
        include_top=False,
    ),
    Case(
        "DINOv2-S/14 registers",
        "transformers",
        "Dinov2WithRegistersModel",
        "vit_s16",
        theirs=_transformers(*_SMALL, **_DINO),
        ours=_S14,
        config="Dinov2WithRegistersConfig",
        include_top=False,
    ),
    Case(
        "MAE-B/16",
        "transformers",
        "ViTMAEModel",
        "vit_b16",
        theirs=_transformers(*_BASE, mask_ratio=0.0),
        config="ViTMAEConfig",
        include_top=False,
    ),
    Case(
        "SigLIP-B/16",
        "transformers",
        "SiglipVisionModel",
        "vit_b16",
        theirs=_transformers(*_BASE, patch_size=16, image_size=224),
        config="SiglipVisionConfig",
        output="pooler",
        include_top=False,
    ),
    Case(
        "BiT R50x1",
        "transformers",
        "BitForImageClassification",
        "bit_r50x1",
        theirs={"num_labels": 1000},
        config="BitConfig",
    ),
]

# Ours written as official files, read by timm.
OFFICIAL = [
    Case(
        f"{name}, {layout} file", "timm", model, variant, theirs={**_TANH, **theirs},
        ours={"gelu": "tanh", **ours}, read_official=layout, include_top=top,
    )
    for name, layout, model, variant, theirs, ours, top in [
        ("ViT-Ti/16", "official", "vit_tiny_patch16_224", "vit_ti16", {}, {}, True),
        ("ViT-S/32", "official", "vit_small_patch32_224", "vit_s32", {}, {}, True),
        ("ViT-B/16", "official", "vit_base_patch16_224", "vit_b16", {}, {}, True),
        ("ViT-B/32", "official", "vit_base_patch32_224", "vit_b32", {}, {}, True),
        ("ViT-L/16", "official", "vit_large_patch16_224", "vit_l16", {}, {}, True),
        ("R+ViT-Ti/16", "official", "vit_tiny_r_s16_p8_224", "r_vit_ti16", {}, {}, True),
        ("R26+ViT-S/32", "official", "vit_small_r26_s32_224", "r26_vit_s32", {}, {}, True),
        ("R50+ViT-B/16", "official", "vit_base_r50_s16_224", "r50_vit_b16", _HEAD, {}, True),
        ("SigLIP-B/16", "big_vision", _SIGLIP, "vit_b16", _NO_HEAD, {}, False),
        ("BiT R50x1", "official", "resnetv2_50x1_bit", "bit_r50x1", {}, {}, True),
    ]
]  # fmt: skip
