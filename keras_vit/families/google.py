"""The ViTs of Google: the paper's, AugReg, SAM, FlexiViT, hybrids."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.config import UNIT_RANGE, Preprocessing, ResNetStem
from keras_vit.families import bit, cards, keys, parts, rules
from keras_vit.families.augreg import AugRegFile
from keras_vit.families.family import Family
from keras_vit.families.names import (
    EXACT,
    PATCHES,
    SCALED,
    WORDS,
    Name,
    Names,
    architectures,
    joined,
    of_timm,
    sized,
)
from keras_vit.families.preprocessing import CENTER, OPENAI_PIXELS, SQUASHED, TimmImages
from keras_vit.families.rules import Rule, pairs

# Patches of 8 and 14 pixels are DINO's and DINOv2's. The published fine-tuning configs drop out 0.1
# in L/16 and H/14 and nothing elsewhere.
_PATCHES = {
    "ti": (16,), "s": (8, 14, 16, 32), "m": (16,), "b": (8, 14, 16, 32), "l": (14, 16, 32),
    "so400m": (14, 16), "h": (14,), "giantopt": (16,), "giant": (14,), "gigantic": (14,),
}  # fmt: skip
_DROPOUT = {("l", 16): 0.1, ("h", 14): 0.1}
# Sections 3.1 and 4.1 of https://arxiv.org/abs/2010.11929 and the configs published with it: stem,
# transformer, the stages of its stem, patches on the stem's maps, dropout. The number of a name is
# what stem and patch shrink the image by together; but R+Ti/16 shrinks it by 32, in the official
# code as here, for its root has a stride of 4. R50+B/32 and R50+L/16 were trained on JFT and never
# published; their dropout is that of the two published R50.
_HYBRIDS = (
    ("r", "ti", 16, (), 8, 0.0),
    ("r26", "s", 32, (2, 2, 2, 2), 1, 0.0),
    ("r26", "b", 32, (2, 2, 2, 2), 1, 0.0),
    ("r50", "b", 16, (3, 4, 9), 1, 0.1),
    ("r50", "b", 32, (3, 4, 6, 3), 1, 0.1),
    ("r50", "l", 16, (3, 4, 9), 1, 0.1),
    ("r50", "l", 32, (3, 4, 6, 3), 1, 0.1),
)
VARIANTS: dict[str, keys.Fields] = {
    **{
        f"vit_{size}{patch}": sized(size, patch, {"dropout_rate": _DROPOUT.get((size, patch), 0.0)})
        for size, patches in _PATCHES.items()
        for patch in patches
    },
    **{
        f"{stem}_vit_{size}{number}": sized(
            size, patch, {"stem": ResNetStem(stages), "dropout_rate": dropout}
        )
        for stem, size, number, stages, patch, dropout in _HYBRIDS
    },
}
# The paper's short names. Only those of g/14 and G/14 differ by case alone.
_SHORT = {"so400m": "So400m", "giantopt": "g-opt", "giant": "g", "gigantic": "G", "ti": "Ti"}
_NOT_OF_TIMM = (
    "vit_s14", "vit_m16", "vit_b14", "vit_so400m14", "vit_so400m16", "vit_giantopt16",
    "r50_vit_b32", "r50_vit_l16",
)  # fmt: skip


def _names(variant: str, timm: str, resnet: str, size: str, patch: int) -> Names:
    """Names of a plain ViT or a hybrid, of which timm computes the exact GELU."""
    short, vit = _SHORT.get(size, size.upper()), variant.removesuffix(f"{size}{patch}")
    [(stem, name)] = of_timm(timm, variant, settings=EXACT).items()
    if variant in _NOT_OF_TIMM:
        name = Name(variant)
    others = (
        f"{resnet}{short}/{patch}",
        f"{vit}{short if short in 'gG' else size}{patch}",
        f"{resnet}ViT-{short}/{patch}",
        f"{resnet}ViT-{short}_{patch}",  # stem of the official file
        f"{resnet.replace('+', '_')}{short}_{patch}",  # stem of the AugReg files
    )
    return {stem: name, **{other: Name(variant) for other in others if other != variant}}


def _plain_names(size: str, patch: int) -> Names:
    timm = f"vit_{WORDS[size]}_patch{patch}_224"
    return _names(f"vit_{size}{patch}", timm, "", size, patch)


def _hybrid_names(resnet: str, size: str, patch: int) -> Names:
    stem = f"{resnet}_s16_p8" if resnet == "r" else f"{resnet}_s{patch}"
    timm = f"vit_{WORDS[size]}_{stem}_224"
    return _names(f"{resnet}_vit_{size}{patch}", timm, f"{resnet.upper()}+", size, patch)


NAMES: Names = {
    **joined(_plain_names(size, patch) for size, sides in _PATCHES.items() for patch in sides),
    **joined(_hybrid_names(*row[:3]) for row in _HYBRIDS),
    **architectures(
        "flexivit_{}", "small base large", EXACT, PATCHES, {"image_size": 240},
        settings={"position_resize": "bilinear"},
    ),
    **architectures(  # TIPSv2, https://github.com/google-deepmind/tips
        "vit_{}_patch14_reg1_tipsv2", "base large so400m", SCALED, PATCHES,
        {"num_registers": 1, "image_size": 448},
    ),
}  # fmt: skip
# A pixel of 1 is 255.
_UNSCALED: keys.Fields = {"mean": (0.0,), "std": (255.0,)}
TIMM_IMAGES: TimmImages = (
    (r"vit_(\w+_)?(patch\d+|s32|s16|p8)_384(\..*)?", CENTER),
    (r".*\.bamboo", {**OPENAI_PIXELS, **CENTER}),
    (r"flexivit_.*", {"crop_ratio": 0.95}),
    (r".*_tipsv2(\..*)?", {**_UNSCALED, **CENTER}),
)


# transformers. Hybrids left it with version 5, so that none are written.
def _check_stem(config: Any) -> keys.Fields:
    if config.stem is not None:
        raise ValueError('transformers has no hybrids since version 5. Save with layout="timm".')
    return {}


MODEL_TYPES = {
    "vit": keys.ModelType(
        keys.VIT, keys.DEFAULTS, layouts=("transformers_vit",), headless="ViTModel",
        head="ViTForImageClassification", more=_check_stem,
    ),
    "vit-hybrid": keys.ModelType(
        {
            **keys.VIT,
            "patch_size": keys.HARMLESS,  # of the maps of the stem
            **keys.harmless(
                "backbone backbone_featmap_shape backbone_kwargs use_pretrained_backbone "
                "use_timm_backbone"
            ),
            "backbone_config": keys.Part(
                {
                    **bit.BIT_KEYS,
                    "layer_type": keys.Only(("bottleneck",), "units of another kind"),
                    "global_padding": keys.Only(("same", "SAME"), "another padding"),
                    "embedding_dynamic_padding": keys.Only((True,), "another padding of the root"),
                }
            ),
        },
        keys.DEFAULTS,
    ),
}  # fmt: skip
PROCESSORS = {"ViT": keys.Processor(2, 224, True, writes="whole"), "ViTHybrid": bit.BIT_PROCESSOR}

# layouts of arrays: parts of layers in Flax
NORM = (("gamma", "/scale", rules.SAME), ("beta", "/bias", rules.SAME))
_OUTPUT = (("kernel", "/kernel", rules.HEADS_OUTPUT), ("bias", "/bias", rules.SAME))


def _attention(ours: str, theirs: str, parts: tuple[str, ...]) -> tuple[Rule, ...]:
    """One variable from queries, keys and values, or some of them."""
    return (
        Rule(
            f"{ours}/kernel", tuple(f"{theirs}/{part}/kernel" for part in parts), rules.HEADS_KERNEL
        ),
        Rule(f"{ours}/bias", tuple(f"{theirs}/{part}/bias" for part in parts), rules.HEADS_BIAS),
    )


def _mlp(ours: str, theirs: str) -> tuple[Rule, ...]:
    return (
        *pairs(f"{ours}/hidden", f"{theirs}/Dense_0", bit.FLAX_DENSE),
        *pairs(f"{ours}/output", f"{theirs}/Dense_1", bit.FLAX_DENSE),
    )


def flax_blocks(
    attention: str, norm: str, mlp: str, block: str = "Transformer/encoderblock_{i}"
) -> tuple[Rule, ...]:
    """The encoder blocks; generations of Flax number their layers differently."""
    return (
        *pairs("block_{i}/attention_norm", f"{block}/LayerNorm_0", NORM),
        *_attention("block_{i}/attention/qkv", f"{block}/{attention}", ("query", "key", "value")),
        *pairs("block_{i}/attention/output", f"{block}/{attention}/out", _OUTPUT),
        *pairs("block_{i}/mlp_norm", f"{block}/{norm}", NORM),
        *_mlp("block_{i}/mlp", f"{block}/{mlp}"),
    )


# The ResNet stem of a hybrid.
_STEM = (
    bit.flax_conv("stem_root/conv", "conv_root"),
    *pairs("stem_root/norm", "gn_root", NORM),
    *bit.flax_units(parts.OURS_HYBRID, "block{i}/unit{j}"),
    *pairs(f"{parts.OURS_HYBRID}/shortcut_norm", "block{i}/unit{j}/gn_proj", bit.GROUP_NORM),
)

_MAP = "MAPHead_0"
_TOKEN_AND_HEAD = (
    Rule("class_token/token", ("cls",)),
    *pairs("encoder_norm", "Transformer/encoder_norm", NORM),
    *pairs("pre_logits", "pre_logits", bit.FLAX_DENSE),
    *pairs("head", "head", bit.FLAX_DENSE),
)
_MAP_HEAD = (
    Rule("pooling/probe", (f"{_MAP}/probe",)),
    *_attention("pooling/query", f"{_MAP}/MultiHeadDotProductAttention_0", ("query",)),
    *_attention("pooling/key_value", f"{_MAP}/MultiHeadDotProductAttention_0", ("key", "value")),
    *pairs("pooling/output", f"{_MAP}/MultiHeadDotProductAttention_0/out", _OUTPUT),
    *pairs("pooling/norm", f"{_MAP}/LayerNorm_0", NORM),
    *_mlp("pooling/mlp", f"{_MAP}/MlpBlock_0"),
)


def _vit(positions: str, blocks: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return (
        *_STEM,
        *pairs("patch_encoder/projection", "embedding", bit.FLAX_DENSE),
        Rule("position_embedding/embedding", (positions,)),
        *blocks,
        *_TOKEN_AND_HEAD,
    )


_OPTIONS = {"gelu": "tanh", "norm_epsilon": 1e-6, "preprocessing": UNIT_RANGE}
LINEN_LAYERS = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_LINEN = flax_blocks(*LINEN_LAYERS)
_POSITIONS = "Transformer/posembed_input/pos_embedding"


# As published in gs://vit_models, whose layers are numbered across all classes of layers.
OFFICIAL = rules.Layout(
    "official",
    _vit(_POSITIONS, flax_blocks("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")),
    "official",
    writes=rules.always,
    prefixes=("", "opt/target/", "params/"),
    options=_OPTIONS,
    others=("opt/",),
)
# As the official code of today names them, where each class of layers is numbered by itself.
LINEN = dataclasses.replace(
    OFFICIAL, name="linen", rules=_vit(_POSITIONS, _LINEN), writes=None, no_positions="sincos_2d"
)
# gs://big_vision: positions are added before the class token; two towers in one file.
OF_BIG_VISION = rules.Layout(
    "big_vision",
    (*_vit("pos_embedding", _LINEN), *_MAP_HEAD),
    "big_vision",
    writes=rules.always,
    no_positions="sincos_2d",
    prefixes=("params/", "params/img/", "opt/target/", "opt/target/img/", "img/", ""),
    options=_OPTIONS,
    class_token_positions="never",
    resize_flexible="linear",
    others=("opt/", "params/(txt/|t$|b$|bias_init$)", "(txt/|t$|b$|bias_init$)"),
)


_HF_STEM = "embeddings.patch_embeddings.backbone.bit"
HF_VIT = parts.torch_layout(
    "transformers_vit",
    (
        parts.conv("stem_root/conv", f"{_HF_STEM}.embedder.convolution"),
        *parts.norm("stem_root/norm", f"{_HF_STEM}.embedder.norm"),
        *parts.units(
            parts.OURS_HYBRID,
            f"{_HF_STEM}.encoder.stages.{{i-1}}.layers.{{j-1}}",
            shortcut_norm=True,
        ),
        *parts.encoder(("head", "classifier")),
    ),
    {**parts.HF_OPTIONS, "preprocessing": SQUASHED, "stem": parts.STEM},
    writes=lambda config: config.block.layer_scale is None,
    pooling="token",
    lacks=(rules.ALL_OR_NONE,),
    in_memory=parts.IN_MEMORY,
    prefixes=("vit.", "", "ijepa."),
    others=("decoder\\.", "embeddings\\.mask_token$"),  # of models that fill masked patches
    unprefixed=("classifier\\.",),
)

# Published checkpoints: google-research/vision_transformer and big_vision, then copies.
_VIT_PAPER = "https://arxiv.org/abs/2010.11929"
_AUGREG_PAPER = "https://arxiv.org/abs/2106.10270"
_SAM_PAPER = "https://arxiv.org/abs/2106.01548"
_FLEXIVIT_PAPER = "https://arxiv.org/abs/2212.08013"
_README = "the project's README"
_TABLE_5 = "Table 5 of the paper (a model trained the same way)"
_VIT_MODELS = cards.Publisher(
    "official",
    "gs://vit_models/{}.npz",
    "https://github.com/google-research/vision_transformer",
    measured=cards.TIMM_AS_EXACT,
)
_VIT_OFFICIAL = cards.Origin(_VIT_MODELS, _VIT_PAPER, {}, UNIT_RANGE, 1000)
# Heads of 21,843 classes, with the hidden layer of the pre-training, by its width: file, MiB.
_IN21K = {
    768: (
        ("vit_b16", "ViT-B_16", 393.69),
        ("vit_b32", "ViT-B_32", 400.01),
        ("vit_b8", "ViT-B_8", 393.72),
        ("r50_vit_b16", "R50+ViT-B_16", 439.85),
        ("r26_vit_b32", "R26+ViT-B_32", 450.23),
    ),
    1024: (
        ("vit_l16", "ViT-L_16", 1.22 * 1024),
        ("vit_l32", "ViT-L_32", 1.23 * 1024),
        ("r50_vit_l32", "R50+ViT-L_32", 1.31 * 1024),
    ),
    1280: (("vit_h14", "ViT-H_14", 2.46 * 1024),),
}
_NO_HEAD = _VIT_OFFICIAL._replace(
    classes=21843,
    note="All weights of its head are zero, on purpose: it is there to be fine-tuned and predicts "
    "nothing.",
)
_FINE_TUNED = "imagenet21k+imagenet2012"

# The table of recommended files in the README of AugReg: model, augmentation, weight decay, dropout
# and stochastic depth, MiB; then the learning rate of fine-tuning at 384 pixels and its top-1. B_8
# is recommended by big_vision, which fine-tuned it at 224.
_RECOMMENDED = (
    ("L_16", "strong1", "0.1", "0.0", 1243, "0.01", 384, 85.59),
    ("B_16", "medium1", "0.1", "0.0", 391, "0.03", 384, 85.49),
    ("S_16", "light1", "0.03", "0.0", 115, "0.03", 384, 83.73),
    ("R50_L_32", "medium1", "0.1", "0.1", 1337, "0.01", 384, 85.99),
    ("R26_S_32", "light1", "0.1", "0.0", 170, "0.01", 384, 83.85),
    ("Ti_16", "none", "0.03", "0.0", 37, "0.03", 384, 78.22),
    ("B_32", "light1", "0.1", "0.0", 398, "0.01", 384, 83.59),
    ("S_32", "none", "0.1", "0.0", 118, "0.01", 384, 79.58),
    ("R_Ti_16", "none", "0.03", "0.0", 40, "0.03", 384, 75.40),
    ("B_8", "medium2", "0.1", "0.0", None, "0.03", 224, 85.578),
)
# What timm chose among the files fine-tuned at 224 pixels, and among those trained on ImageNet
# alone, fine-tuned at 224 and 384.
_AT_224 = (
    ("Ti_16", "none", "0.03", "0.0", "0.03"), ("S_32", "light1", "0.03", "0.0", "0.03"),
    ("S_16", "light1", "0.03", "0.0", "0.03"), ("B_32", "medium1", "0.03", "0.0", "0.03"),
    ("B_16", "medium1", "0.1", "0.0", "0.01"), ("L_16", "medium1", "0.1", "0.1", "0.01"),
    ("R_Ti_16", "none", "0.03", "0.0", "0.03"), ("R26_S_32", "light0", "0.03", "0.1", "0.03"),
    ("R50_L_32", "medium1", "0.1", "0.1", "0.01"),
)  # fmt: skip
_IN1K = (
    ("S_16", "medium2", "0.1", "0.0", "0.01"), ("B_32", "medium2", "0.1", "0.1", "0.01"),
    ("B_16", "strong2", "0.1", "0.1", "0.01"),
)  # fmt: skip
# Top-1 that timm measured at 224 and at 384 pixels.
_AUGREG_TOP1 = {
    "vit_ti16": (75.452, 78.438), "vit_s32": (76.010, 80.476), "vit_s16": (81.402, 83.814),
    "vit_b32": (80.732, 83.358), "vit_b16": (84.534, 86.010), "vit_b8": (85.838,),
    "vit_l16": (85.856, 87.096), "r_vit_ti16": (71.800, 75.962), "r26_vit_s32": (81.856, 84.066),
    "r50_vit_l32": (84.434, 86.188),
}  # fmt: skip
_IN1K_TOP1 = {
    "vit_s16": (78.842, 81.130), "vit_b32": (74.908, 78.750), "vit_b16": (79.154, 81.102),
}  # fmt: skip


def _augreg(
    model: str, data: str, augmentation: str, decay: str, rate: str, *adapted: Any
) -> tuple[Any, ...]:
    """Variant, name and image size of an AugReg file: see `AugRegFile`."""
    settings = (model, data, 300, "0.001", augmentation, decay, rate, rate)
    file = AugRegFile(*settings, *(("imagenet2012", "20k", *adapted) if adapted else ()))
    return file.variant, f"augreg/{file.name.removesuffix('.npz')}", file.image_size


_AUGREG = cards.Origin(_VIT_MODELS, _AUGREG_PAPER, {"dropout_rate": 0.0}, UNIT_RANGE, 1000)
_PRETRAINED_AUGREG = _AUGREG._replace(classes=21843)
_OFFICIAL_CARDS = (
    *(
        cards.Published(_NO_HEAD._replace(options={"pre_logits": width}), "orig_in21k", tuple(
            (variant, f"imagenet21k/{name}", 224, None, size) for variant, name, size in files
        ))
        for width, files in _IN21K.items()
    ),
    cards.Published(_VIT_OFFICIAL, "orig_in21k_ft_in1k", (
        ("vit_b16", f"{_FINE_TUNED}/ViT-B_16-224", 224, 81.2, 330.29, _README),
        ("vit_b16", f"{_FINE_TUNED}/ViT-B_16", 384, 84.212, 331.4),
        ("vit_b32", f"{_FINE_TUNED}/ViT-B_32", 384, 81.28, 336.89, _TABLE_5),
        ("vit_b8", f"{_FINE_TUNED}/ViT-B_8", 384, None, 334.78),
        ("vit_l16", f"{_FINE_TUNED}/ViT-L_16-224", 224, 82.7, None, _README),
        ("vit_l16", f"{_FINE_TUNED}/ViT-L_16", 384, 85.15, None, _TABLE_5),
        ("vit_l32", f"{_FINE_TUNED}/ViT-L_32", 384, 81.508),
        ("r50_vit_b16", f"{_FINE_TUNED}/R50+ViT-B_16", 384, 84.988, 377.57),
    )),
    # trained on ImageNet from scratch with sharpness-aware minimisation
    cards.Published(_VIT_OFFICIAL._replace(paper=_SAM_PAPER), "sam_in1k", (
        ("vit_b16", "sam/ViT-B_16", 224, 80.246, 330.3),
        ("vit_b32", "sam/ViT-B_32", 224, 73.704, 336.61),
        ("vit_l16", "sam/ViT-L_16"),
        ("vit_l32", "sam/ViT-L_32"),
        ("vit_s16", "sam/ViT-S_16", 224, None, 252.57),
    )),
    cards.Published(_PRETRAINED_AUGREG, "augreg_in21k", tuple(
        (*_augreg(model, "i21k", *settings), None, size)
        for model, *settings, size, _, _, _ in _RECOMMENDED
    )),
    cards.Published(_AUGREG, "augreg_in21k_ft_in1k", (
        *(
            (
                *_augreg(model, "i21k", *settings, lr, side), top1, None,
                _README if side == 384 else "the table of google-research/big_vision",
            )
            for model, *settings, _, lr, side, top1 in _RECOMMENDED
        ),
        *(
            (*(file := _augreg(model, "i21k", *settings, 224)), _AUGREG_TOP1[file[0]][0])
            for model, *settings in _AT_224
        ),
    )),
    cards.Published(_AUGREG, "augreg_in1k", tuple(
        (*(file := _augreg(model, "i1k", *settings, side)), _IN1K_TOP1[file[0]][side == 384])
        for model, *settings in _IN1K
        for side in (224, 384)
    )),
)  # fmt: skip

# Hidden layer before the head, fixed positions, mean of the patch tokens.
_PLAIN = cards.Origin(
    cards.BIG_VISION,
    "https://arxiv.org/abs/2205.01580",
    {"pooling": "gap", "class_token": False, "position_embedding": "sincos_2d", "pre_logits": 384},
    Preprocessing(interpolation="area", crop_ratio=224 / 256),
    1000,
    measured="the paper",
)
# Positions have no row for the class token there.
_FLEXIVIT = cards.Origin(
    cards.BIG_VISION,
    _FLEXIVIT_PAPER,
    {"position_on_class_token": False},
    Preprocessing(interpolation="bilinear", crop_ratio=7 / 8),
    1000,
    flexible=True,
    measured=cards.TIMM_AS_EXACT,
)
# Top-1 of L, B and S by epochs, of which 1,200 are recommended.
_FLEXIVIT_TOP1 = {
    1200: (85.646, 84.678, 82.576), 600: (85.530, 84.564, 82.388), 300: (85.284, 84.402, 82.170),
}  # fmt: skip
_FLEXIVIT_IN21K = _FLEXIVIT._replace(classes=21843)
_BASELINE = _FLEXIVIT_IN21K._replace(flexible=False)
_THIRTY = _BASELINE._replace(options={**_FLEXIVIT.options, "patch_size": (30, 30)})
_BIG_VISION_CARDS = (
    *(
        cards.Published(
            _PLAIN, f"plain_in1k_{epochs}ep", (("vit_s16", f"vit_s16_i1k_{epochs}ep", 224, top1),)
        )
        for epochs, top1 in ((90, 76.5), (150, None), (300, 80.0))
    ),
    *(
        cards.Published(_FLEXIVIT, f"flexivit_in1k_{epochs}ep", tuple(
            (f"vit_{size}16", f"flexivit/flexivit_{size}_i1k{ending}", 240, top1)
            for size, top1 in zip("lbs", _FLEXIVIT_TOP1.get(epochs, [None] * 3), strict=True)
        ))
        for epochs, ending in ((1200, ""), (600, "_600ep"), (300, "_300ep"), (90, "_90ep"))
    ),
    *(
        cards.Published(_FLEXIVIT_IN21K, f"flexivit_in21k_{epochs}ep",
                  (("vit_b16", f"flexivit/flexivit_b_i21k_{epochs}ep", 240),))
        for epochs in (1000, 300, 90)
    ),
    cards.Published(_BASELINE, "flexivit_baseline_in21k_300ep",
              (("vit_b16", "flexivit/vit_b16_i21k_300ep", 240),)),
    cards.Published(_THIRTY, "flexivit_baseline_in21k_300ep",
              (("vit_b32", "flexivit/vit_b30_i21k_300ep", 240),)),
)  # fmt: skip

_TIMM_VIT = cards.Origin(cards.TIMM, _VIT_PAPER, classes=1000)
_TIMM_AUGREG = _TIMM_VIT._replace(paper=_AUGREG_PAPER)
_TIMM_FLEXIVIT = cards.Origin(
    cards.TIMM, _FLEXIVIT_PAPER, _FLEXIVIT.options, classes=1000, flexible=True
)
_TIMM_MODELS = {
    name.variant: stem.removeprefix("vit_")
    for stem, name in NAMES.items()
    if name.timm is not None and name.variant is not None
}


def _timm(
    origin: cards.Origin, tag: str, top1: Mapping[str, tuple[float | None, ...]]
) -> cards.Published:
    """Files of timm with one tag."""
    return cards.Published(origin, tag, cards.with_top1(f"vit_{{}}_{{}}.{tag}", _TIMM_MODELS, top1))


def _pretrained(origin: cards.Origin, tag: str, variants: str) -> cards.Published:
    """Files of timm without top-1, of 224 pixels."""
    sizes = dict.fromkeys(variants.split(), (224,))
    return cards.Published(origin, tag, cards.each(f"vit_{{}}_{{}}.{tag}", _TIMM_MODELS, sizes))


_TIMM_CARDS = (
    _timm(_TIMM_AUGREG, "augreg2_in21k_ft_in1k", {"vit_b16": (85.108,), "vit_b8": (86.252,)}),
    _timm(_TIMM_AUGREG, "augreg_in21k_ft_in1k", _AUGREG_TOP1),
    _timm(_TIMM_AUGREG, "augreg_in1k", _IN1K_TOP1),
    _timm(_TIMM_VIT, "orig_in21k_ft_in1k", {
        "vit_b16": (81.782, 84.212), "vit_l32": (None, 81.508), "r50_vit_b16": (None, 84.988),
    }),
    _timm(_TIMM_VIT._replace(paper=_SAM_PAPER), "sam_in1k",
          {"vit_b32": (73.704,), "vit_b16": (80.246,)}),
    _pretrained(
        _TIMM_AUGREG._replace(classes=21843), "augreg_in21k",
        "vit_ti16 vit_s32 vit_s16 vit_b32 vit_b16 vit_b8 vit_l16 r_vit_ti16 r26_vit_s32 "
        "r50_vit_l32",
    ),
    _pretrained(
        _TIMM_VIT._replace(classes=None), "orig_in21k",
        "vit_b32 vit_b16 vit_l32 vit_l16 vit_h14 r50_vit_b16",
    ),
    *(
        cards.Published(_TIMM_FLEXIVIT, f"flexivit_{epochs}ep_in1k", tuple(
            (f"vit_{name[0]}16", f"flexivit_{name}.{epochs}ep_in1k", 240, top1)
            for name, top1 in zip(("large", "base", "small"), accuracies, strict=True)
        ))
        for epochs, accuracies in _FLEXIVIT_TOP1.items()
    ),
)  # fmt: skip

_HUB_VIT = cards.Origin(cards.HUB, _VIT_PAPER, cards.HUB_EXACT, SQUASHED, 1000)
_HUB_HYBRID = _HUB_VIT._replace(  # as timm, from which it was converted
    preprocessing=Preprocessing(interpolation="bicubic", crop_ratio=1.0, library="transformers")
)
_HUB_MODELS = {variant: name.replace("_", "-") for variant, name in _TIMM_MODELS.items()}
_POOLER = (
    "The file has no head. Its pooler, the hidden layer of pre-training, is not part of the "
    "features."
)
CARDS = (
    *_OFFICIAL_CARDS,
    *_BIG_VISION_CARDS,
    *_TIMM_CARDS,
    cards.Published(_HUB_VIT, "orig_in21k_ft_in1k", cards.each("google/vit-{}-{}", _HUB_MODELS, {
        "vit_b16": (224, 384), "vit_b32": (384,), "vit_l16": (224, 384), "vit_l32": (384,),
    })),
    cards.Published(_HUB_HYBRID, "orig_in21k_ft_in1k",
              (("r50_vit_b16", "google/vit-hybrid-base-bit-384", 384),)),
    cards.Published(
        _HUB_VIT._replace(classes=None, note=_POOLER), "orig_in21k",
        cards.each("google/vit-{}-{}-in21k", _HUB_MODELS, dict.fromkeys(
            ("vit_b16", "vit_b32", "vit_l16", "vit_l32", "vit_h14"), (224,)
        )),
    ),
)  # fmt: skip

FAMILY = Family(
    VARIANTS, NAMES, CARDS, MODEL_TYPES, PROCESSORS, timm_images=TIMM_IMAGES,
    layouts=(OFFICIAL, LINEN, OF_BIG_VISION, HF_VIT),
)  # fmt: skip
