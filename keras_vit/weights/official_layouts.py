"""Layouts of the official projects: vision_transformer, big_vision, big_transfer."""

from __future__ import annotations

from keras_vit.config import UNIT_RANGE
from keras_vit.weights.layout import (
    CHANNELS,
    HEADS_BIAS,
    HEADS_KERNEL,
    HEADS_OUTPUT,
    POINTWISE,
    SAME,
    Layout,
    Rule,
    Transform,
    pairs,
)

_NORM = (("gamma", "/scale", SAME), ("beta", "/bias", SAME))
_GROUP_NORM = (("gamma", "/scale", CHANNELS), ("beta", "/bias", CHANNELS))
_DENSE = (("kernel", "/kernel", SAME), ("bias", "/bias", SAME))
_OUTPUT = (("kernel", "/kernel", HEADS_OUTPUT), ("bias", "/bias", SAME))


def _attention(ours: str, theirs: str, parts: tuple[str, ...]) -> tuple[Rule, ...]:
    """One variable from queries, keys and values, or some of them."""
    return (
        Rule(f"{ours}/kernel", tuple(f"{theirs}/{part}/kernel" for part in parts), HEADS_KERNEL),
        Rule(f"{ours}/bias", tuple(f"{theirs}/{part}/bias" for part in parts), HEADS_BIAS),
    )


def _mlp(ours: str, theirs: str) -> tuple[Rule, ...]:
    return (
        *pairs(f"{ours}/hidden", f"{theirs}/Dense_0", _DENSE),
        *pairs(f"{ours}/output", f"{theirs}/Dense_1", _DENSE),
    )


def _blocks(attention: str, norm: str, mlp: str) -> tuple[Rule, ...]:
    """The encoder blocks; generations of Flax number their layers differently."""
    block = "Transformer/encoderblock_{i}"
    return (
        *pairs("block_{i}/attention_norm", f"{block}/LayerNorm_0", _NORM),
        *_attention("block_{i}/attention/qkv", f"{block}/{attention}", ("query", "key", "value")),
        *pairs("block_{i}/attention/output", f"{block}/{attention}/out", _OUTPUT),
        *pairs("block_{i}/mlp_norm", f"{block}/{norm}", _NORM),
        *_mlp("block_{i}/mlp", f"{block}/{mlp}"),
    )


def _conv(ours: str, theirs: str) -> Rule:
    return Rule(f"{ours}/kernel", (f"{theirs}/kernel",))


# The ResNet stem of a hybrid.
_STEM = (
    _conv("stem_root/conv", "conv_root"),
    *pairs("stem_root/norm", "gn_root", _NORM),
    *(
        rule
        for n in (1, 2, 3)
        for rule in (
            _conv(f"stem_stage_{{i}}/unit_{{j}}/conv_{n}", f"block{{i}}/unit{{j}}/conv{n}"),
            *pairs(
                f"stem_stage_{{i}}/unit_{{j}}/norm_{n}", f"block{{i}}/unit{{j}}/gn{n}", _GROUP_NORM
            ),
        )
    ),
    _conv("stem_stage_{i}/unit_{j}/shortcut", "block{i}/unit{j}/conv_proj"),
    *pairs("stem_stage_{i}/unit_{j}/shortcut_norm", "block{i}/unit{j}/gn_proj", _GROUP_NORM),
)

_MAP = "MAPHead_0"
_TOKEN_AND_HEAD = (
    Rule("class_token/token", ("cls",)),
    *pairs("encoder_norm", "Transformer/encoder_norm", _NORM),
    *pairs("pre_logits", "pre_logits", _DENSE),
    *pairs("head", "head", _DENSE),
)
_MAP_HEAD = (
    Rule("pooling/probe", (f"{_MAP}/probe",)),
    *_attention("pooling/query", f"{_MAP}/MultiHeadDotProductAttention_0", ("query",)),
    *_attention("pooling/key_value", f"{_MAP}/MultiHeadDotProductAttention_0", ("key", "value")),
    *pairs("pooling/output", f"{_MAP}/MultiHeadDotProductAttention_0/out", _OUTPUT),
    *pairs("pooling/norm", f"{_MAP}/LayerNorm_0", _NORM),
    *_mlp("pooling/mlp", f"{_MAP}/MlpBlock_0"),
)


def _vit(positions: str, blocks: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return (
        *_STEM,
        *pairs("patch_encoder/projection", "embedding", _DENSE),
        Rule("position_embedding/embedding", (positions,)),
        *blocks,
        *_TOKEN_AND_HEAD,
    )


_OPTIONS = {
    "gelu": "tanh",
    "norm_epsilon": 1e-6,
    "preprocessing": UNIT_RANGE,
}
_LINEN = _blocks("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_POSITIONS = "Transformer/posembed_input/pos_embedding"

# As published in gs://vit_models, whose layers are numbered across all classes of layers.
OFFICIAL = Layout(
    "official",
    _vit(_POSITIONS, _blocks("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")),
    prefixes=("", "opt/target/", "params/"),
    options=_OPTIONS,
    others=("opt/",),
)
# As the official code of today names them, where each class of layers is numbered by itself.
LINEN = Layout(
    "linen",
    _vit(_POSITIONS, _LINEN),
    prefixes=("", "opt/target/", "params/"),
    options=_OPTIONS,
    others=("opt/",),
)
# gs://big_vision: positions are added before the class token; two towers in one file.
BIG_VISION = Layout(
    "big_vision",
    (*_vit("pos_embedding", _LINEN), *_MAP_HEAD),
    prefixes=("params/", "params/img/", "opt/target/", "opt/target/img/", "img/", ""),
    options=_OPTIONS,
    class_token_positions="never",
    resize_flexible="linear",
    others=("opt/", "params/(txt/|t$|b$|bias_init$)", "(txt/|t$|b$|bias_init$)"),
)


def _bit(
    root: str,
    unit: str,
    parts: tuple[tuple[str, str], ...],
    shortcut: str,
    norms: tuple[tuple[str, str, Transform], ...],
    rest: tuple[Rule, ...],
) -> tuple[Rule, ...]:
    rules = [_conv("root/conv", root)]
    for number, (conv, norm) in enumerate(parts, start=1):
        rules.append(_conv(f"stage_{{i}}/unit_{{j}}/conv_{number}", f"{unit}/{conv}"))
        rules.extend(pairs(f"stage_{{i}}/unit_{{j}}/norm_{number}", f"{unit}/{norm}", norms))
    rules.append(_conv("stage_{i}/unit_{j}/shortcut", f"{unit}/{shortcut}"))
    return (*rules, *rest)


_TF_NORM = (("gamma", "/gamma", SAME), ("beta", "/beta", SAME))
# gs://bit_models, names of its TensorFlow 1 code.
BIT = Layout(
    "bit",
    _bit(
        "resnet/root_block/standardized_conv2d",
        "resnet/block{i}/unit{j:02}",
        tuple((f"{part}/standardized_conv2d", f"{part}/group_norm") for part in "abc"),
        "a/proj/standardized_conv2d",
        _TF_NORM,
        (
            *pairs("norm", "resnet/group_norm", _TF_NORM),
            Rule("head/kernel", ("resnet/head/conv2d/kernel",), POINTWISE),
            Rule("head/bias", ("resnet/head/conv2d/bias",)),
        ),
    ),
    options={"preprocessing": UNIT_RANGE},
)
# The same network in big_vision (its `bit_paper`).
BIT_BIG_VISION = Layout(
    "bit_big_vision",
    _bit(
        "root_block/conv_root",
        "block{i}/unit{j:02}",
        tuple((f"conv{n}", f"gn{n}") for n in (1, 2, 3)),
        "conv_proj",
        _GROUP_NORM,
        (*pairs("norm", "norm-pre-head", _GROUP_NORM), *pairs("head", "head", _DENSE)),
    ),
    prefixes=("params/", "opt/target/", ""),
    options={"preprocessing": UNIT_RANGE},
    others=("opt/",),
)

LAYOUTS = (OFFICIAL, LINEN, BIG_VISION, BIT, BIT_BIG_VISION)
