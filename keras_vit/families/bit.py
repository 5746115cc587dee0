"""Big Transfer, BiT: ResNets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_vit.config import UNIT_RANGE, Preprocessing, ResNetConfig
from keras_vit.families import keys, parts, rules
from keras_vit.families.cards import TIMM, Files, Origin, Published, Publisher, of_size
from keras_vit.families.family import Family
from keras_vit.families.names import Name, Names, joined
from keras_vit.families.preprocessing import OPENAI, SQUASHED
from keras_vit.families.rules import Rule, pairs

# Section 3.2 of https://arxiv.org/abs/1912.11370, and the baselines of the ViT paper's Table 6:
# layers, units of the stages, and the width factors.
VARIANTS: dict[str, keys.Fields] = {
    f"bit_r{depth}x{factor}": {"stages": stages, "width_factor": factor}
    for depth, stages, factors in (
        (50, (3, 4, 6, 3), (1, 2, 3)),
        (101, (3, 4, 23, 3), (1, 3)),
        (152, (3, 8, 36, 3), (1, 2, 4)),
        (200, (3, 24, 36, 3), (3,)),
    )
    for factor in factors
}
_OF_TIMM = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def _names(variant: str) -> Names:
    size = variant.removeprefix("bit_r")
    timm = f"resnetv2_{size}_bit"
    files = (f"BiT-R{size}", f"BiT-S-R{size}", f"BiT-M-R{size}")  # stems of the official ones
    return {
        **dict.fromkeys((f"R{size}", *files), Name(variant)),
        timm: Name(variant, timm=timm if size in _OF_TIMM else None),
    }


NAMES = joined(map(_names, VARIANTS))


# transformers
def _sizes(config: Any) -> keys.Fields:
    root = 64 * config.width_factor
    return {
        "depths": list(config.stages),
        "hidden_sizes": [4 * root * 2**stage for stage in range(len(config.stages))],
        "embedding_size": root,
    }


BIT_KEYS: keys.Rules = {
    **keys.COMMON,
    "padding": keys.Only((None,), "another padding"),
    **keys.BACKBONE,
    "num_channels": keys.Size("channels"),
    "hidden_act": keys.Only(("relu",), "another activation"),
    "num_groups": keys.Only((32,), "another number of groups"),
    "output_stride": keys.Only((32,), "dilated convolutions"),
    "layer_type": keys.Only(("preactivation",), "units of another kind"),
    "global_padding": keys.Only((None,), "another padding"),
    "embedding_dynamic_padding": keys.Only((False,), "another padding of the root"),
    "image_size": keys.Images(),
    **keys.harmless("embedding_size hidden_sizes depths drop_path_rate width_factor"),
}
MODEL_TYPES = {
    "bit": keys.ModelType(
        BIT_KEYS, layouts=("transformers_bit",), headless="BitModel",
        head="BitForImageClassification", more=_sizes,
    ),
}  # fmt: skip
BIT_PROCESSOR = keys.Processor(3, 224, False, 224, OPENAI)
PROCESSORS = {"Bit": BIT_PROCESSOR}


# timm
def _timm_name(config: Any) -> str:
    for size in _OF_TIMM:
        sizes = VARIANTS[f"bit_r{size}"]
        if (config.stages, config.width_factor) == (sizes["stages"], sizes["width_factor"]):
            return f"resnetv2_{size}_bit"
    raise ValueError(
        f"timm has no BiT of these sizes. Received: stages={config.stages}, width_factor="
        f'{config.width_factor}. Save with layout="transformers".'
    )


TIMM_MODELS = (
    keys.TimmModel(
        lambda config: isinstance(config, ResNetConfig),
        _timm_name,
        "in_chans",
        rules={
            "global_pool": keys.Only(("avg",), "another pooling"),
            "output_stride": keys.Only((32,), "dilated convolutions"),
            "act_layer": keys.Only(("relu",), "another activation"),
            "in_chans": keys.Size("channels"),
            **keys.harmless("num_classes img_size drop_rate drop_path_rate zero_init_last"),
        },
        layouts=("timm_bit", "transformers_bit"),
    ),
)


# layouts of arrays
def flax_conv(ours: str, theirs: str) -> Rule:
    """A convolution in Flax and TensorFlow."""
    return Rule(f"{ours}/kernel", (f"{theirs}/kernel",))


# Parts of layers in Flax.
GROUP_NORM = (("gamma", "/scale", rules.CHANNELS), ("beta", "/bias", rules.CHANNELS))
FLAX_DENSE = (("kernel", "/kernel", rules.SAME), ("bias", "/bias", rules.SAME))
_TF_NORM = (("gamma", "/gamma", rules.SAME), ("beta", "/beta", rules.SAME))


def flax_units(ours: str, theirs: str) -> Iterator[Rule]:
    """The bottleneck units of a ResNet in big_vision and in the stems of hybrids."""
    for n in (1, 2, 3):
        yield flax_conv(f"{ours}/conv_{n}", f"{theirs}/conv{n}")
        yield from pairs(f"{ours}/norm_{n}", f"{theirs}/gn{n}", GROUP_NORM)
    yield flax_conv(f"{ours}/shortcut", f"{theirs}/conv_proj")


def _tf_units(ours: str, theirs: str) -> Iterator[Rule]:
    """The same units in the TensorFlow 1 code."""
    for n, part in enumerate("abc", start=1):
        yield flax_conv(f"{ours}/conv_{n}", f"{theirs}/{part}/standardized_conv2d")
        yield from pairs(f"{ours}/norm_{n}", f"{theirs}/{part}/group_norm", _TF_NORM)
    yield flax_conv(f"{ours}/shortcut", f"{theirs}/a/proj/standardized_conv2d")


# gs://bit_models, names of its TensorFlow 1 code.
BIT = rules.Layout(
    "bit",
    (
        flax_conv("root/conv", "resnet/root_block/standardized_conv2d"),
        *_tf_units(parts.OURS_BIT, "resnet/block{i}/unit{j:02}"),
        *pairs("norm", "resnet/group_norm", _TF_NORM),
        Rule("head/kernel", ("resnet/head/conv2d/kernel",), rules.POINTWISE),
        Rule("head/bias", ("resnet/head/conv2d/bias",)),
    ),
    project="official",
    writes=rules.always,
    options={"preprocessing": UNIT_RANGE},
)
# The same network in big_vision (its `bit_paper`).
BIT_BIG_VISION = rules.Layout(
    "bit_big_vision",
    (
        flax_conv("root/conv", "root_block/conv_root"),
        *flax_units(parts.OURS_BIT, "block{i}/unit{j:02}"),
        *pairs("norm", "norm-pre-head", GROUP_NORM),
        *pairs("head", "head", FLAX_DENSE),
    ),
    project="big_vision",
    writes=rules.always,
    prefixes=("params/", "opt/target/", ""),
    options={"preprocessing": UNIT_RANGE},
    others=("opt/",),
)

# The same network in PyTorch
_BIT_OPTIONS = {"standardization": "torch", "preprocessing": SQUASHED}
TIMM_BIT = parts.torch_layout(
    "timm_bit",
    (
        parts.conv("root/conv", "stem.conv"),
        *parts.units(parts.OURS_BIT, "stages.{i-1}.blocks.{j-1}", shortcut_norm=False),
        *parts.norm("norm", "norm"),
        Rule("head/kernel", ("head.fc.weight",), rules.POINTWISE_CONVOLUTION),
        Rule("head/bias", ("head.fc.bias",)),
    ),
    _BIT_OPTIONS,
    writes=rules.always,
)
HF_BIT = parts.torch_layout(
    "transformers_bit",
    (
        parts.conv("root/conv", "embedder.convolution"),
        *parts.units(parts.OURS_BIT, "encoder.stages.{i-1}.layers.{j-1}", shortcut_norm=False),
        *parts.norm("norm", "norm"),
        *parts.dense("head", "classifier.1"),
    ),
    _BIT_OPTIONS,
    writes=rules.always,
    prefixes=("bit.", ""),
    unprefixed=("classifier\\.",),
)

# Published checkpoints. Images are squashed to [-1, 1], as in the project's own evaluation.
_PAPER = "https://arxiv.org/abs/1912.11370"
# By size: what BiT-M was fine-tuned at on ImageNet, and its top-1.
_FINE_TUNED = {
    "50x1": (448, 80.386), "50x3": (448, 83.982), "101x1": (448, 82.332),
    "101x3": (448, 84.430), "152x2": (448, 84.468), "152x4": (480, 84.936),
}  # fmt: skip
_BIT = Origin(
    Publisher(
        "bit",
        "gs://bit_models/{}.npz",
        "https://github.com/google-research/big_transfer",
        measured=TIMM.measured,
    ),
    _PAPER,
    preprocessing=UNIT_RANGE,
    classes=1000,
)
_DISTILLED = _BIT._replace(paper="https://arxiv.org/abs/2106.05237")
_TIMM_1K = Origin(TIMM, _PAPER, {}, Preprocessing(crop_ratio=1.0, library="timm"), 1000)
_TIMM_21K = Origin(TIMM, _PAPER, {}, Preprocessing(crop_ratio=0.875, library="timm"), 21843)


def _fine_tuned(name: str) -> Files:
    """Files of all sizes, whose names have the size in place of `{}`, with their top-1."""
    return tuple((f"bit_r{size}", name.format(size), *facts) for size, facts in _FINE_TUNED.items())


_MODELS = {f"bit_r{size}": size for size in _FINE_TUNED}
CARDS = (
    Published(_BIT, "bit_in1k", of_size("BiT-S-R{}", _MODELS)),
    Published(_BIT._replace(classes=21843), "bit_in21k", of_size("BiT-M-R{}", _MODELS)),
    Published(_BIT, "bit_in21k_ft_in1k", _fine_tuned("BiT-M-R{}-ILSVRC2012")),
    Published(_DISTILLED._replace(measured="the project's README"), "distilled_in1k", (
        ("bit_r50x1", "distill/R50x1_224", 224, 82.8),
        ("bit_r50x1", "distill/R50x1_160", 160, 80.5),
    )),
    Published(_DISTILLED, "teacher_in21k_ft_in1k", (
        ("bit_r152x2", "distill/R152x2_T_224", 224, 82.918),
        ("bit_r152x2", "distill/R152x2_T_384", 384, 83.858),
    )),
    Published(_TIMM_1K, "bit_in21k_ft_in1k", _fine_tuned("resnetv2_{}_bit.goog_in21k_ft_in1k")),
    Published(_TIMM_21K, "bit_in21k", of_size("resnetv2_{}_bit.goog_in21k", _MODELS)),
)  # fmt: skip

FAMILY = Family(
    VARIANTS, NAMES, CARDS, MODEL_TYPES, PROCESSORS, TIMM_MODELS, layouts=(BIT, BIT_BIG_VISION,
    TIMM_BIT, HF_BIT),
)  # fmt: skip
