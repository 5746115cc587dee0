"""AIMv2 (https://arxiv.org/abs/2411.14402)."""

from __future__ import annotations

from typing import Any

from keras_vit.families import keys, parts, rules
from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family
from keras_vit.families.names import Name, Names, architectures, of_timm, sized
from keras_vit.families.preprocessing import CENTER, OPENAI_CENTER, OPENAI_PIXELS, TimmImages
from keras_vit.families.rules import Rule, pairs

# https://arxiv.org/abs/2411.14402
AIMV2: keys.Fields = {
    "norm": "rms",
    "norm_epsilon": 1e-5,
    "norm_patches": True,
    "swiglu": True,
    "without_bias": ("query", "key", "value", "projection", "mlp"),
    "class_token": False,
    "pooling": "gap",
    "gelu": "exact",
}
VARIANTS: dict[str, keys.Fields] = {
    "aimv2_l14": sized((1024, 24, 8, 2816), 14, AIMV2),
    "aimv2_h14": sized((1536, 24, 12, 4096), 14, AIMV2),
}
NAMES: Names = {
    **of_timm("aimv2_large_patch14_224", "aimv2_l14"),
    **of_timm("aimv2_huge_patch14_224", "aimv2_h14"),
    **architectures("aimv2_{}_patch14_224", "1b 3b", AIMV2),
    **{
        f"apple/aimv2-{hub}-patch14-{side}": Name(variant, {"image_size": side})
        for hub, variant in (
            ("large", "aimv2_l14"), ("huge", "aimv2_h14"), ("1B", "aimv2_1b_patch14"),
            ("3B", "aimv2_3b_patch14"),
        )
        for side in (224, 336, 448)
    },
}  # fmt: skip
TIMM_IMAGES: TimmImages = ((r"aimv2_.*", {**OPENAI_PIXELS, **CENTER}),)

# transformers
_NO_BIAS = keys.Only((False,), "dense layers with bias")
_BLOCK_KEYS: keys.Rules = {
    "hidden_act": keys.Only(("silu",), "another activation of the gate"),
    "rms_norm_eps": keys.Sets("norm_epsilon", float),
    "qkv_bias": _NO_BIAS,
    "mlp_bias": _NO_BIAS,
}
MODEL_TYPES = {
    "aimv2": keys.ModelType(
        keys.two_towers("projection_dim logit_scale_init_value max_logit_scale"),
        images="aimv2_vision_model",
    ),
    "aimv2_vision_model": keys.ModelType(
        {
            **keys.without("layer_norm_eps", keys.ENCODER),
            **_BLOCK_KEYS,
            "is_native": keys.Only(
                (False,), "positions of sines and cosines for images of any size"
            ),
            "use_head": keys.Sets("pooling", {True: "attention", False: "gap"}),
        },
        {"rms_norm_eps": 1e-5, "num_attention_heads": 8, "use_head": True},
        layouts=("transformers_aimv2",),
        headless="Aimv2VisionModel",
        more=lambda config: {"use_head": config.pooling == "attention"},
        square=True,
    ),
}

# layouts of arrays
_BLOCK, _GAMMA = "encoder.layers.{i}", (("gamma", ".weight", rules.SAME),)


def _blocks(**gate: Any) -> tuple[Rule, ...]:
    """Blocks of both towers."""
    ffn = f"{_BLOCK}.ffn"
    return (
        *pairs("block_{i}/attention_norm", f"{_BLOCK}.rms_norm1", _GAMMA),
        *parts.split_products(f"{_BLOCK}.attention"),
        *parts.dense("block_{i}/attention/output", f"{_BLOCK}.attention.out_proj"),
        *pairs("block_{i}/mlp_norm", f"{_BLOCK}.rms_norm2", _GAMMA),
        *parts.gate("block_{i}/mlp/hidden", f"{ffn}.gate_proj", f"{ffn}.up_proj", **gate),
        *parts.dense("block_{i}/mlp/output", f"{ffn}.down_proj"),
        *pairs("encoder_norm", "rms_norm", _GAMMA),
    )


HF_AIMV2 = parts.torch_layout(
    "transformers_aimv2",
    (
        *parts.patches("embeddings.patch_embed"),
        *pairs("patch_norm", "embeddings.rms_norm", _GAMMA),
        parts.POSITIONS,
        *_blocks(when=("swiglu", True)),
        # Of models with a text tower.
        Rule("pooling/probe", ("head.cls_token",)),
        Rule(
            "pooling/key_value/kernel", ("head.k_proj.weight", "head.v_proj.weight"), rules.LINEAR
        ),
        *parts.dense("pooling/output", "head.output_proj"),
        Rule("head/kernel", ("visual_projection.weight",), rules.LINEAR),
    ),
    {"gelu": "exact", "norm": "rms", "norm_epsilon": 1e-5, "preprocessing": OPENAI_CENTER},
    writes=lambda config: config.block.norm == "rms",
    lacks=(
        rules.Lack(
            lambda config: not config.norm_patches,
            "have a norm after the patches",
            ("norm_patches",),
            rules.AS_TIMM,
        ),
    ),
    class_token_positions="never",
    prefixes=("", "vision_model."),
    others=("text_model\\.", "text_projection\\.", "logit_scale$"),
    unprefixed=("visual_projection\\.",),
)

# Text towers
TEXT_TYPES = {
    "aimv2": keys.TextType(
        {
            **keys.without("layer_norm_eps", keys.TEXT),
            **_BLOCK_KEYS,
            "eos_token_id": keys.Sets("end_id", int),
        },
        {
            "pooling": "eot", "causal": True, "norm": "rms", "swiglu": True,
            "without_bias": AIMV2["without_bias"],
        },
        {"rms_norm_eps": 1e-5, "num_attention_heads": 6, "eos_token_id": 49407},
        max_scale=("max_logit_scale", 100.0),
    )
}  # fmt: skip
_HF_TEXT = parts.text_layout("transformers_aimv2", *_blocks(), parts.TEXT_PROJECTION)

# Published checkpoints, by timm
_APPLE = Origin(
    TIMM,
    "https://arxiv.org/abs/2411.14402",
    licence="Apple-ASCL",
    note="Under Apple's sample code licence.",
)
CARDS = (
    Published(_APPLE, "apple_pt", (
        ("aimv2_l14", "aimv2_large_patch14_224.apple_pt"),
        ("aimv2_l14", "aimv2_large_patch14_336.apple_pt", 336),
        ("aimv2_l14", "aimv2_large_patch14_448.apple_pt", 448),
        ("aimv2_h14", "aimv2_huge_patch14_224.apple_pt"),
    )),
)  # fmt: skip

FAMILY = Family(
    VARIANTS, NAMES, CARDS, MODEL_TYPES, timm_images=TIMM_IMAGES, layouts=(HF_AIMV2,),
    text_layouts=(_HF_TEXT,), text_types=TEXT_TYPES,
)  # fmt: skip
