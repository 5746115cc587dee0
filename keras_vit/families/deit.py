"""DeiT and DeiT III."""

from __future__ import annotations

import dataclasses

from keras_vit.config import UNIT_RANGE, Preprocessing
from keras_vit.families import keys, parts, rules
from keras_vit.families.cards import BIG_VISION, HUB, HUB_EXACT, TIMM, Origin, Published, with_top1
from keras_vit.families.family import Family
from keras_vit.families.names import EXACT, PATCHES, SCALED, WORDS, Names, architectures
from keras_vit.families.preprocessing import CENTER, IMAGENET, SHORTER_SIDE, TimmImages
from keras_vit.families.rules import Rule

IMAGES = dataclasses.replace(SHORTER_SIDE, crop_mode="squash")

NAMES: Names = {
    **architectures("deit_{}_patch16_224", "tiny small base", EXACT),
    **architectures(
        "deit_{}_distilled_patch16_224", "tiny small base", EXACT, {"distillation_token": True}
    ),
    **architectures("deit3_{}_patch16_224", "small medium base large", SCALED, PATCHES),
    **architectures("deit3_{}_patch14_224", "huge", SCALED, PATCHES),
}
TIMM_IMAGES: TimmImages = (
    (r"deit.*", IMAGENET),
    (r"deit.*_384(\..*)?|deit3_.*\.fb_in22k_ft_in1k", CENTER),
)


# transformers
MODEL_TYPES = {
    "deit": keys.ModelType(
        keys.VIT, keys.DEFAULTS, layouts=("transformers_deit", "transformers_deit_token"),
        headless="DeiTModel", head="DeiTForImageClassificationWithTeacher",
    ),
}  # fmt: skip
PROCESSORS = {"DeiT": keys.Processor(3, 256, True, 224, writes="squash")}


# layouts of arrays
_DISTILLATION = ("embeddings.distillation_token",)
HF_DEIT = parts.torch_layout(
    "transformers_deit",
    (
        *parts.encoder(
            ("head", "cls_classifier"), ("head_distillation", "distillation_classifier")
        ),
        Rule("distillation_token/token", _DISTILLATION),
    ),
    {**parts.HF_OPTIONS, "preprocessing": IMAGES},
    writes=lambda config: config.distillation_token,
    pooling="token",
    lacks=(rules.ALL_OR_NONE,),
    in_memory=parts.IN_MEMORY,
    prefixes=("deit.", ""),
    unprefixed=("cls_classifier\\.", "distillation_classifier\\."),
)
# Without a second head nothing reads the distillation token: it is a register with a position.
HF_DEIT_TOKEN = parts.torch_layout(
    "transformers_deit_token",
    (
        *parts.encoder(("head", "classifier")),
        Rule("distillation_token/token", _DISTILLATION),
        Rule("registers/token", _DISTILLATION),
    ),
    {**parts.HF_OPTIONS, "preprocessing": IMAGES},
    settings=lambda find, sizes: {"distillation_token": False},
    in_memory=parts.IN_MEMORY,
    prefixes=("deit.", ""),
    others=("decoder\\.", "embeddings\\.mask_token$"),
    unprefixed=("classifier\\.",),
)

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
_TIMM_DEIT = Origin(TIMM, _PAPER, classes=1000)
_TIMM_DISTILLED = _TIMM_DEIT._replace(options={"distillation_token": True})
_TIMM_DEIT3 = _TIMM_DEIT._replace(
    paper=_DEIT3_PAPER, options={"layer_scale": 1e-6, "position_on_class_token": False}
)
_DEIT_README = "README_deit.md of facebookresearch/deit"
_HUB_DEIT = Origin(HUB, _PAPER, HUB_EXACT, IMAGES, 1000, measured=_DEIT_README)
_HUB_DISTILLED = _HUB_DEIT._replace(options={**HUB_EXACT, "distillation_token": True})
_MODELS = {f"vit_{size}16": WORDS[size] for size in ("ti", "s", "m", "b", "l")}
CARDS = (
    *(
        Published(
            _DEIT3_224 if size == 224 else _DEIT3, f"bv_deit3_{tag}",
            ((variant, f"zoo/deit3/bv_deit_3_{_MODELS[variant]}_{size}_{data}", size, top1),),
        )
        for data, tag, accuracies in (
            ("1k", "in1k", {"s": (81.4, 83.4), "b": (83.8, 85.0), "l": (84.9, 85.8)}),
            ("21k", "in21k_ft_in1k", {"s": (83.1, 84.8), "b": (85.7, 86.7), "l": (87.0, 87.7)}),
        )
        for variant, both in ((f"vit_{size}16", both) for size, both in accuracies.items())
        for size, top1 in zip((224, 384), both, strict=True)
    ),
    Published(_TIMM_DEIT, "deit_in1k", with_top1("deit_{}_patch16_{}.fb_in1k", _MODELS, {
        "vit_ti16": (72.190,), "vit_s16": (79.856,), "vit_b16": (81.980, 83.108),
    })),
    Published(_TIMM_DISTILLED, "deit_distilled_in1k", with_top1(
        "deit_{}_distilled_patch16_{}.fb_in1k", _MODELS,
        {"vit_ti16": (74.538,), "vit_s16": (81.204,), "vit_b16": (83.384, 85.438)},
    )),
    Published(_TIMM_DEIT3, "deit3_in1k", (
        *with_top1("deit3_{}_patch16_{}.fb_in1k", _MODELS, {
            "vit_s16": (81.382, 83.432), "vit_m16": (83.090,), "vit_b16": (83.800, 85.088),
            "vit_l16": (84.772, 85.820),
        }),
        ("vit_h14", "deit3_huge_patch14_224.fb_in1k", 224, 85.204),
    )),
    Published(_TIMM_DEIT3, "deit3_in22k_ft_in1k", (
        *with_top1("deit3_{}_patch16_{}.fb_in22k_ft_in1k", _MODELS, {
            "vit_s16": (83.082, 84.846), "vit_m16": (84.550,), "vit_b16": (85.728, 86.742),
            "vit_l16": (86.990, 87.736),
        }),
        ("vit_h14", "deit3_huge_patch14_224.fb_in22k_ft_in1k", 224, 87.180),
    )),
    Published(_HUB_DEIT, "deit_in1k", with_top1("facebook/deit-{}-patch16-{}", _MODELS, {
        "vit_ti16": (72.2,), "vit_s16": (79.9,), "vit_b16": (81.8, 82.9),
    })),
    Published(_HUB_DISTILLED, "deit_distilled_in1k", with_top1(
        "facebook/deit-{}-distilled-patch16-{}", _MODELS,
        {"vit_ti16": (74.5,), "vit_s16": (81.2,), "vit_b16": (83.4, 85.2)},
    )),
)  # fmt: skip

FAMILY = Family(
    {}, NAMES, CARDS, MODEL_TYPES, PROCESSORS, timm_images=TIMM_IMAGES,
    layouts=(HF_DEIT_TOKEN, HF_DEIT),
)  # fmt: skip
