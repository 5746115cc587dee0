"""TIPSv2 (https://arxiv.org/abs/2604.12012), image towers with text towers."""

from __future__ import annotations

from keras_vit.config import Preprocessing
from keras_vit.families import keys, parts, rules
from keras_vit.families.clip import open_clip_blocks
from keras_vit.families.dino import DINOV2_DEFAULTS, DINOV2_KEYS
from keras_vit.families.family import Family
from keras_vit.families.rules import Rule

# Pixels in [0, 1], as they are.
_IMAGES = Preprocessing((0.0,), (255.0,), "bilinear", None, "transformers")

# transformers
_TEXT_KEYS: keys.Rules = {
    **keys.TEXT,
    "hidden_act": keys.Sets("gelu", {"relu": "relu"}),
    "max_position_embeddings": keys.Sets("context_length", int),  # without an array
    "pad_token_id": keys.Sets("pad_id", {0: 0}),
    "scale_sqrt_depth": keys.Only((True,), "tokens that are not multiplied by the root of D"),
    "pooling_epsilon": keys.Only((1e-8,), "another mean than that of the tokens of a text"),
}
_TEXT_FIELDS: keys.Fields = {"pooling": "mean", "causal": False, "positions": "sinusoidal"}
TEXT_TYPES = {
    "tipsv2": keys.TextType(
        _TEXT_KEYS,
        _TEXT_FIELDS,
        {
            "hidden_act": "relu", "layer_norm_eps": 1e-5, "num_attention_heads": 12,
            "max_position_embeddings": 64, "pad_token_id": 0,
        },
        projects=False,
        temperature=("temperature_init_value", 0.005065968260169029),
    )
}  # fmt: skip
MODEL_TYPES = {
    "tipsv2_vision_model": keys.ModelType(
        DINOV2_KEYS,
        DINOV2_DEFAULTS,
        gate=("use_swiglu_ffn", keys.HARMLESS),
        layouts=("transformers_tipsv2",),
    ),
    "tipsv2": keys.ModelType(
        keys.two_towers("temperature_init_value"), images="tipsv2_vision_model"
    ),
}
PROCESSORS = {"Tipsv2": keys.Processor(2, {"height": 448, "width": 448}, True, None, _IMAGES)}

# Layouts of arrays, as the authors name them.
_BLOCK = "blocks.{i}"
_IMAGE_LAYOUT = parts.torch_layout(
    "transformers_tipsv2",
    (
        *parts.patches("patch_embed.proj"),
        Rule("class_token/token", ("cls_token",)),
        Rule("registers/token", ("register_tokens",)),
        Rule("position_embedding/embedding", ("pos_embed",)),
        *parts.dense("block_{i}/attention/qkv", f"{_BLOCK}.attn.qkv"),
        *parts.dense("block_{i}/attention/output", f"{_BLOCK}.attn.proj"),
        *parts.dense("block_{i}/mlp/hidden", f"{_BLOCK}.mlp.w12", when=("swiglu", True)),
        *parts.dense("block_{i}/mlp/output", f"{_BLOCK}.mlp.w3", when=("swiglu", True)),
        *parts.branches(
            _BLOCK, ("norm1", "norm2"), ("mlp.c_fc", "mlp.c_proj"), ("ls1.gamma", "ls2.gamma")
        ),
        *parts.norm("encoder_norm", "norm"),
    ),
    {"gelu": "exact", "norm_epsilon": 1e-6, "preprocessing": _IMAGES},
    resize="bilinear",
    prefixes=("vision_encoder.",),
    others=("text_encoder\\.", "temperature$", "mask_token$"),
    zeros=lambda config: {"mask_token": (1, config.width)},
)
_TEXT_LAYOUT = rules.Layout(
    "transformers_tipsv2",
    (
        Rule("token_embedding/embeddings", ("token_embedding.weight",)),
        *open_clip_blocks(""),
        *parts.norm("encoder_norm", "ln_final"),
        Rule("logit_scale", ("temperature",), rules.TEMPERATURE),
    ),
    "transformers",
    kind="safetensors",
    prefixes=("text_encoder.",),
    unprefixed=("temperature$",),
)

FAMILY = Family(
    model_types=MODEL_TYPES, processors=PROCESSORS, layouts=(_IMAGE_LAYOUT,),
    text_layouts=(_TEXT_LAYOUT,), text_types=TEXT_TYPES,
    text_others=((
        "transformer\\.resblocks\\.",
        "a text tower of TIPS in a file of its own: take the repository that has both towers in "
        "one, such as google/tipsv2-b14",
    ),),
)  # fmt: skip
