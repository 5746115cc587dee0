"""AIMv2 (https://arxiv.org/abs/2411.14402)."""

from __future__ import annotations

from keras_vit.families import keys
from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family

# transformers
_NO_BIAS = keys.Only((False,), "dense layers with bias")
MODEL_TYPES = {
    "aimv2_vision_model": keys.ModelType(
        {
            **{key: rule for key, rule in keys.ENCODER.items() if key != "layer_norm_eps"},
            "hidden_act": keys.Only(("silu",), "another activation of the gate"),
            "rms_norm_eps": keys.Sets("norm_epsilon", float),
            "intermediate_size": keys.Size("mlp_dim"),
            "qkv_bias": _NO_BIAS,
            "mlp_bias": _NO_BIAS,
            "is_native": keys.Only(
                (False,), "positions of sines and cosines for images of any size"
            ),
            "use_head": keys.Only((False,), "a pooling by attention without query and MLP"),
        },
        {"rms_norm_eps": 1e-5, "num_attention_heads": 8},
        layouts=("transformers_aimv2",),
        headless="Aimv2VisionModel",
        square=True,
    ),
}

# Published checkpoints, by timm
CARDS = (
    Published(
        Origin(
            TIMM,
            "https://arxiv.org/abs/2411.14402",
            licence="Apple-ASCL",
            note="Under Apple's sample code licence.",
        ),
        "apple_pt",
        (
            ("aimv2_l14", "aimv2_large_patch14_224.apple_pt"),
            ("aimv2_l14", "aimv2_large_patch14_336.apple_pt", 336),
            ("aimv2_l14", "aimv2_large_patch14_448.apple_pt", 448),
            ("aimv2_h14", "aimv2_huge_patch14_224.apple_pt"),
        ),
    ),
)  # fmt: skip

FAMILY = Family(CARDS, MODEL_TYPES)
