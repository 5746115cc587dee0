"""Layouts of timm and transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, Preprocessing
from keras_vit.weights.layout import (
    CONVOLUTION,
    LINEAR,
    POINTWISE_CONVOLUTION,
    SAME,
    TABLE,
    Layout,
    Rule,
    pairs,
)

_NORM = (("gamma", ".weight", SAME), ("beta", ".bias", SAME))
_LINEAR = (("kernel", ".weight", LINEAR), ("bias", ".bias", SAME))
_PATCHES = (("kernel", ".weight", CONVOLUTION), ("bias", ".bias", SAME))

# Preprocessing of these families; a sidecar file overrides it.
_TIMM_IMAGES = Preprocessing(interpolation="bicubic", library="timm")
_VIT_IMAGES = Preprocessing(library="transformers")
_SIGLIP_IMAGES = Preprocessing(interpolation="bicubic", library="transformers")
_SHORTER_SIDE = dataclasses.replace(IMAGENET_STATISTICS, crop_ratio=0.875, library="transformers")
_SQUASHED = dataclasses.replace(_SHORTER_SIDE, crop_mode="squash")


def _attention(ours: str, theirs: str, parts: tuple[str, ...]) -> tuple[Rule, ...]:
    """One variable from the separate layers of queries, keys and values."""
    return (
        Rule(f"{ours}/kernel", tuple(f"{theirs}.{part}.weight" for part in parts), LINEAR),
        Rule(f"{ours}/bias", tuple(f"{theirs}.{part}.bias" for part in parts)),
    )


def _conv(ours: str, theirs: str) -> Rule:
    return Rule(f"{ours}/kernel", (f"{theirs}.weight",), CONVOLUTION)


def _units(ours: str, theirs: str, shortcut_norm: bool) -> tuple[Rule, ...]:
    """The bottleneck units of a ResNet; their stages and units count from 0."""
    rules = [_conv(f"{ours}/shortcut", f"{theirs}.downsample.conv")]
    for number in (1, 2, 3):
        rules.append(_conv(f"{ours}/conv_{number}", f"{theirs}.conv{number}"))
        rules.extend(pairs(f"{ours}/norm_{number}", f"{theirs}.norm{number}", _NORM))
    if shortcut_norm:
        rules.extend(pairs(f"{ours}/shortcut_norm", f"{theirs}.downsample.norm", _NORM))
    return tuple(rules)


_OURS_HYBRID, _OURS_BIT = "stem_stage_{i}/unit_{j}", "stage_{i}/unit_{j}"


def _timm_stem(backbone: str) -> tuple[Rule, ...]:
    """ResNet stem of timm's hybrids; a root without stages has shorter names."""
    return (
        _conv("stem_root/conv", f"{backbone}.stem.conv"),
        *pairs("stem_root/norm", f"{backbone}.stem.norm", _NORM),
        *_units(_OURS_HYBRID, f"{backbone}.stages.{{i-1}}.blocks.{{j-1}}", shortcut_norm=True),
    )


_TIMM_BLOCK = "blocks.{i}"
_TIMM_REST = (
    *pairs("patch_encoder/projection", "patch_embed.proj", _PATCHES),
    Rule("class_token/token", ("cls_token",)),
    Rule("distillation_token/token", ("dist_token",)),
    Rule("registers/token", ("reg_token",)),
    Rule("position_embedding/embedding", ("pos_embed",)),
    *pairs("block_{i}/attention_norm", f"{_TIMM_BLOCK}.norm1", _NORM),
    *pairs("block_{i}/attention/qkv", f"{_TIMM_BLOCK}.attn.qkv", _LINEAR),
    *pairs("block_{i}/attention/output", f"{_TIMM_BLOCK}.attn.proj", _LINEAR),
    Rule("block_{i}/attention_scale/gamma", (f"{_TIMM_BLOCK}.ls1.gamma",)),
    *pairs("block_{i}/mlp_norm", f"{_TIMM_BLOCK}.norm2", _NORM),
    *pairs("block_{i}/mlp/hidden", f"{_TIMM_BLOCK}.mlp.fc1", _LINEAR),
    *pairs("block_{i}/mlp/output", f"{_TIMM_BLOCK}.mlp.fc2", _LINEAR),
    Rule("block_{i}/mlp_scale/gamma", (f"{_TIMM_BLOCK}.ls2.gamma",)),
    Rule("encoder_norm/gamma", ("fc_norm.weight",), when=("norm_after_pooling", True)),
    Rule("encoder_norm/beta", ("fc_norm.bias",), when=("norm_after_pooling", True)),
    *pairs("encoder_norm", "norm", _NORM),
    Rule("pooling/probe", ("attn_pool.latent",)),
    *pairs("pooling/query", "attn_pool.q", _LINEAR),
    *pairs("pooling/key_value", "attn_pool.kv", _LINEAR),
    *pairs("pooling/output", "attn_pool.proj", _LINEAR),
    *pairs("pooling/norm", "attn_pool.norm", _NORM),
    *pairs("pooling/mlp/hidden", "attn_pool.mlp.fc1", _LINEAR),
    *pairs("pooling/mlp/output", "attn_pool.mlp.fc2", _LINEAR),
    *pairs("pre_logits", "pre_logits.fc", _LINEAR),  # before timm 0.9
    *pairs("head", "head", _LINEAR),
    *pairs("head_distillation", "head_dist", _LINEAR),
)


def _torch(name: str, rules: tuple[Rule, ...], options: dict[str, Any], **fields: Any) -> Layout:
    timm = name.startswith("timm")
    return Layout(
        name,
        rules,
        kind="safetensors",
        options=options,
        resize=fields.pop("resize", "bicubic" if timm else "bicubic_plain"),
        resize_patches="bicubic",
        unwritten=("pre_logits/",),  # read only: neither project has such a layer today
        # The second is how transformers wraps models of timm.
        prefixes=fields.pop("prefixes", ("", "timm_model.")),
        **fields,
    )


_TIMM_OPTIONS = {"gelu": "exact", "norm_epsilon": 1e-6, "preprocessing": _TIMM_IMAGES}
# How PyTorch's ports standardise kernels and norm groups, unlike the official code.
_STEM = {"standardization": "torch", "norm_epsilon": 1e-5}
TIMM = _torch(
    "timm",
    (*_timm_stem("patch_embed.backbone"), *_TIMM_REST),
    {**_TIMM_OPTIONS, "stem": _STEM},
    class_token_positions="either",
)
TIMM_ROOT = _torch(  # a hybrid whose ResNet is a root alone, R+Ti/16
    "timm_root",
    (
        _conv("stem_root/conv", "patch_embed.backbone.conv"),
        *pairs("stem_root/norm", "patch_embed.backbone.norm", _NORM),
        *_TIMM_REST,
    ),
    {**_TIMM_OPTIONS, "stem": _STEM},
    class_token_positions="either",
)
_BIT_OPTIONS = {"standardization": "torch", "preprocessing": _VIT_IMAGES}
TIMM_BIT = _torch(
    "timm_bit",
    (
        _conv("root/conv", "stem.conv"),
        *_units(_OURS_BIT, "stages.{i-1}.blocks.{j-1}", shortcut_norm=False),
        *pairs("norm", "norm", _NORM),
        Rule("head/kernel", ("head.fc.weight",), POINTWISE_CONVOLUTION),
        Rule("head/bias", ("head.fc.bias",)),
    ),
    _BIT_OPTIONS,
)


def _embeddings() -> tuple[Rule, ...]:
    theirs = "embeddings"
    return (
        *pairs("patch_encoder/projection", f"{theirs}.patch_embeddings.projection", _PATCHES),
        Rule("class_token/token", (f"{theirs}.cls_token",)),
        Rule("position_embedding/embedding", (f"{theirs}.position_embeddings",)),
    )


def _self_attention(block: str) -> tuple[Rule, ...]:
    return (
        *_attention(
            "block_{i}/attention/qkv", f"{block}.attention.attention", ("query", "key", "value")
        ),
        *pairs("block_{i}/attention/output", f"{block}.attention.output.dense", _LINEAR),
    )


def _vit(*heads: tuple[str, str]) -> tuple[Rule, ...]:
    """ViT, DeiT and MAE of transformers, which differ in their heads."""
    block = "encoder.layer.{i}"
    return (
        *_embeddings(),
        *pairs("block_{i}/attention_norm", f"{block}.layernorm_before", _NORM),
        *_self_attention(block),
        *pairs("block_{i}/mlp_norm", f"{block}.layernorm_after", _NORM),
        *pairs("block_{i}/mlp/hidden", f"{block}.intermediate.dense", _LINEAR),
        *pairs("block_{i}/mlp/output", f"{block}.output.dense", _LINEAR),
        *pairs("encoder_norm", "layernorm", _NORM),
        *pairs("pre_logits", "pooler.dense", _LINEAR),
        *(rule for ours, theirs in heads for rule in pairs(ours, theirs, _LINEAR)),
    )


_HF_OPTIONS = {"gelu": "exact", "norm_epsilon": 1e-12}
_HF_STEM = "embeddings.patch_embeddings.backbone.bit"
HF_VIT = _torch(
    "transformers_vit",
    (
        _conv("stem_root/conv", f"{_HF_STEM}.embedder.convolution"),
        *pairs("stem_root/norm", f"{_HF_STEM}.embedder.norm", _NORM),
        *_units(
            _OURS_HYBRID,
            f"{_HF_STEM}.encoder.stages.{{i-1}}.layers.{{j-1}}",
            shortcut_norm=True,
        ),
        *_vit(("head", "classifier")),
    ),
    {**_HF_OPTIONS, "preprocessing": _VIT_IMAGES, "stem": _STEM},
    prefixes=("vit.", "", "ijepa."),
    others=("decoder\\.", "embeddings\\.mask_token$"),  # of models that fill masked patches
    unprefixed=("classifier\\.",),
)
_DISTILLATION = ("embeddings.distillation_token",)
HF_DEIT = _torch(
    "transformers_deit",
    (
        *_vit(("head", "cls_classifier"), ("head_distillation", "distillation_classifier")),
        Rule("distillation_token/token", _DISTILLATION),
    ),
    {**_HF_OPTIONS, "preprocessing": _SQUASHED},
    prefixes=("deit.", ""),
    unprefixed=("cls_classifier\\.", "distillation_classifier\\."),
)
# Without a second head nothing reads the distillation token: it is a register with a position.
HF_DEIT_TOKEN = _torch(
    "transformers_deit_token",
    (
        *_vit(("head", "classifier")),
        Rule("distillation_token/token", _DISTILLATION),
        Rule("registers/token", _DISTILLATION),
    ),
    {**_HF_OPTIONS, "preprocessing": _SQUASHED},
    prefixes=("deit.", ""),
    others=("decoder\\.", "embeddings\\.mask_token$"),
    unprefixed=("classifier\\.",),
)
_DINOV2 = (
    *_embeddings(),
    *pairs("block_{i}/attention_norm", "encoder.layer.{i}.norm1", _NORM),
    *_self_attention("encoder.layer.{i}"),
    Rule("block_{i}/attention_scale/gamma", ("encoder.layer.{i}.layer_scale1.lambda1",)),
    *pairs("block_{i}/mlp_norm", "encoder.layer.{i}.norm2", _NORM),
    *pairs("block_{i}/mlp/hidden", "encoder.layer.{i}.mlp.fc1", _LINEAR),
    *pairs("block_{i}/mlp/output", "encoder.layer.{i}.mlp.fc2", _LINEAR),
    Rule("block_{i}/mlp_scale/gamma", ("encoder.layer.{i}.layer_scale2.lambda1",)),
    *pairs("encoder_norm", "layernorm", _NORM),
    *pairs("head", "classifier", _LINEAR),  # of the class token and the mean of the patches
)
_DINOV2_OPTIONS = {"gelu": "exact", "norm_epsilon": 1e-6, "preprocessing": _SHORTER_SIDE}
_DINOV2_PARTS: dict[str, Any] = {
    "others": ("embeddings\\.mask_token$",),
    "unprefixed": ("classifier\\.",),
    "zeros": ("embeddings.mask_token",),
}
HF_DINOV2 = _torch(
    "transformers_dinov2", _DINOV2, _DINOV2_OPTIONS, prefixes=("", "dinov2."), **_DINOV2_PARTS
)
HF_REGISTERS = _torch(
    "transformers_registers",
    (*_DINOV2, Rule("registers/token", ("embeddings.register_tokens",))),
    _DINOV2_OPTIONS,
    prefixes=("", "dinov2_with_registers."),
    resize="bicubic",  # antialiased, in this model alone
    **_DINOV2_PARTS,
)


def _joined(path: str, first: int, last: int) -> tuple[Rule, ...]:
    """Shares of the one kernel that PyTorch's own attention keeps for all three."""
    rows = (first, last, 3)
    return (
        Rule(f"{path}/kernel", ("head.attention.in_proj_weight",), LINEAR, rows),
        Rule(f"{path}/bias", ("head.attention.in_proj_bias",), SAME, rows),
    )


_SIGLIP_BLOCK = "encoder.layers.{i}"
HF_SIGLIP = _torch(
    "transformers_siglip",
    (
        *pairs("patch_encoder/projection", "embeddings.patch_embedding", _PATCHES),
        Rule("position_embedding/embedding", ("embeddings.position_embedding.weight",), TABLE),
        *pairs("block_{i}/attention_norm", f"{_SIGLIP_BLOCK}.layer_norm1", _NORM),
        *_attention(
            "block_{i}/attention/qkv", f"{_SIGLIP_BLOCK}.self_attn", ("q_proj", "k_proj", "v_proj")
        ),
        *pairs("block_{i}/attention/output", f"{_SIGLIP_BLOCK}.self_attn.out_proj", _LINEAR),
        *pairs("block_{i}/mlp_norm", f"{_SIGLIP_BLOCK}.layer_norm2", _NORM),
        *pairs("block_{i}/mlp/hidden", f"{_SIGLIP_BLOCK}.mlp.fc1", _LINEAR),
        *pairs("block_{i}/mlp/output", f"{_SIGLIP_BLOCK}.mlp.fc2", _LINEAR),
        *pairs("encoder_norm", "post_layernorm", _NORM),
        Rule("pooling/probe", ("head.probe",)),
        *_joined("pooling/query", 0, 1),
        *_joined("pooling/key_value", 1, 3),
        *pairs("pooling/output", "head.attention.out_proj", _LINEAR),
        *pairs("pooling/norm", "head.layernorm", _NORM),
        *pairs("pooling/mlp/hidden", "head.mlp.fc1", _LINEAR),
        *pairs("pooling/mlp/output", "head.mlp.fc2", _LINEAR),
        *pairs("head", "classifier", _LINEAR),  # of the mean of the tokens, not of the pooling
    ),
    {"gelu": "tanh", "norm_epsilon": 1e-6, "preprocessing": _SIGLIP_IMAGES},
    prefixes=("vision_model.", ""),
    class_token_positions="never",
    others=("text_model\\.", "logit_(scale|bias)$", "embeddings\\.position_ids$"),
    unprefixed=("classifier\\.",),
)
HF_BIT = _torch(
    "transformers_bit",
    (
        _conv("root/conv", "embedder.convolution"),
        *_units(_OURS_BIT, "encoder.stages.{i-1}.layers.{j-1}", shortcut_norm=False),
        *pairs("norm", "norm", _NORM),
        *pairs("head", "classifier.1", _LINEAR),
    ),
    _BIT_OPTIONS,
    prefixes=("bit.", ""),
    unprefixed=("classifier\\.",),
)

LAYOUTS = (
    TIMM,
    TIMM_ROOT,
    TIMM_BIT,
    HF_VIT,
    HF_DEIT_TOKEN,  # before the next, which has the same names without a head
    HF_DEIT,
    HF_DINOV2,
    HF_REGISTERS,
    HF_SIGLIP,
    HF_BIT,
)
