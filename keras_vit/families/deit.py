"""DeiT and DeiT III."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import UNIT_RANGE, Preprocessing
from keras_vit.families import keys
from keras_vit.families.cards import BIG_VISION, EXACT, HUB, HUB_EXACT, TIMM, Origin, Published
from keras_vit.families.keys import Fields
from keras_vit.families.preprocessing import SHORTER_SIDE

IMAGES = dataclasses.replace(SHORTER_SIDE, crop_mode="squash")


# transformers
MODEL_TYPES = {
    "deit": keys.ModelType(
        keys.VIT, keys.DEFAULTS, layouts=("transformers_deit", "transformers_deit_token"),
        headless="DeiTModel", head="DeiTForImageClassificationWithTeacher",
    ),
}  # fmt: skip
PROCESSORS = {"DeiT": keys.Processor(3, 256, True, 224, writes="squash")}


# timm
def _timm_name(config: Any) -> str:
    keys.check_epsilon(config)
    return "deit_base_distilled_patch16_224"


def _timm_arguments(config: Any) -> Fields:
    fixed = ("class_token", "fc_norm")
    return {key: value for key, value in keys.timm_tokens(config).items() if key not in fixed}


TIMM_MODELS = (
    keys.TimmModel(
        lambda config: getattr(config, "distillation_token", False) and keys.has_arguments(config),
        _timm_name, keys.TIMM_WRITTEN, _timm_arguments,
    ),
)  # fmt: skip

# Published checkpoints
_PAPER = "https://arxiv.org/abs/2012.12877"
_DEIT3_PAPER = "https://arxiv.org/abs/2204.07118"
_DEIT3 = Origin(
    BIG_VISION,
    _DEIT3_PAPER,
    {"position_on_class_token": False},
    UNIT_RANGE,
    1000,
    note="Its first layer is changed to take images in [-1, 1].",
    measured="README_revenge.md of facebookresearch/deit (the weights before conversion)",
)
_DEIT3_224 = _DEIT3._replace(preprocessing=Preprocessing(crop_ratio=7 / 8))
# DeiT III: size, image size, top-1 trained on ImageNet, and pre-trained on ImageNet-22k.
_DEIT3_FILES = (
    ("vit_s16", "small", 224, 81.4, 83.1),
    ("vit_s16", "small", 384, 83.4, 84.8),
    ("vit_b16", "base", 224, 83.8, 85.7),
    ("vit_b16", "base", 384, 85.0, 86.7),
    ("vit_l16", "large", 224, 84.9, 87.0),
    ("vit_l16", "large", 384, 85.8, 87.7),
)
_TIMM_DEIT = Origin(TIMM, _PAPER, EXACT, classes=1000)
_TIMM_DISTILLED = _TIMM_DEIT._replace(options={**EXACT, "distillation_token": True})
_TIMM_DEIT3 = Origin(
    TIMM,
    _DEIT3_PAPER,
    {**EXACT, "layer_scale": 1e-6, "position_on_class_token": False},
    classes=1000,
)
_HUB_DEIT = Origin(
    HUB,
    _PAPER,
    HUB_EXACT,
    IMAGES,
    1000,
    measured="README_deit.md of facebookresearch/deit",
)
_HUB_DISTILLED = _HUB_DEIT._replace(options={**HUB_EXACT, "distillation_token": True})
CARDS = (
    *(
        Published(
            _DEIT3_224 if size == 224 else _DEIT3,
            f"bv_deit3_{('in1k', 'in21k_ft_in1k')[number]}",
            ((variant, f"zoo/deit3/bv_deit_3_{name}_{size}_{data}", size, top1[number]),),
        )
        for variant, name, size, *top1 in _DEIT3_FILES
        for number, data in enumerate(("1k", "21k"))
    ),
    Published(_TIMM_DEIT, "deit_in1k", (
        ("vit_ti16", "deit_tiny_patch16_224.fb_in1k", 224, 72.190),
        ("vit_s16", "deit_small_patch16_224.fb_in1k", 224, 79.856),
        ("vit_b16", "deit_base_patch16_224.fb_in1k", 224, 81.980),
        ("vit_b16", "deit_base_patch16_384.fb_in1k", 384, 83.108),
    )),
    Published(_TIMM_DISTILLED, "deit_distilled_in1k", (
        ("vit_ti16", "deit_tiny_distilled_patch16_224.fb_in1k", 224, 74.538),
        ("vit_s16", "deit_small_distilled_patch16_224.fb_in1k", 224, 81.204),
        ("vit_b16", "deit_base_distilled_patch16_224.fb_in1k", 224, 83.384),
        ("vit_b16", "deit_base_distilled_patch16_384.fb_in1k", 384, 85.438),
    )),
    Published(_TIMM_DEIT3, "deit3_in1k", (
        ("vit_s16", "deit3_small_patch16_224.fb_in1k", 224, 81.382),
        ("vit_s16", "deit3_small_patch16_384.fb_in1k", 384, 83.432),
        ("vit_m16", "deit3_medium_patch16_224.fb_in1k", 224, 83.090),
        ("vit_b16", "deit3_base_patch16_224.fb_in1k", 224, 83.800),
        ("vit_b16", "deit3_base_patch16_384.fb_in1k", 384, 85.088),
        ("vit_l16", "deit3_large_patch16_224.fb_in1k", 224, 84.772),
        ("vit_l16", "deit3_large_patch16_384.fb_in1k", 384, 85.820),
        ("vit_h14", "deit3_huge_patch14_224.fb_in1k", 224, 85.204),
    )),
    Published(_TIMM_DEIT3, "deit3_in22k_ft_in1k", (
        ("vit_s16", "deit3_small_patch16_224.fb_in22k_ft_in1k", 224, 83.082),
        ("vit_s16", "deit3_small_patch16_384.fb_in22k_ft_in1k", 384, 84.846),
        ("vit_m16", "deit3_medium_patch16_224.fb_in22k_ft_in1k", 224, 84.550),
        ("vit_b16", "deit3_base_patch16_224.fb_in22k_ft_in1k", 224, 85.728),
        ("vit_b16", "deit3_base_patch16_384.fb_in22k_ft_in1k", 384, 86.742),
        ("vit_l16", "deit3_large_patch16_224.fb_in22k_ft_in1k", 224, 86.990),
        ("vit_l16", "deit3_large_patch16_384.fb_in22k_ft_in1k", 384, 87.736),
        ("vit_h14", "deit3_huge_patch14_224.fb_in22k_ft_in1k", 224, 87.180),
    )),
    Published(_HUB_DEIT, "deit_in1k", (
        ("vit_ti16", "facebook/deit-tiny-patch16-224", 224, 72.2),
        ("vit_s16", "facebook/deit-small-patch16-224", 224, 79.9),
        ("vit_b16", "facebook/deit-base-patch16-224", 224, 81.8),
        ("vit_b16", "facebook/deit-base-patch16-384", 384, 82.9),
    )),
    Published(_HUB_DISTILLED, "deit_distilled_in1k", (
        ("vit_ti16", "facebook/deit-tiny-distilled-patch16-224", 224, 74.5),
        ("vit_s16", "facebook/deit-small-distilled-patch16-224", 224, 81.2),
        ("vit_b16", "facebook/deit-base-distilled-patch16-224", 224, 83.4),
        ("vit_b16", "facebook/deit-base-distilled-patch16-384", 384, 85.2),
    )),
)  # fmt: skip
