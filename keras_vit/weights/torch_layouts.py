"""Layouts of timm and transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit.config import IMAGENET_STATISTICS, Preprocessing, RotaryPositions, ViTConfig
from keras_vit.families import deit, dino, siglip
from keras_vit.families.clip import CLIP
from keras_vit.families.dino import DINOV3
from keras_vit.families.preprocessing import OPENAI_CENTER, SHORTER_SIDE, SQUASHED
from keras_vit.families.vit5 import VIT5
from keras_vit.weights.layout import (
    CONVOLUTION,
    GRID_TABLE,
    LINEAR,
    PATCH_VECTORS,
    POINTWISE_CONVOLUTION,
    SAME,
    TABLE,
    VECTOR,
    Layout,
    Rule,
    pairs,
)

_NORM = (("gamma", ".weight", SAME), ("beta", ".bias", SAME))
_LINEAR = (("kernel", ".weight", LINEAR), ("bias", ".bias", SAME))
_PATCHES = (("kernel", ".weight", CONVOLUTION), ("bias", ".bias", SAME))

# Preprocessing of these families; a sidecar file overrides it.
_TIMM_IMAGES = Preprocessing(interpolation="bicubic", library="timm")


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


def _is_eva(config: ViTConfig) -> bool:
    """Whether timm has such a model in `eva.py`, whose names differ."""
    return config.block.rope is not None


def _has_gammas(config: ViTConfig) -> bool:
    """Whether timm calls layer scales gamma: in `eva.py` and `beit.py`."""
    return _is_eva(config) or config.position_embedding == "relative_bias"


def _splits_products(config: ViTConfig) -> bool:
    """Whether timm has one layer each for queries, keys and values: EVA-02 B and L."""
    return _is_eva(config) and config.block.swiglu and "mlp" in config.block.inner_norms


def _splits_gate(config: ViTConfig) -> bool:
    """Whether timm has a layer for each input of a gate; in EVA-02 Ti and S one makes both."""
    centered = config.block.rope is not None and config.block.rope.coordinates == "centered"
    return config.block.swiglu and (
        "mlp" in config.block.inner_norms or config.block.norm == "rms" or centered
    )


def _gate(path: str, gate: str, value: str, **more: Any) -> tuple[Rule, ...]:
    """One layer from two for both inputs of a gate; silu is applied to the first."""
    return (
        Rule(f"{path}/kernel", (f"{gate}.weight", f"{value}.weight"), LINEAR, **more),
        Rule(f"{path}/bias", (f"{gate}.bias", f"{value}.bias"), **more),
    )


def _timm_products() -> tuple[Rule, ...]:
    """Queries, keys and values: one layer, one with separate biases, or three layers."""
    theirs, parts = f"{_TIMM_BLOCK}.attn", ("q_proj", "k_proj", "v_proj")
    kernels = tuple(f"{theirs}.{part}.weight" for part in parts)
    return (
        Rule("block_{i}/attention/qkv/kernel", kernels, LINEAR, written=_splits_products),
        *pairs("block_{i}/attention/qkv", f"{theirs}.qkv", _LINEAR),
        *(
            rule
            for part in ("query", "value")
            for rule in (
                Rule(
                    f"block_{{i}}/attention/{part}_bias",
                    (f"{theirs}.{part[0]}_proj.bias",),
                    written=_splits_products,
                ),
                Rule(f"block_{{i}}/attention/{part}_bias", (f"{theirs}.{part[0]}_bias",)),
            )
        ),
    )


_TIMM_BLOCK, _BIAS = "blocks.{i}", "block_{i}/attention/position_bias"
# What files before 2023 hold besides the biases of BEiT; it follows from the grid.
_BIAS_INDEX = ".*\\.relative_position_index$"
_TIMM_BLOCKS = (
    *pairs("embedding_norm", "norm_pre", _NORM),
    *pairs("block_{i}/attention_norm", f"{_TIMM_BLOCK}.norm1", _NORM),
    *_timm_products(),
    Rule(_BIAS, (f"{_TIMM_BLOCK}.attn.relative_position_bias_table",)),
    *pairs("block_{i}/attention/norm", f"{_TIMM_BLOCK}.attn.norm", _NORM),
    *pairs("block_{i}/attention/output", f"{_TIMM_BLOCK}.attn.proj", _LINEAR),
    Rule("block_{i}/attention_scale/gamma", (f"{_TIMM_BLOCK}.gamma_1",), written=_has_gammas),
    Rule("block_{i}/attention_scale/gamma", (f"{_TIMM_BLOCK}.ls1.gamma",)),
    *pairs("block_{i}/mlp_norm", f"{_TIMM_BLOCK}.norm2", _NORM),
    *_gate(
        "block_{i}/mlp/hidden",
        f"{_TIMM_BLOCK}.mlp.fc1_g",
        f"{_TIMM_BLOCK}.mlp.fc1_x",
        written=_splits_gate,
    ),
    *pairs("block_{i}/mlp/hidden", f"{_TIMM_BLOCK}.mlp.fc1", _LINEAR),
    *pairs("block_{i}/mlp/norm", f"{_TIMM_BLOCK}.mlp.norm", _NORM),
    *pairs("block_{i}/mlp/output", f"{_TIMM_BLOCK}.mlp.fc2", _LINEAR),
    Rule("block_{i}/mlp_scale/gamma", (f"{_TIMM_BLOCK}.gamma_2",), written=_has_gammas),
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
_TIMM_REST = (
    *pairs("patch_encoder/projection", "patch_embed.proj", _PATCHES),
    *pairs("patch_norm", "patch_embed.norm", _NORM),
    Rule("class_token/token", ("cls_token",)),
    Rule("distillation_token/token", ("dist_token",)),
    Rule("registers/token", ("reg_token",)),
    Rule("registers/token", ("register_tokens",)),  # DINOv2 of its authors
    Rule("position_embedding/embedding", ("pos_embed",)),
    *_TIMM_BLOCKS,
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
    # Of MAE and DINOv2 of their authors, too, whose encoders have timm's names.
    others=(_BIAS_INDEX, "decoder_", "mask_token$"),
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
TIMM_NAFLEX = _torch(  # `naflexvit.py`: patches are vectors, positions have rows and columns
    "timm_naflex",
    (
        Rule("patch_encoder/projection/kernel", ("embeds.proj.weight",), PATCH_VECTORS),
        Rule("patch_encoder/projection/bias", ("embeds.proj.bias",)),
        Rule("class_token/token", ("embeds.cls_token",)),
        Rule("registers/token", ("embeds.reg_token",)),
        Rule("position_embedding/embedding", ("embeds.pos_embed",), GRID_TABLE),
        *_TIMM_BLOCKS,
    ),
    _TIMM_OPTIONS,
    class_token_positions="never",
)


_VIT5_ROPE = RotaryPositions(**VIT5["rope"])


def _frequencies(config: Any) -> dict[str, np.ndarray]:
    """Buffers of the rotary positions in every block of ViT-5, which its files hold."""
    quarter = config.head_dim // 4
    powers = np.arange(quarter, dtype="float32") / np.float32(quarter)
    bases = {"rope": _VIT5_ROPE.base, "register_rope": _VIT5_ROPE.register_base}
    return {
        f"block_{index}/attention/{part}/frequencies": 1 / np.float32(base) ** powers
        for index in range(config.depth)
        for part, base in bases.items()
    }


VIT5_AUTHORS = _torch(  # timm's names of 2021, when it had no such models, and more
    "vit5",
    (
        *_TIMM_REST,
        Rule("block_{i}/attention/query_norm/gamma", (f"{_TIMM_BLOCK}.attn.q_norm.weight",)),
        Rule("block_{i}/attention/key_norm/gamma", (f"{_TIMM_BLOCK}.attn.k_norm.weight",)),
        Rule("block_{i}/attention/rope/frequencies", (f"{_TIMM_BLOCK}.attn.rope.freqs",)),
        Rule(
            "block_{i}/attention/register_rope/frequencies",
            (f"{_TIMM_BLOCK}.attn.rope_reg.freqs",),
        ),
    ),
    {
        "gelu": "exact",
        "norm": "rms",
        "norm_epsilon": 1e-6,
        "qk_norm": True,
        "rope": _VIT5_ROPE,
        "preprocessing": dataclasses.replace(IMAGENET_STATISTICS, crop_ratio=1.0, library="timm"),
    },
    class_token_positions="never",
    prefixes=("",),
    needs=r"\.attn\.rope_reg\.freqs$",
    constants=_frequencies,
)
_BIT_OPTIONS = {"standardization": "torch", "preprocessing": SQUASHED}
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
    {**_HF_OPTIONS, "preprocessing": SQUASHED, "stem": _STEM},
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
    {**_HF_OPTIONS, "preprocessing": deit.IMAGES},
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
    {**_HF_OPTIONS, "preprocessing": deit.IMAGES},
    prefixes=("deit.", ""),
    others=("decoder\\.", "embeddings\\.mask_token$"),
    unprefixed=("classifier\\.",),
)


def _dinov2_mlp(path: str, plain: str, gated: str) -> Iterator[Rule]:
    """A layer of the MLP; that of the giant has a gate, and other names."""
    theirs = "encoder.layer.{i}.mlp"
    for part, key, transform in _LINEAR:
        yield Rule(f"{path}/{part}", (f"{theirs}.{gated}{key}",), transform, when=("swiglu", True))
        yield Rule(f"{path}/{part}", (f"{theirs}.{plain}{key}",), transform)


_DINOV2 = (
    *_embeddings(),
    *pairs("block_{i}/attention_norm", "encoder.layer.{i}.norm1", _NORM),
    *_self_attention("encoder.layer.{i}"),
    Rule("block_{i}/attention_scale/gamma", ("encoder.layer.{i}.layer_scale1.lambda1",)),
    *pairs("block_{i}/mlp_norm", "encoder.layer.{i}.norm2", _NORM),
    *_dinov2_mlp("block_{i}/mlp/hidden", "fc1", "weights_in"),
    *_dinov2_mlp("block_{i}/mlp/output", "fc2", "weights_out"),
    Rule("block_{i}/mlp_scale/gamma", ("encoder.layer.{i}.layer_scale2.lambda1",)),
    *pairs("encoder_norm", "layernorm", _NORM),
    *pairs("head", "classifier", _LINEAR),  # of the class token and the mean of the patches
)
_DINOV2_OPTIONS = {"gelu": "exact", "norm_epsilon": 1e-6, "preprocessing": SHORTER_SIDE}
_DINOV2_PARTS: dict[str, Any] = {
    "others": ("embeddings\\.mask_token$",),
    "unprefixed": ("classifier\\.",),
    "zeros": (("embeddings.mask_token", 2),),
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


def _siglip_blocks() -> tuple[Rule, ...]:
    parts = ("q_proj", "k_proj", "v_proj")
    return (
        *pairs("block_{i}/attention_norm", f"{_SIGLIP_BLOCK}.layer_norm1", _NORM),
        *_attention("block_{i}/attention/qkv", f"{_SIGLIP_BLOCK}.self_attn", parts),
        *pairs("block_{i}/attention/output", f"{_SIGLIP_BLOCK}.self_attn.out_proj", _LINEAR),
        *pairs("block_{i}/mlp_norm", f"{_SIGLIP_BLOCK}.layer_norm2", _NORM),
        *pairs("block_{i}/mlp/hidden", f"{_SIGLIP_BLOCK}.mlp.fc1", _LINEAR),
        *pairs("block_{i}/mlp/output", f"{_SIGLIP_BLOCK}.mlp.fc2", _LINEAR),
        *pairs("encoder_norm", "post_layernorm", _NORM),
    )


HF_SIGLIP = _torch(
    "transformers_siglip",
    (
        Rule(  # SigLIP 2 NaFlex, whose other names are the same
            "patch_encoder/projection/kernel",
            ("embeddings.patch_embedding.weight",),
            PATCH_VECTORS,
            when=("takes_patches", True),
        ),
        *pairs("patch_encoder/projection", "embeddings.patch_embedding", _PATCHES),
        Rule("position_embedding/embedding", ("embeddings.position_embedding.weight",), TABLE),
        *_siglip_blocks(),
        Rule("pooling/probe", ("head.probe",)),
        *_joined("pooling/query", 0, 1),
        *_joined("pooling/key_value", 1, 3),
        *pairs("pooling/output", "head.attention.out_proj", _LINEAR),
        *pairs("pooling/norm", "head.layernorm", _NORM),
        *pairs("pooling/mlp/hidden", "head.mlp.fc1", _LINEAR),
        *pairs("pooling/mlp/output", "head.mlp.fc2", _LINEAR),
        *pairs("head", "classifier", _LINEAR),  # of the mean of the tokens, not of the pooling
    ),
    {"gelu": "tanh", "norm_epsilon": 1e-6, "preprocessing": siglip.IMAGES},
    prefixes=("vision_model.", ""),
    class_token_positions="never",
    others=("text_model\\.", "logit_(scale|bias)$", "embeddings\\.position_ids$"),
    unprefixed=("classifier\\.",),
)
# The image tower of CLIP and its relatives; the head is the projection.
HF_CLIP = _torch(
    "transformers_clip",
    (
        Rule("class_token/token", ("embeddings.class_embedding",), VECTOR),
        Rule(
            "patch_encoder/projection/kernel", ("embeddings.patch_embedding.weight",), CONVOLUTION
        ),
        Rule("position_embedding/embedding", ("embeddings.position_embedding.weight",), TABLE),
        *pairs("embedding_norm", "pre_layrnorm", _NORM),  # misspelt there
        *_siglip_blocks(),
        Rule("head/kernel", ("visual_projection.weight",), LINEAR),
    ),
    {**{k: v for k, v in CLIP.items() if k != "without_bias"}, "preprocessing": OPENAI_CENTER},
    prefixes=("vision_model.", ""),
    others=(
        "text_model\\.",
        "text_projection\\.",
        "logit_(scale|bias)$",
        "(vision_model\\.)?embeddings\\.position_ids$",
    ),
    unprefixed=("visual_projection\\.",),
)


def _split_products(
    theirs: str, parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
) -> tuple[Rule, ...]:
    """Queries, keys and values from three layers, of which not all need have a bias."""
    ours = ("query", "key", "value")
    biases = {name: f"{theirs}.{part}.bias" for name, part in zip(ours, parts, strict=True)}
    kernels = tuple(f"{theirs}.{part}.weight" for part in parts)
    return (
        Rule("block_{i}/attention/qkv/kernel", kernels, LINEAR),
        Rule("block_{i}/attention/qkv/bias", tuple(biases.values())),
        *(Rule(f"block_{{i}}/attention/{part}_bias", (key,)) for part, key in biases.items()),
    )


HF_DINOV3 = _torch(
    "transformers_dinov3",
    (
        *pairs("patch_encoder/projection", "embeddings.patch_embeddings", _PATCHES),
        Rule("class_token/token", ("embeddings.cls_token",)),
        Rule("registers/token", ("embeddings.register_tokens",)),
        *pairs("block_{i}/attention_norm", "layer.{i}.norm1", _NORM),
        *_split_products("layer.{i}.attention"),
        *pairs("block_{i}/attention/output", "layer.{i}.attention.o_proj", _LINEAR),
        Rule("block_{i}/attention_scale/gamma", ("layer.{i}.layer_scale1.lambda1",)),
        *pairs("block_{i}/mlp_norm", "layer.{i}.norm2", _NORM),
        *_gate(
            "block_{i}/mlp/hidden",
            "layer.{i}.mlp.gate_proj",
            "layer.{i}.mlp.up_proj",
            when=("swiglu", True),
        ),
        *pairs("block_{i}/mlp/hidden", "layer.{i}.mlp.up_proj", _LINEAR),
        *pairs("block_{i}/mlp/output", "layer.{i}.mlp.down_proj", _LINEAR),
        Rule("block_{i}/mlp_scale/gamma", ("layer.{i}.layer_scale2.lambda1",)),
        *pairs("encoder_norm", "norm", _NORM),
    ),
    {
        "gelu": "exact",
        "norm_epsilon": 1e-5,
        "position_embedding": "none",
        "rope": RotaryPositions(**DINOV3["rope"]),
        "preprocessing": dino.DINOV3_IMAGES,
    },
    prefixes=("", "dinov3_vit."),
    others=("embeddings\\.mask_token$",),
    zeros=(("embeddings.mask_token", 3),),
)
_AIMV2_BLOCK, _GAMMA = "encoder.layers.{i}", _NORM[:1]
# Without the pooling of the models with a text tower, which `families/` refuses.
HF_AIMV2 = _torch(
    "transformers_aimv2",
    (
        *pairs("patch_encoder/projection", "embeddings.patch_embed", _PATCHES),
        *pairs("patch_norm", "embeddings.rms_norm", _GAMMA),
        Rule("position_embedding/embedding", ("embeddings.position_embedding.weight",), TABLE),
        *pairs("block_{i}/attention_norm", f"{_AIMV2_BLOCK}.rms_norm1", _GAMMA),
        *_split_products(f"{_AIMV2_BLOCK}.attention"),
        *pairs("block_{i}/attention/output", f"{_AIMV2_BLOCK}.attention.out_proj", _LINEAR),
        *pairs("block_{i}/mlp_norm", f"{_AIMV2_BLOCK}.rms_norm2", _GAMMA),
        *_gate(
            "block_{i}/mlp/hidden",
            f"{_AIMV2_BLOCK}.ffn.gate_proj",
            f"{_AIMV2_BLOCK}.ffn.up_proj",
            when=("swiglu", True),
        ),
        *pairs("block_{i}/mlp/output", f"{_AIMV2_BLOCK}.ffn.down_proj", _LINEAR),
        *pairs("encoder_norm", "rms_norm", _GAMMA),
    ),
    {"gelu": "exact", "norm": "rms", "norm_epsilon": 1e-5, "preprocessing": OPENAI_CENTER},
    class_token_positions="never",
)
_BEIT_ATTENTION = "encoder.layer.{i}.attention.attention"
HF_BEIT = _torch(
    "transformers_beit",
    (
        *_split_products(_BEIT_ATTENTION, ("query", "key", "value")),
        Rule(_BIAS, (f"{_BEIT_ATTENTION}.relative_position_bias.relative_position_bias_table",)),
        Rule("block_{i}/attention_scale/gamma", ("encoder.layer.{i}.lambda_1",)),
        Rule("block_{i}/mlp_scale/gamma", ("encoder.layer.{i}.lambda_2",)),
        Rule("encoder_norm/gamma", ("pooler.layernorm.weight",), when=("norm_after_pooling", True)),
        Rule("encoder_norm/beta", ("pooler.layernorm.bias",), when=("norm_after_pooling", True)),
        *_vit(("head", "classifier")),
    ),
    {**_HF_OPTIONS, "preprocessing": SQUASHED},
    prefixes=("beit.", "", "data2vec_vision."),
    others=("embeddings\\.mask_token$", "lm_head\\.", _BIAS_INDEX),
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
    TIMM_NAFLEX,
    TIMM_BIT,
    VIT5_AUTHORS,
    HF_VIT,
    HF_DEIT_TOKEN,  # before the next, which has the same names without a head
    HF_DEIT,
    HF_DINOV2,
    HF_REGISTERS,
    HF_CLIP,  # before the next, whose blocks have the same names
    HF_SIGLIP,
    HF_DINOV3,
    HF_AIMV2,
    HF_BEIT,
    HF_BIT,
)
