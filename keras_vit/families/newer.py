"""Newer families of Vision Transformers: how they differ from the paper's, their sizes and names.

Plain tables of fields of `ViTConfig`, which `variants.py` makes configurations of and
`weights/timm_names.py` settings of checkpoints. Sources are the authors' code and timm 1.0.31.
"""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]

# https://arxiv.org/abs/2103.00020, `VisionTransformer` in github.com/openai/CLIP. The head is its
# projection to the space of images and texts.
CLIP: Fields = {
    "norm_before_blocks": True,
    "without_bias": ("patch",),
    "norm_epsilon": 1e-5,
    "gelu": "quick",
}
# https://arxiv.org/abs/2508.10104, `hub/backbones.py` in github.com/facebookresearch/dinov3. timm
# and transformers compute the periods in float32, which the authors round to bfloat16.
DINOV3: Fields = {
    "position_embedding": "none",
    "rope": {"coordinates": "centered", "base": 100.0, "interleaved": False},
    "num_registers": 4,
    "layer_scale": 1e-5,
    "norm_epsilon": 1e-5,
    "gelu": "exact",
}
# https://arxiv.org/abs/2303.11331; positions are learned, too.
EVA02: Fields = {
    "rope": {"reference_grid": (16, 16)},
    "swiglu": True,
    "without_bias": ("key",),
    "gelu": "exact",
    "pooling": "gap",
    "norm_after_pooling": True,
}
# https://arxiv.org/abs/2504.13181: the image towers with a projection ("core"), and those tuned for
# language models ("lang") and dense prediction ("spatial"), whose outputs are tokens.
PERCEPTION: Fields = {
    "rope": {"offset": 1.0, "order": "wh"},  # and the grid of the pre-training
    "norm_before_blocks": True,
    "without_bias": ("patch",),
    "norm_epsilon": 1e-5,
    "gelu": "exact",
    "pooling": "map",
    "map_heads": 8,
}
PERCEPTION_TOKENS: Fields = {
    **{key: value for key, value in PERCEPTION.items() if key != "map_heads"},
    "pooling": "gap",
    "norm_after_blocks": False,
}
# The largest of each have no class token, and count patches from 0.
PERCEPTION_GIGANTIC: Fields = {"rope": {"order": "wh"}, "class_token": False}
# https://arxiv.org/abs/2411.14402
AIMV2: Fields = {
    "norm": "rms",
    "norm_epsilon": 1e-5,
    "norm_patches": True,
    "swiglu": True,
    "without_bias": ("query", "key", "value", "projection", "mlp"),
    "class_token": False,
    "pooling": "gap",
    "gelu": "exact",
}
# The models of https://arxiv.org/abs/2502.14786 for images of any aspect ratio (NaFlex), whose 16 x
# 16 positions transformers, big_vision and timm resample for each image, bilinearly.
SIGLIP2_NAFLEX: Fields = {
    "max_num_patches": 256,
    "class_token": False,
    "pooling": "map",
    "preprocessing": {"library": "transformers"},
}
# The largest of https://arxiv.org/abs/2304.07193.
DINOV2_GIANT: Fields = {"swiglu": True, "layer_scale": 1e-5, "gelu": "exact"}
# https://arxiv.org/abs/2106.08254 and https://arxiv.org/abs/2208.06366, `beit/` and `beit2/` in
# github.com/microsoft/unilm: the fine-tuned models, which have one architecture.
BEIT: Fields = {
    "position_embedding": "relative_bias",
    "without_bias": ("key",),
    "layer_scale": 1e-5,
    "gelu": "exact",
    "pooling": "gap",
    "norm_after_pooling": True,
}
# https://arxiv.org/abs/2602.08071, `models_vit5.py` in github.com/wangf3014/ViT-5. Its registers
# follow the patches, which changes no output: attention does not depend on the order of tokens.
VIT5: Fields = {
    "rope": {"register_base": 100.0},
    "num_registers": 4,
    "position_on_class_token": False,
    "norm": "rms",
    "qk_norm": True,
    "layer_scale": 1e-4,
    "without_bias": ("query", "key", "value"),
    "gelu": "exact",
}


def _row(sizes: tuple[int, ...], image: int, *families: Fields, **more: Any) -> Fields:
    names = ("patch_size", "width", "depth", "num_heads", "mlp_dim")
    fields: Fields = {}
    for family in families:
        fields.update(family)
    return {**fields, **dict(zip(names, sizes, strict=True)), "image_size": image, **more}


def _perception(sizes: tuple[int, ...], image: int, *families: Fields) -> Fields:
    row = _row(sizes, image, PERCEPTION, *families)
    grid = image // sizes[0]
    return {**row, "rope": {**row["rope"], "reference_grid": (grid, grid)}}


_NO_KEY_BIAS: Fields = {"without_bias": ("key",)}
_GATED: Fields = {"swiglu": True}
_SCALED: Fields = {"layer_scale": 0.1}
_INNER: Fields = {"inner_norms": ("mlp",)}

# By the name of the variant: patch, width, depth, heads and hidden dimension of the MLP.
FAMILIES: dict[str, Fields] = {
    "clip_b32": _row((32, 768, 12, 12, 3072), 224, CLIP),
    "clip_b16": _row((16, 768, 12, 12, 3072), 224, CLIP),
    "clip_l14": _row((14, 1024, 24, 16, 4096), 224, CLIP),
    "clip_h14": _row((14, 1280, 32, 16, 5120), 224, CLIP),
    "clip_giant14": _row((14, 1408, 40, 16, 6144), 224, CLIP),
    "clip_gigantic14": _row((14, 1664, 48, 16, 8192), 224, CLIP),
    "dinov3_s16": _row((16, 384, 12, 6, 1536), 224, DINOV3, _NO_KEY_BIAS),
    "dinov3_splus16": _row((16, 384, 12, 6, 1536), 224, DINOV3, _NO_KEY_BIAS, _GATED),
    "dinov3_b16": _row((16, 768, 12, 12, 3072), 224, DINOV3, _NO_KEY_BIAS),
    "dinov3_l16": _row((16, 1024, 24, 16, 4096), 224, DINOV3, _NO_KEY_BIAS),
    "dinov3_hplus16": _row((16, 1280, 32, 20, 5120), 224, DINOV3, _NO_KEY_BIAS, _GATED),
    "dinov3_7b16": _row(
        (16, 4096, 40, 32, 8192), 224, DINOV3, _GATED, without_bias=("query", "key", "value")
    ),
    "eva02_ti14": _row((14, 192, 12, 3, 512), 224, EVA02),
    "eva02_s14": _row((14, 384, 12, 6, 1024), 224, EVA02),
    "eva02_b14": _row((14, 768, 12, 12, 2048), 224, EVA02, _INNER),
    "eva02_l14": _row((14, 1024, 24, 16, 2730), 224, EVA02, _INNER),
    "pe_core_ti16": _perception((16, 192, 12, 3, 768), 384),
    "pe_core_s16": _perception((16, 384, 12, 6, 1536), 384),
    "pe_core_b16": _perception((16, 768, 12, 12, 3072), 224),
    "pe_core_l14": _perception((14, 1024, 24, 16, 4096), 336),
    "pe_core_gigantic14": _perception(
        (14, 1536, 50, 16, 8960), 448, PERCEPTION_GIGANTIC, {"map_mlp_dim": 6144}
    ),
    "pe_lang_l14": _perception((14, 1024, 23, 16, 4096), 448, PERCEPTION_TOKENS, _SCALED),
    "pe_lang_gigantic14": _perception(
        (14, 1536, 47, 16, 8960), 448, PERCEPTION_TOKENS, PERCEPTION_GIGANTIC, _SCALED
    ),
    "pe_spatial_ti16": _perception((16, 192, 12, 3, 768), 512, PERCEPTION_TOKENS),
    "pe_spatial_s16": _perception((16, 384, 12, 6, 1536), 512, PERCEPTION_TOKENS),
    "pe_spatial_b16": _perception((16, 768, 12, 12, 3072), 512, PERCEPTION_TOKENS),
    "pe_spatial_l14": _perception((14, 1024, 24, 16, 4096), 448, PERCEPTION_TOKENS),
    "pe_spatial_gigantic14": _perception(
        (14, 1536, 50, 16, 8960), 448, PERCEPTION_TOKENS, PERCEPTION_GIGANTIC, _SCALED
    ),
    "aimv2_l14": _row((14, 1024, 24, 8, 2816), 224, AIMV2),
    "aimv2_h14": _row((14, 1536, 24, 12, 4096), 224, AIMV2),
    "siglip2_naflex_b16": _row((16, 768, 12, 12, 3072), 256, SIGLIP2_NAFLEX),
    "siglip2_naflex_so400m16": _row((16, 1152, 27, 16, 4304), 256, SIGLIP2_NAFLEX),
    "dinov2_giant14": _row((14, 1536, 40, 24, 4096), 224, DINOV2_GIANT),
    "beit_b16": _row((16, 768, 12, 12, 3072), 224, BEIT, _SCALED),
    "beit_l16": _row((16, 1024, 24, 16, 4096), 224, BEIT),
    "beitv2_b16": _row((16, 768, 12, 12, 3072), 224, BEIT),
    "beitv2_l16": _row((16, 1024, 24, 16, 4096), 224, BEIT),
    "vit5_s16": _row((16, 384, 12, 6, 1536), 224, VIT5),
    "vit5_b16": _row((16, 768, 12, 12, 3072), 224, VIT5),
    "vit5_l16": _row((16, 1024, 24, 16, 4096), 224, VIT5),
    "vit5_xl16": _row((16, 1152, 28, 16, 4608), 224, VIT5),
}

# Names of timm without an image size, and repositories of the Hugging Face hub: the variant, and
# the fields in which the name differs from it.
_EXACT: Fields = {"gelu": "exact"}
_NO_BIAS: Fields = {"without_bias": ("query", "key", "value")}
FAMILY_NAMES: dict[str, tuple[str, Fields]] = {
    name: (variant, fields)
    for variant, names in {
        "clip_b32": (
            ("vit_base_patch32_clip", _EXACT),
            ("vit_base_patch32_clip_quickgelu", {}),
            ("openai/clip-vit-base-patch32", {}),
            ("facebook/metaclip-b32-400m", {}),
            ("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", _EXACT),
        ),
        "clip_b16": (
            ("vit_base_patch16_clip", _EXACT),
            ("vit_base_patch16_clip_quickgelu", {}),
            ("openai/clip-vit-base-patch16", {}),
            ("facebook/metaclip-b16-400m", {}),
            ("laion/CLIP-ViT-B-16-laion2B-s34B-b88K", _EXACT),
        ),
        "clip_l14": (
            ("vit_large_patch14_clip", _EXACT),
            ("vit_large_patch14_clip_quickgelu", {}),
            ("openai/clip-vit-large-patch14", {}),
            ("openai/clip-vit-large-patch14-336", {"image_size": 336}),
            ("facebook/metaclip-l14-400m", {}),
            ("laion/CLIP-ViT-L-14-laion2B-s32B-b82K", _EXACT),
        ),
        "clip_h14": (
            ("vit_huge_patch14_clip", _EXACT),
            ("vit_huge_patch14_clip_quickgelu", {}),
            ("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", _EXACT),
        ),
        "clip_giant14": (
            ("vit_giant_patch14_clip", _EXACT),
            ("laion/CLIP-ViT-g-14-laion2B-s12B-b42K", _EXACT),
        ),
        "clip_gigantic14": (
            ("vit_gigantic_patch14_clip", _EXACT),
            ("vit_gigantic_patch14_clip_quickgelu", {}),
            ("laion/CLIP-ViT-bigG-14-laion2B-39B-b160k", _EXACT),
        ),
        **{
            f"dinov3_{size}16": (
                (f"vit_{timm}_patch16_dinov3", {**_NO_BIAS, "pooling": "gap"}),
                (f"vit_{timm}_patch16_dinov3_qkvb", {"pooling": "gap"}),
                *(
                    (f"facebook/dinov3-vit{hub}-pretrain-{images}", {})
                    for images in ("lvd1689m", "sat493m")
                    if images == "lvd1689m" or size == "l"
                ),
            )
            for size, timm, hub in (
                ("s", "small", "s16"),
                ("splus", "small_plus", "s16plus"),
                ("b", "base", "b16"),
                ("l", "large", "l16"),
                ("hplus", "huge_plus", "h16plus"),
            )
        },
        "dinov3_7b16": (
            ("facebook/dinov3-vit7b16-pretrain-sat493m", {}),
            ("vit_7b_patch16_dinov3", {"pooling": "gap"}),
            ("facebook/dinov3-vit7b16-pretrain-lvd1689m", {}),
        ),
        **{
            f"eva02_{size}14": ((f"eva02_{timm}_patch14", {}),)
            for size, timm in (("ti", "tiny"), ("s", "small"), ("b", "base"), ("l", "large"))
        },
        **{
            f"pe_{part}_{size}{patch}": ((f"vit_pe_{part}_{timm}_patch{patch}", {}),)
            for size, timm, patch, parts in (
                ("ti", "tiny", 16, ("core", "spatial")),
                ("s", "small", 16, ("core", "spatial")),
                ("b", "base", 16, ("core", "spatial")),
                ("l", "large", 14, ("core", "lang", "spatial")),
                ("gigantic", "gigantic", 14, ("core", "lang", "spatial")),
            )
            for part in parts
        },
        **{
            f"aimv2_{size}14": (
                (f"aimv2_{name}_patch14", {}),
                (f"apple/aimv2-{name}-patch14-224", {}),
                (f"apple/aimv2-{name}-patch14-336", {"image_size": 336}),
                (f"apple/aimv2-{name}-patch14-448", {"image_size": 448}),
            )
            for size, name in (("l", "large"), ("h", "huge"))
        },
        **{
            f"siglip2_naflex_{short}16": (
                (f"google/siglip2-{size}-patch16-naflex", {}),
                (f"naflexvit_{size}_patch16_siglip", {}),
            )
            for short, size in (("b", "base"), ("so400m", "so400m"))
        },
        "dinov2_giant14": (
            ("vit_giant_patch14_dinov2", {"image_size": 518}),
            (
                "vit_giant_patch14_reg4_dinov2",
                {"image_size": 518, "num_registers": 4, "position_on_class_token": False},
            ),
            ("facebook/dinov2-giant", {}),
            (
                "facebook/dinov2-with-registers-giant",
                {"num_registers": 4, "position_on_class_token": False},
            ),
        ),
        **{
            f"beit_{size}16": (
                (f"beit_{name}_patch16", {}),
                *(
                    (f"microsoft/beit-{name}-patch16-{side}{tag}", {"image_size": side})
                    for side, tag in ((224, ""), (224, "-pt22k-ft22k"), (384, ""), (512, ""))
                    if (name, side) != ("base", 512)
                ),
            )
            for size, name in (("b", "base"), ("l", "large"))
        },
        # Variants of `timm_architectures`; I-JEPA is https://arxiv.org/abs/2301.08243.
        **{
            f"vit_{size}_patch14_{words}dinov2": ((f"facebook/dinov2-{other}{size}", {}),)
            for size in ("small", "base", "large")
            for words, other in (("", ""), ("reg4_", "with-registers-"))
        },
        "vit_huge_patch14_gap": (
            ("facebook/ijepa_vith14_1k", {}),
            ("facebook/ijepa_vith14_22k", {}),
        ),
        "vit_huge_patch16_gap": (("facebook/ijepa_vith16_1k", {"image_size": 448}),),
        "vit_giant_patch16_gap": (("facebook/ijepa_vitg16_22k", {}),),
        **{
            f"aimv2_{size}_patch14": tuple(
                (f"apple/aimv2-{size.upper()}-patch14-{side}", {"image_size": side})
                for side in (224, 336, 448)
            )
            for size in ("1b", "3b")
        },
        "beitv2_b16": (("beitv2_base_patch16", {}),),
        "beitv2_l16": (("beitv2_large_patch16", {}),),
        **{  # of the authors: functions, and files
            f"vit5_{size}16": ((f"vit5_{name}", {}), (f"vit5_{name}_patch16", {}))
            for size, name in (("s", "small"), ("b", "base"), ("l", "large"), ("xl", "xlarge"))
        },
    }.items()
    for name, fields in names
}
