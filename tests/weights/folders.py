"""Tiny models of every kind of folder that `save_pretrained` writes; `scripts/folders` reads it."""

from __future__ import annotations

from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, Preprocessing, ResNetConfig, ResNetStem
from keras_vit.families.aimv2 import AIMV2
from keras_vit.families.beit import BEIT
from keras_vit.families.clip import CLIP
from keras_vit.families.dino import DINOV3

EXACT = {"gelu": "exact"}
THEIRS = {"preprocessing": Preprocessing(library="transformers"), **EXACT}
TIMM = {"preprocessing": Preprocessing(interpolation="bicubic", library="timm"), **EXACT}
_CROPPED = Preprocessing(
    IMAGENET_STATISTICS.mean, IMAGENET_STATISTICS.std, "bicubic", 0.875, "transformers"
)
_DINOV2 = {"layer_scale": 0.1, **THEIRS, "preprocessing": _CROPPED}
_STEM = {"standardization": "torch", "norm_epsilon": 1e-5}
_SIGLIP = {"class_token": False, "classes": None, **THEIRS, "gelu": "tanh"}
_SQUASHED = Preprocessing(crop_ratio=0.875, library="transformers", crop_mode="squash")
# fmt: off
# Layout, fields of the configuration.
FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("transformers", THEIRS | {"norm_epsilon": 1e-12}),
    "vit tanh": ("transformers", THEIRS | {"gelu": "tanh"}),
    "vit oblong": ("transformers", THEIRS | {"image_size": (32, 48)}),
    "vit grey": ("transformers", THEIRS | {"channels": 1}),
    "vit headless": ("transformers", THEIRS | {"classes": None}),
    "deit": (
        "transformers",
        {**THEIRS, "distillation_token": True, "preprocessing": _SQUASHED},
    ),
    "dinov2": ("transformers", {**_DINOV2, "pooling": "token_gap"}),
    "dinov2 headless": ("transformers", {**_DINOV2, "classes": None}),
    "dinov2 gated": (
        "transformers",
        {**_DINOV2, "classes": None, "swiglu": True, "mlp_dim": 88},
    ),
    "registers": (
        "transformers",
        {**_DINOV2, "pooling": "token_gap", "num_registers": 4},
    ),
    "siglip": ("transformers", {**_SIGLIP, "pooling": "map", "map_prefix_tokens": False}),
    "clip": ("transformers", {**CLIP, "head_bias": None, **THEIRS, "gelu": "quick"}),
    "dinov3": ("transformers", {**DINOV3, "classes": None, **THEIRS}),
    "aimv2": ("transformers", {**AIMV2, "classes": None, **THEIRS}),
    "beit": ("transformers", {**BEIT, **THEIRS}),
    "vit without qkv biases": (
        "transformers", {**THEIRS, "without_bias": ("query", "key", "value")},
    ),
    "beit both positions": (
        "transformers", {**BEIT, **THEIRS, "position_embedding": "learned_relative_bias"},
    ),
    "beit learned": ("transformers", {**BEIT, **THEIRS, "position_embedding": "learned"}),
    "dinov3 no registers": (
        "transformers", {**DINOV3, "num_registers": 0, "classes": None, **THEIRS},
    ),
    "bit": ("transformers", {"preprocessing": THEIRS["preprocessing"]}),
    "timm vit": ("timm", TIMM),
    "timm vit tanh": ("timm", {**TIMM, "gelu": "tanh", "norm_epsilon": 1e-5}),
    "timm oblong grey": ("timm", {**TIMM, "image_size": (32, 48), "channels": 1}),
    "timm headless": ("timm", {**TIMM, "classes": None}),
    "timm mean": ("timm", {**TIMM, "pooling": "gap", "norm_after_pooling": True}),
    "timm map": (
        "timm",
        {**TIMM, "pooling": "map", "class_token": False, "map_prefix_tokens": False},
    ),
    "timm registers": ("timm", {**TIMM, "num_registers": 7, "layer_scale": 0.1}),
    "timm free registers": (
        "timm",
        {**TIMM, "num_registers": 4, "position_on_class_token": False},
    ),
    "timm distilled": ("timm", {**TIMM, "distillation_token": True}),
    "timm clip": ("timm", {**CLIP, **TIMM}),
    "timm sines": ("timm", {**TIMM, "position_embedding": "sincos_2d"}),
    "timm beit": ("timm", {**BEIT, **TIMM}),
    "timm both positions": (
        "timm", {**BEIT, **TIMM, "position_embedding": "learned_relative_bias"},
    ),
    "timm inner norms": (
        "timm",
        {**TIMM, "qk_norm": True, "qk_norm_bias": True, "inner_norms": ("attention", "mlp")},
    ),
    "timm rms": (
        "timm",
        {
            **TIMM, "norm": "rms", "qk_norm": True, "gelu": "relu",
            "without_bias": ("query", "key", "value", "projection", "mlp"),
        },
    ),
    "timm tokens": ("timm", {**TIMM, "pooling": None}),
    "timm mean of all": (
        "timm",
        {**TIMM, "pooling": "gap", "gap_prefix_tokens": True, "norm_after_pooling": True},
    ),
    "timm map of all": ("timm", {**TIMM, "pooling": "map"}),
    "timm own rows": (
        "timm", {**TIMM, "class_token": False, "num_registers": 4, "pooling": "gap"},
    ),
    "timm root": ("timm", {**TIMM, "stem": ResNetStem(**_STEM), "patch_size": 4}),
}
# fmt: on
SIZES = {"patch_size": 8, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "image_size": 32}
BIT = ResNetConfig(
    stages=(1, 1), image_size=64, classes=10, standardization="torch", **FOLDERS["bit"][1]
)
