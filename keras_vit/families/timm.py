"""What is timm's alone: its plain ViT by arguments, and its own checkpoints."""

from __future__ import annotations

from typing import Any

from keras_vit.config import ViTConfig
from keras_vit.families import keys
from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family

# The plain ViT by its arguments, by the epsilon of its norms.
_PLAIN = {1e-6: "vit_base_patch16_224", 1e-5: "vit_base_patch16_clip_quickgelu_224"}


def _plain_name(config: Any) -> str:
    if config.block.norm_epsilon not in _PLAIN:
        raise keys.no_such("norm_epsilon", config.block.norm_epsilon)
    return _PLAIN[config.block.norm_epsilon]


def _is_plain(config: Any) -> bool:
    other = config.position_embedding == "relative_bias" or config.distillation_token
    return keys.has_arguments(config) and config.stem is None and not other


TIMM_MODELS = (
    keys.TimmModel(
        lambda config: isinstance(config, ViTConfig) and _is_plain(config),
        _plain_name, keys.TIMM_WRITTEN, keys.timm_tokens,
    ),
)  # fmt: skip

# Published checkpoints: its own recipe for small models, "sbb".
_SBB = Origin(
    TIMM,
    "https://arxiv.org/abs/2309.16588",
    {
        "gelu": "exact", "pooling": "gap", "class_token": False, "position_on_class_token": False,
        "num_registers": 4, "layer_scale": 1e-5,
    },
    classes=1000,
)  # fmt: skip
CARDS = (
    Published(_SBB, "sbb_reg4_in12k_ft_in1k",
              (("vit_m16", "vit_medium_patch16_reg4_gap_256.sbb_in12k_ft_in1k", 256),)),
    Published(_SBB, "sbb_reg4_in1k",
              (("vit_m16", "vit_medium_patch16_reg4_gap_256.sbb_in1k", 256),)),
    Published(_SBB._replace(options={**_SBB.options, "num_registers": 1}), "sbb_reg1_in1k",
              (("vit_m16", "vit_medium_patch16_reg1_gap_256.sbb_in1k", 256),)),
)  # fmt: skip

FAMILY = Family(CARDS, timm_models=TIMM_MODELS)
