"""ViT-5 (https://arxiv.org/abs/2602.08071)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from keras_vit.config import IMAGENET_STATISTICS, RotaryPositions
from keras_vit.families import parts, rules
from keras_vit.families.family import Family
from keras_vit.families.keys import Fields
from keras_vit.families.names import NO_QKV_BIAS, Name, Names, sized
from keras_vit.families.rules import Rule
from keras_vit.families.timm import BLOCK, REST

# `models_vit5.py` in github.com/wangf3014/ViT-5. Its registers follow the patches, which changes no
# output: attention does not depend on the order of tokens.
VIT5: Fields = {
    "rope": {"register_base": 100.0},
    "num_registers": 4,
    "position_on_class_token": False,
    "norm": "rms",
    "qk_norm": True,
    "layer_scale": 1e-4,
    **NO_QKV_BIAS,
    "gelu": "exact",
}
VARIANTS: dict[str, Fields] = {
    "vit5_s16": sized("s", 16, VIT5),
    "vit5_b16": sized("b", 16, VIT5),
    "vit5_l16": sized("l", 16, VIT5),
    "vit5_xl16": sized((1152, 28, 16, 4608), 16, VIT5),
}
NAMES: Names = {  # of the authors: functions, and files
    f"vit5_{name}{ending}": Name(f"vit5_{size}16")
    for size, name in (("s", "small"), ("b", "base"), ("l", "large"), ("xl", "xlarge"))
    for ending in ("", "_patch16")
}

# layouts of arrays
_ROPE = RotaryPositions(**VIT5["rope"])


def _frequencies(config: Any) -> dict[str, np.ndarray]:
    """Buffers of the rotary positions in every block of ViT-5, which its files hold."""
    quarter = config.head_dim // 4
    powers = np.arange(quarter, dtype="float32") / np.float32(quarter)
    bases = {"rope": _ROPE.base, "register_rope": _ROPE.register_base}
    return {
        f"block_{index}/attention/{part}/frequencies": 1 / np.float32(base) ** powers
        for index in range(config.depth)
        for part, base in bases.items()
    }


AUTHORS = parts.torch_layout(  # timm's names of 2021, when it had no such models, and more
    "vit5",
    (
        *REST,
        Rule("block_{i}/attention/rope/frequencies", (f"{BLOCK}.attn.rope.freqs",)),
        Rule("block_{i}/attention/register_rope/frequencies", (f"{BLOCK}.attn.rope_reg.freqs",)),
    ),
    {
        "gelu": "exact",
        "norm": "rms",
        "norm_epsilon": 1e-6,
        "qk_norm": True,
        "rope": _ROPE,
        "preprocessing": dataclasses.replace(IMAGENET_STATISTICS, crop_ratio=1.0, library="timm"),
    },
    writes=lambda config: config.block.rope and config.block.rope.register_base,
    written_for="timm",
    pooling="token",
    computes=("rope", "norm_after_pooling"),
    lacks=(
        rules.ROPE._replace(is_met=lambda config: config.block.rope != _ROPE, advice=rules.KEEP),
        rules.Lack(
            lambda config: config.block.norm != "rms", "have RMS norms", ("norm",), rules.KEEP
        ),
    ),
    class_token_positions="never",
    prefixes=("",),
    needs=r"\.attn\.rope_reg\.freqs$",
    constants=_frequencies,
)
FEATURES = ((r"\.rope_reg\.", "rotary positions of registers (ViT-5)"),)

FAMILY = Family(VARIANTS, NAMES, layouts=(AUTHORS,), features=FEATURES)
