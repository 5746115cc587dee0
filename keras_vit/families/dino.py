"""DINO, DINOv2, DINOv3 and EUPE."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, RotaryPositions
from keras_vit.families import keys, parts, rules
from keras_vit.families.cards import HUB, HUB_EXACT, TIMM, Origin, Published, of_size
from keras_vit.families.family import Family
from keras_vit.families.names import (
    EXACT,
    NO_KEY_BIAS,
    NO_QKV_BIAS,
    SCALED,
    WORDS,
    Name,
    Names,
    architectures,
    joined,
    of_timm,
    sized,
)
from keras_vit.families.preprocessing import (
    CENTER,
    IMAGENET,
    SHORTER_SIDE,
    TORCHVISION,
    WHOLE,
    TimmImages,
)
from keras_vit.families.rules import Rule

DINOV3_IMAGES = dataclasses.replace(
    IMAGENET_STATISTICS, interpolation="bilinear", library="transformers"
)

# The largest of https://arxiv.org/abs/2304.07193.
DINOV2_GIANT: keys.Fields = {"swiglu": True, "layer_scale": 1e-5, "gelu": "exact"}
# https://arxiv.org/abs/2508.10104, `hub/backbones.py` in github.com/facebookresearch/dinov3. timm
# and transformers compute the periods in float32, which the authors round to bfloat16.
DINOV3: keys.Fields = {
    "position_embedding": "none",
    "rope": {"coordinates": "centered", "base": 100.0, "interleaved": False},
    "num_registers": 4,
    "layer_scale": 1e-5,
    "norm_epsilon": 1e-5,
    "gelu": "exact",
}
_GATED: keys.Fields = {"swiglu": True}
_GIANT = (1536, 40, 24, 4096)
_HUGE_PLUS = (1280, 32, 20, 5120)
VARIANTS: dict[str, keys.Fields] = {
    "dinov3_s16": sized("s", 16, DINOV3, NO_KEY_BIAS),
    "dinov3_splus16": sized("s", 16, DINOV3, NO_KEY_BIAS, _GATED),
    "dinov3_b16": sized("b", 16, DINOV3, NO_KEY_BIAS),
    "dinov3_l16": sized("l", 16, DINOV3, NO_KEY_BIAS),
    "dinov3_hplus16": sized(_HUGE_PLUS, 16, DINOV3, NO_KEY_BIAS, _GATED),
    "dinov3_7b16": sized((4096, 40, 32, 8192), 16, DINOV3, NO_QKV_BIAS, _GATED),
    "dinov2_giant14": sized(_GIANT, 14, DINOV2_GIANT),
}
_GAP: keys.Fields = {"pooling": "gap"}
_FOUR: keys.Fields = {"num_registers": 4, "position_on_class_token": False}


# Sizes, and what timm and the hub call them.
_DINOV3_SIZES = (
    ("s", "small", "s16"), ("splus", "small_plus", "s16plus"), ("b", "base", "b16"),
    ("l", "large", "l16"), ("hplus", "huge_plus", "h16plus"),
)  # fmt: skip


def _dinov3_names(size: str, timm: str, hub: str) -> Names:
    """Names of DINOv3, and of EUPE, whose queries and values have biases."""
    variant = f"dinov3_{size}16"
    return {
        **of_timm(f"vit_{timm}_patch16_dinov3", variant, {**NO_QKV_BIAS, **_GAP}),
        **of_timm(f"vit_{timm}_patch16_dinov3_qkvb", variant, _GAP),
        f"facebook/dinov3-vit{hub}-pretrain-lvd1689m": Name(variant),
    }


NAMES: Names = {
    **architectures("vit_{}_patch14_dinov2", "small base large", SCALED, {"image_size": 518}),
    **architectures(
        "vit_{}_patch14_reg4_dinov2", "small base large", SCALED, _FOUR, {"image_size": 518}
    ),
    **{
        f"facebook/dinov2-{hub}{size}": Name(f"vit_{size}_patch14_{timm}dinov2")
        for size in ("small", "base", "large")
        for timm, hub in (("", ""), ("reg4_", "with-registers-"))
    },
    **of_timm("vit_giant_patch14_dinov2", "dinov2_giant14", {"image_size": 518}),
    **of_timm("vit_giant_patch14_reg4_dinov2", "dinov2_giant14", {**_FOUR, "image_size": 518}),
    "facebook/dinov2-giant": Name("dinov2_giant14"),
    "facebook/dinov2-with-registers-giant": Name("dinov2_giant14", _FOUR),
    **joined(_dinov3_names(*row) for row in _DINOV3_SIZES),
    **of_timm("vit_7b_patch16_dinov3", "dinov3_7b16", _GAP),
    "facebook/dinov3-vit7b16-pretrain-lvd1689m": Name("dinov3_7b16"),
    "facebook/dinov3-vit7b16-pretrain-sat493m": Name("dinov3_7b16"),
    "facebook/dinov3-vitl16-pretrain-sat493m": Name("dinov3_l16"),
    **architectures(
        "vit_{}_patch16_dinov3_qkvb", "tiny", DINOV3, NO_KEY_BIAS, _GAP, {"image_size": 256}
    ),
    **architectures(  # LingBot
        "vit_{}_patch16_lingbot", "small base large", DINOV3, NO_KEY_BIAS, {"image_size": 512}
    ),
    **of_timm(
        "vit_giant_patch16_lingbot", None,
        {**sized(_GIANT, 16, DINOV3, NO_QKV_BIAS, _GATED), "image_size": 512},
    ),
}  # fmt: skip
_SATELLITE: keys.Fields = {"mean": (109.65, 104.805, 75.48), "std": (54.315, 39.78, 36.465)}
TIMM_IMAGES: TimmImages = (
    (r"vit_small_patch8_224.*|.*\.dino", IMAGENET),
    (r"vit_.*_(dinov[23]|dinov3_qkvb)(\..*)?", {**IMAGENET, **CENTER}),
    (r".*\.sat493m", _SATELLITE),
    (r".*_lingbot.*", {**IMAGENET, **WHOLE, "interpolation": "bilinear"}),
)


# transformers
def _dinov2(config: Any) -> keys.Fields:
    gated, width = config.block.swiglu, config.width
    for ratio in range(1, 17):  # a whole number there
        units = (int(width * ratio * 2 / 3) + 7) // 8 * 8 if gated else width * ratio
        if units == config.block.mlp_dim:  # of a gate as in `Dinov2SwiGLUFFN`
            return {"use_swiglu_ffn": gated, "mlp_ratio": ratio, "use_mask_token": True}
    raise ValueError(
        "The `mlp_dim` of transformers' DINOv2 follows from a whole `mlp_ratio`. Received: width="
        f"{config.width}, mlp_dim={config.block.mlp_dim}, swiglu={config.block.swiglu}. Save with "
        'layout="timm".'
    )


def _dinov3(config: Any) -> keys.Fields:
    parts = {"query": "query", "key": "key", "value": "value", "projection": "proj", "mlp": "mlp"}
    biases = {
        f"{theirs}_bias": ours not in config.block.without_bias for ours, theirs in parts.items()
    }
    act = {"hidden_act": "silu"} if config.block.swiglu else {}
    registers = {"num_register_tokens": config.num_registers}
    return {**biases, **registers, "use_gated_mlp": config.block.swiglu, **act}


_ROPE = RotaryPositions(**DINOV3["rope"])
DINOV2_KEYS: keys.Rules = {
    **keys.without("intermediate_size", keys.ENCODER),
    **keys.PRODUCTS,
    **keys.BACKBONE,
    **keys.harmless("use_swiglu_ffn mlp_ratio layerscale_value num_register_tokens"),
}
DINOV2_DEFAULTS = {**keys.DEFAULTS, "layer_norm_eps": 1e-6}
_DINOV2_TYPE = keys.ModelType(
    DINOV2_KEYS, DINOV2_DEFAULTS, gate=("use_swiglu_ffn", keys.HARMLESS),
    layouts=("transformers_dinov2",), headless="Dinov2Model", head="Dinov2ForImageClassification",
    more=_dinov2,
)  # fmt: skip
MODEL_TYPES = {
    "dinov2": _DINOV2_TYPE,
    "dinov2_with_registers": dataclasses.replace(
        _DINOV2_TYPE, layouts=("transformers_registers",), headless="Dinov2WithRegistersModel",
        head="Dinov2WithRegistersForImageClassification",
        more=lambda config: {**_dinov2(config), "num_register_tokens": config.num_registers},
    ),
    "dinov3_vit": keys.ModelType(
        {
            **keys.ENCODER,
            **keys.BACKBONE,
            "rope_theta": keys.Sets(
                "rope", lambda base: dataclasses.replace(_ROPE, base=base)
            ),
            **keys.harmless(
                "query_bias key_bias value_bias proj_bias mlp_bias layerscale_value use_gated_mlp "
                "num_register_tokens pos_embed_shift pos_embed_jitter pos_embed_rescale"
            ),
        },
        {
            "hidden_act": "gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 6,
            "rope_theta": 100.0,
        },
        gate=("use_gated_mlp", keys.Only(("silu",), "another activation of the gate")),
        layouts=("transformers_dinov3",), headless="DINOv3ViTModel", more=_dinov3, square=True,
    ),
}  # fmt: skip
# It resizes floats, of which Pillow rounds the result: up to half a level.
PROCESSORS = {"DINOv3ViT": keys.Processor(2, 224, True, None, IMAGENET_STATISTICS)}


# layouts of arrays
_HIDDEN, _OUTPUT = "block_{i}/mlp/hidden", "block_{i}/mlp/output"
_NORMS, _SCALES = ("norm1", "norm2"), ("layer_scale1.lambda1", "layer_scale2.lambda1")
_HAS_GATE = ("swiglu", True)
_DINOV2_RULES = (
    *parts.embeddings(),
    *parts.self_attention("encoder.layer.{i}"),
    *parts.dense(_HIDDEN, "encoder.layer.{i}.mlp.weights_in", when=_HAS_GATE),  # of the giant
    *parts.dense(_OUTPUT, "encoder.layer.{i}.mlp.weights_out", when=_HAS_GATE),
    *parts.branches("encoder.layer.{i}", _NORMS, ("mlp.fc1", "mlp.fc2"), _SCALES),
    *parts.norm("encoder_norm", "layernorm"),
    *parts.dense("head", "classifier"),  # of the class token and the mean of the patches
)


def _dinov3_zeros(config: Any) -> dict[str, tuple[int, ...]]:
    registers = {} if config.num_registers else {"embeddings.register_tokens": (1, 0, config.width)}
    return {"embeddings.mask_token": (1, 1, config.width), **registers}


def _is_dinov2(config: Any) -> bool:
    return config.block.layer_scale is not None and not config.distillation_token


HF_DINOV2 = parts.torch_layout(
    "transformers_dinov2",
    _DINOV2_RULES,
    {"gelu": "exact", "norm_epsilon": 1e-6, "preprocessing": SHORTER_SIDE},
    writes=lambda config: _is_dinov2(config) and not config.num_registers,
    pooling="token_gap",
    lacks=(rules.ALL_OR_NONE,),
    in_memory=parts.attention_in_memory("encoder.layer.{i}"),
    prefixes=("", "dinov2."),
    others=("embeddings\\.mask_token$",),
    unprefixed=("classifier\\.",),
    zeros=lambda config: {"embeddings.mask_token": (1, config.width)},
)
HF_REGISTERS = dataclasses.replace(
    HF_DINOV2,
    name="transformers_registers",
    rules=(*_DINOV2_RULES, Rule("registers/token", ("embeddings.register_tokens",))),
    writes=lambda config: _is_dinov2(config) and config.num_registers,
    prefixes=("", "dinov2_with_registers."),
    resize="bicubic",  # antialiased, in this model alone
)


def _turns_otherwise(config: Any) -> bool:
    """Whether rotary positions are others than those of DINOv3, but for their base."""
    rope = config.block.rope
    return rope is not None and (rope.coordinates != "centered" or rope.register_base is not None)


HF_DINOV3 = parts.torch_layout(
    "transformers_dinov3",
    (
        *parts.patches("embeddings.patch_embeddings"),
        Rule("class_token/token", ("embeddings.cls_token",)),
        Rule("registers/token", ("embeddings.register_tokens",)),
        *parts.split_products("layer.{i}.attention"),
        *parts.dense("block_{i}/attention/output", "layer.{i}.attention.o_proj"),
        *parts.gate(_HIDDEN, "layer.{i}.mlp.gate_proj", "layer.{i}.mlp.up_proj", when=_HAS_GATE),
        *parts.branches("layer.{i}", _NORMS, ("mlp.up_proj", "mlp.down_proj"), _SCALES),
        *parts.norm("encoder_norm", "norm"),
    ),
    {
        "gelu": "exact",
        "norm_epsilon": 1e-5,
        "position_embedding": "none",
        "rope": _ROPE,
        "preprocessing": DINOV3_IMAGES,
    },
    writes=lambda config: config.block.rope is not None,
    computes=("rope", "norm_after_pooling"),
    lacks=(rules.ROPE._replace(is_met=_turns_otherwise),),
    in_memory=(("model.layer", "layer"),),
    prefixes=("", "dinov3_vit."),
    others=("embeddings\\.mask_token$",),
    zeros=_dinov3_zeros,
)

# Published checkpoints. The authors of DINO evaluate with torchvision.
_REGISTERS_PAPER = "https://arxiv.org/abs/2309.16588"
_TIMM_DINO = Origin(TIMM, "https://arxiv.org/abs/2104.14294")
_DINOV2 = Origin(TIMM, "https://arxiv.org/abs/2304.07193", {**EXACT, "layer_scale": 1e-5})
_DINOV2_REGISTERS = Origin(TIMM, _REGISTERS_PAPER, {**_DINOV2.options, **_FOUR})
_NOT_COMMERCIAL = "Not for commercial use."
_DINOV3 = Origin(
    TIMM,
    "https://arxiv.org/abs/2508.10104",
    {"without_bias": ("query", "key", "value"), "pooling": "token"},
    licence="DINOv3 License",
    note="The DINOv3 License is no open-source licence: whoever passes the weights on, or models "
    "made from them, must include the agreement, https://ai.meta.com/resources/models-and-libraries"
    "/dinov3-license/.",
)
_EUPE = Origin(
    TIMM,
    "https://huggingface.co/timm/vit_base_patch16_dinov3_qkvb.eupe_lvd1689m",
    {"pooling": "token"},
    licence="FAIR Noncommercial Research License",
    note=_NOT_COMMERCIAL,
)
_HUB_DINO = _TIMM_DINO._replace(publisher=HUB, options=HUB_EXACT, preprocessing=TORCHVISION)
_HUB_REGISTERS = Origin(  # positions of the class token are stored, unlike in timm's copy
    HUB, _REGISTERS_PAPER, {**_DINOV2.options, "num_registers": 4}, SHORTER_SIDE
)
_HUB_DINOV3 = _DINOV3._replace(
    publisher=HUB, options={"pooling": "token"}, preprocessing=DINOV3_IMAGES
)
_DINO_MODELS = {
    f"vit_{size}{patch}": f"{WORDS[size]}_patch{patch}" for size in "sb" for patch in (16, 8)
}
_DINOV2_MODELS = {"vit_s14": "small", "vit_b14": "base", "vit_l14": "large"}
_DINOV3_MODELS = {f"dinov3_{size}16": timm for size, timm, _ in _DINOV3_SIZES}
CARDS = (
    Published(_TIMM_DINO, "dino", of_size("vit_{}_224.dino", _DINO_MODELS)),
    Published(_DINOV2, "dinov2_lvd142m",
              of_size("vit_{}_patch14_dinov2.lvd142m", _DINOV2_MODELS, 518)),
    Published(_DINOV2_REGISTERS, "dinov2_reg4_lvd142m",
              of_size("vit_{}_patch14_reg4_dinov2.lvd142m", _DINOV2_MODELS, 518)),
    # The architecture has GELU and layer scale of the giant.
    Published(_DINOV2._replace(options={}), "lvd142m",
              (("dinov2_giant14", "vit_giant_patch14_dinov2.lvd142m", 518),)),
    Published(_DINOV2_REGISTERS._replace(options=_FOUR), "reg4_lvd142m",
              (("dinov2_giant14", "vit_giant_patch14_reg4_dinov2.lvd142m", 518),)),
    Published(_DINOV3, "lvd1689m", of_size(
        "vit_{}_patch16_dinov3.lvd1689m", {**_DINOV3_MODELS, "dinov3_7b16": "7b"}, 256
    )),
    Published(_DINOV3, "sat493m", (("dinov3_l16", "vit_large_patch16_dinov3.sat493m", 256),)),
    Published(_EUPE, "eupe", (
        ("dinov3_s16", "vit_small_patch16_dinov3_qkvb.eupe_lvd1689m", 256),
        ("dinov3_b16", "vit_base_patch16_dinov3_qkvb.eupe_lvd1689m", 256),
    )),
    Published(_HUB_DINO, "dino", of_size("facebook/dino-{}", {
        variant: variant.replace("_", "") for variant in _DINO_MODELS
    })),
    # Positions are for 518 pixels; `preprocessor_config.json` crops 224.
    Published(_DINOV2._replace(publisher=HUB, preprocessing=SHORTER_SIDE), "dinov2_lvd142m",
              of_size("facebook/dinov2-{}", _DINOV2_MODELS)),
    Published(_HUB_REGISTERS, "dinov2_reg4_lvd142m",
              of_size("facebook/dinov2-with-registers-{}", _DINOV2_MODELS)),
    Published(_HUB_DINOV3, "lvd1689m", of_size("facebook/dinov3-vit{}-pretrain-lvd1689m", {
        f"dinov3_{size}16": hub for size, _, hub in _DINOV3_SIZES
    })),
)  # fmt: skip

FAMILY = Family(
    VARIANTS, NAMES, CARDS, MODEL_TYPES, PROCESSORS, timm_images=TIMM_IMAGES, layouts=(HF_DINOV2,
    HF_REGISTERS, HF_DINOV3),
)  # fmt: skip
