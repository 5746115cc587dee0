"""SigLIP and SigLIP 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.config import UNIT_RANGE, Preprocessing
from keras_vit.families import google, keys, parts, rules
from keras_vit.families.bit import FLAX_DENSE
from keras_vit.families.cards import BIG_VISION, HUB, TIMM, Files, Origin, Published, each
from keras_vit.families.family import Family
from keras_vit.families.names import (
    EXACT,
    GAP,
    MAP,
    WORDS,
    Name,
    Names,
    architectures,
    of_timm,
    sized,
)
from keras_vit.families.preprocessing import CENTER, SQUASHED, WHOLE, TimmImages
from keras_vit.families.rules import Rule

IMAGES = dataclasses.replace(SQUASHED, interpolation="bicubic")

# The models of https://arxiv.org/abs/2502.14786 for images of any aspect ratio (NaFlex), whose 16 x
# 16 positions transformers, big_vision and timm resample for each image, bilinearly.
SIGLIP2_NAFLEX: keys.Fields = {
    "max_num_patches": 256,
    "class_token": False,
    "pooling": "map",
    "preprocessing": {"library": "transformers"},
}
_NAFLEX: keys.Fields = {**SIGLIP2_NAFLEX, "image_size": 256}
VARIANTS: dict[str, keys.Fields] = {
    "siglip2_naflex_b16": sized("b", 16, _NAFLEX),
    "siglip2_naflex_so400m16": sized("so400m", 16, _NAFLEX),
}


def _of_timm(pooling: str, fields: keys.Fields) -> Names:
    """timm's names with one pooling. It sets big_vision's tanh GELU in the newer names alone."""
    exact = {**EXACT, **fields}
    name = "vit_{}_patch{}_siglip{}_{}".format
    return {
        **architectures(name("{}", 16, pooling, 256), "base large", exact),
        **architectures(name("{}", 16, pooling, 512), "large", fields, {"image_size": 512}),
        **architectures(name("{}", 16, pooling, 256), "so400m giantopt", fields),
        **architectures(name("{}", 14, pooling, 224), "so400m", exact),
        **architectures(name("{}", 14, pooling, 384), "so400m", exact, {"image_size": 378}),
        **architectures(name("{}", 32, pooling, 256), "base", fields),
    }


def _naflex(size: str) -> Names:
    name, variant = f"naflexvit_{WORDS[size]}_patch16_siglip", f"siglip2_naflex_{size}16"
    settings = {"position_resize": "linear", "map_prefix_tokens": False}
    return {
        **of_timm(name, variant, settings=settings),
        f"google/siglip2-{WORDS[size]}-patch16-naflex": Name(variant),
    }


NAMES: Names = {**_of_timm("", MAP), **_of_timm("_gap", GAP), **_naflex("b"), **_naflex("so400m")}
TIMM_IMAGES: TimmImages = (
    (
        r"vit_so400m_patch14_siglip_gap_(384|448|896)(\..*)?|.*_siglip_gap_378\.webli|"
        r"naflexvit_.*_siglip(\..*)?",
        CENTER,
    ),
    (r".*_siglip_(gap_)?378\.\w*ft_in1k", WHOLE),
)


# transformers. NaFlex has the same names of arrays.
_SIGLIP_KEYS: keys.Rules = {**keys.ENCODER, **keys.harmless("vision_use_head")}
_SIGLIP_DEFAULTS = {**keys.DEFAULTS, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
_TWO_TOWERS = keys.two_towers("projection_dim")


def _siglip(config: Any) -> keys.Fields:
    return {"vision_use_head": config.pooling == "map"}


def _siglip2(config: Any) -> keys.Fields:
    return {**_siglip(config), "num_patches": config.grid[0] * config.grid[1]}


MODEL_TYPES = {
    "siglip_vision_model": keys.ModelType(
        _SIGLIP_KEYS, _SIGLIP_DEFAULTS, layouts=("transformers_siglip",),
        holds=lambda config: not config.takes_patches, headless="SiglipVisionModel",
        head="SiglipForImageClassification", parent="siglip", more=_siglip, square=True,
    ),
    "siglip": keys.ModelType(_TWO_TOWERS, images="siglip_vision_model"),
    "siglip2_vision_model": keys.ModelType(
        {**_SIGLIP_KEYS, **keys.harmless("num_patches")},  # of the table of positions
        _SIGLIP_DEFAULTS, layouts=("transformers_siglip",),
        holds=lambda config: config.takes_patches, headless="Siglip2VisionModel",
        head="Siglip2ForImageClassification", parent="siglip2", more=_siglip2, square=True,
        processor="Siglip2",
    ),
    "siglip2": keys.ModelType(_TWO_TOWERS, images="siglip2_vision_model"),
}  # fmt: skip
PROCESSORS = {
    "Siglip": keys.Processor(3, {"height": 224, "width": 224}, False),
    "Siglip2": keys.Processor(  # the aspect ratio is kept
        2,
        {"height": 256, "width": 256},
        False,
        rules={
            "max_num_patches": keys.Sets("max_num_patches", int),
            "patch_size": keys.Size("patch_size"),
        },
        defaults={"patch_size": 16},
    ),
}


# layouts of arrays
def _joined(path: str, first: int, last: int) -> tuple[Rule, ...]:
    """Shares of the one kernel that PyTorch's own attention keeps for all three."""
    rows = (first, last, 3)
    return (
        Rule(f"{path}/kernel", ("head.attention.in_proj_weight",), rules.LINEAR, rows),
        Rule(f"{path}/bias", ("head.attention.in_proj_bias",), rules.SAME, rows),
    )


def siglip_blocks(last_norm: str = "post_layernorm") -> tuple[Rule, ...]:
    """The encoder's blocks, which CLIP shares, and the text towers of both."""
    block = "encoder.layers.{i}"
    kernels, biases = (
        tuple(f"{block}.self_attn.{part}_proj.{what}" for part in "qkv")
        for what in ("weight", "bias")
    )
    return (
        Rule("block_{i}/attention/qkv/kernel", kernels, rules.LINEAR),
        Rule("block_{i}/attention/qkv/bias", biases),
        *parts.dense("block_{i}/attention/output", f"{block}.self_attn.out_proj"),
        *parts.branches(block, ("layer_norm1", "layer_norm2"), ("mlp.fc1", "mlp.fc2")),
        *parts.norm("encoder_norm", last_norm),
    )


def _tower_settings(find: rules.Find, sizes: Mapping[str, Any]) -> keys.Fields:
    """NaFlex, where patches come as vectors."""
    kernel = find("patch_encoder/projection/kernel")
    if kernel is None or len(kernel.shape) != 2:
        return {}
    patches = 256  # of an image, the default of transformers
    return {"max_num_patches": patches, "preprocessing": Preprocessing(library="transformers")}


HF_SIGLIP = parts.torch_layout(
    "transformers_siglip",
    (
        Rule(  # SigLIP 2 NaFlex, whose other names are the same
            "patch_encoder/projection/kernel",
            ("embeddings.patch_embedding.weight",),
            rules.PATCH_VECTORS,
            when=("takes_patches", True),
        ),
        *parts.patches("embeddings.patch_embedding"),
        parts.POSITIONS,
        *siglip_blocks(),
        Rule("pooling/probe", ("head.probe",)),
        *_joined("pooling/query", 0, 1),
        *_joined("pooling/key_value", 1, 3),
        *parts.dense("pooling/output", "head.attention.out_proj"),
        *parts.norm("pooling/norm", "head.layernorm"),
        *parts.dense("pooling/mlp/hidden", "head.mlp.fc1"),
        *parts.dense("pooling/mlp/output", "head.mlp.fc2"),
        *parts.dense("head", "classifier"),  # of the mean of the tokens, not of the pooling
    ),
    {"gelu": "tanh", "norm_epsilon": 1e-6, "preprocessing": IMAGES},
    writes=lambda config: (
        (config.pooling == "map" or config.takes_patches)
        and not (config.norm_before_blocks or config.block.rope)
    ),
    pooling="gap",
    computes=("max_num_patches",),
    settings=_tower_settings,
    prefixes=("vision_model.", ""),
    class_token_positions="never",
    others=("text_model\\.", "logit_(scale|bias)$", "embeddings\\.position_ids$"),
    unprefixed=("classifier\\.",),
)

# Text towers
TEXT_FIELDS: keys.Fields = {"pooling": "last", "causal": False}
_TEXT_TYPE = keys.TextType(
    {**keys.TEXT, **keys.harmless("projection_size")}, TEXT_FIELDS, _SIGLIP_DEFAULTS
)
TEXT_TYPES = {"siglip": _TEXT_TYPE, "siglip2": _TEXT_TYPE}
_HF_TEXT = parts.text_layout(
    "transformers_siglip", *siglip_blocks("final_layer_norm"), *parts.dense("projection", "head")
)
_BIG_VISION_TEXT = rules.Layout(  # `text_transformer.py`
    "big_vision",
    (
        Rule("token_embedding/embeddings", ("txt/Embed_0/embedding",)),
        Rule("position_embedding/embedding", ("txt/pos_embedding",)),
        Rule("position_embedding/added", ("txt/Encoder_0/pos_embedding",)),  # in old files
        *google.flax_blocks(*google.LINEN_LAYERS, "txt/Encoder_0/encoderblock_{i}"),
        *rules.pairs("encoder_norm", "txt/Encoder_0/encoder_norm", google.NORM),
        *rules.pairs("projection", "txt/head", FLAX_DENSE),
        Rule("logit_scale", ("t",)),
        Rule("logit_bias", ("b",)),
    ),
    "big_vision",
    prefixes=("params/", ""),
    options={**TEXT_FIELDS, "gelu": "tanh", "norm_epsilon": 1e-6},
    others=("img/", "opt/", "bias_init$"),
)

# Published checkpoints
_PAPER = "https://arxiv.org/abs/2303.15343"
_SIGLIP2_PAPER = "https://arxiv.org/abs/2502.14786"
_MAP: keys.Fields = {"pooling": "map", "class_token": False, "position_on_class_token": False}
# The encoder without its pooling, which timm calls "gap".
_GAP: keys.Fields = {**_MAP, "pooling": "gap"}
_TWO = "The file holds a text tower too, which is left out."
_CUT_OFF = (
    "Made for 384 pixels, of which patches of 14 cover 378: the official code leaves the last six "
    "rows and columns out."
)
_OFFICIAL = Origin(BIG_VISION, _PAPER, _MAP, UNIT_RANGE, note=_TWO)
_OFFICIAL2 = _OFFICIAL._replace(paper=_SIGLIP2_PAPER)
_TIMM_SIGLIP = Origin(TIMM, _PAPER, _MAP)
_TIMM_SIGLIP2 = _TIMM_SIGLIP._replace(paper=_SIGLIP2_PAPER)
_TIMM_GAP = Origin(TIMM, _PAPER, _GAP)
_TIMM_GAP2 = _TIMM_GAP._replace(paper=_SIGLIP2_PAPER)
_HUB_SIGLIP = Origin(HUB, _PAPER, {"gelu": "tanh", **_MAP}, IMAGES, note=_TWO)
_HUB_SIGLIP2 = _HUB_SIGLIP._replace(paper=_SIGLIP2_PAPER, preprocessing=SQUASHED)

_MODELS = {
    "vit_b32": "base-patch32", "vit_b16": "base-patch16", "vit_l16": "large-patch16",
    "vit_so400m14": "so400m-patch14", "vit_so400m16": "so400m-patch16",
    "vit_giantopt16": "giant-opt-patch16", "siglip2_naflex_b16": "base-patch16",
    "siglip2_naflex_so400m16": "so400m-patch16",
}  # fmt: skip
_TIMM_MODELS = {
    variant: model.replace("giant-opt", "giantopt").replace("-", "_")
    for variant, model in _MODELS.items()
}


def _timm(ending: str, **sizes: tuple[int, ...]) -> Files:
    return each(f"vit_{{}}_siglip_{ending}", _TIMM_MODELS, sizes)


def _hub(name: str, **sizes: tuple[int, ...]) -> Files:
    return each(f"google/{name}", _MODELS, sizes)


CARDS = (
    Published(_OFFICIAL, "siglip_webli", (
        ("vit_b16", "siglip/webli_en_b16_224_63724782", 224),
        ("vit_b16", "siglip/webli_en_b16_256_60500360", 256),
        ("vit_b16", "siglip/webli_en_b16_384_68578854", 384),
        ("vit_b16", "siglip/webli_en_b16_512_68580893", 512),
        ("vit_l16", "siglip/webli_en_l16_256_60552751", 256),
        ("vit_l16", "siglip/webli_en_l16_384_63634585", 384),
        ("vit_so400m14", "siglip/webli_en_so400m_224_57633886", 224),
    )),
    Published(_OFFICIAL, "siglip_webli_i18n", (
        ("vit_b16", "siglip/webli_i18n_b16_256_66117334", 256),
        ("vit_so400m16", "siglip/webli_i18n_so400m_16_256_78061115", 256),
    )),
    Published(_OFFICIAL._replace(note=f"{_TWO} {_CUT_OFF}"), "siglip_webli",
              (("vit_so400m14", "siglip/webli_en_so400m_384_58765454", 378),)),
    Published(_OFFICIAL2, "siglip2_webli", each("siglip2/siglip2_{}_{}", {
        variant: variant.removeprefix("vit_").replace("giantopt", "g-opt") for variant in _MODELS
    }, {
        "vit_b32": (256,), "vit_b16": (224, 256, 384, 512), "vit_l16": (256, 384, 512),
        "vit_so400m14": (224,), "vit_so400m16": (256, 384, 512), "vit_giantopt16": (256, 384),
    })),
    Published(_OFFICIAL2._replace(note=f"{_TWO} {_CUT_OFF}"), "siglip2_webli",
              (("vit_so400m14", "siglip2/siglip2_so400m14_384", 378),)),
    Published(_TIMM_SIGLIP, "siglip_webli", _timm(
        "{}.webli", vit_b16=(224, 256, 384, 512), vit_l16=(256, 384), vit_so400m14=(224, 378)
    )),
    Published(_TIMM_SIGLIP, "siglip_webli_i18n", _timm(
        "{}.webli_i18n", vit_b16=(256,), vit_so400m16=(256,)
    )),
    Published(_TIMM_SIGLIP._replace(classes=1000), "siglip_webli_ft_in1k",
              (("vit_so400m14", "vit_so400m_patch14_siglip_378.webli_ft_in1k", 378, 89.410),)),
    Published(_TIMM_SIGLIP2, "siglip2_webli", _timm(
        "{}.v2_webli", vit_b32=(256,), vit_b16=(224, 256, 384, 512), vit_l16=(256, 384, 512),
        vit_so400m14=(224, 378), vit_so400m16=(256, 384, 512), vit_giantopt16=(256, 384),
    )),
    Published(_TIMM_GAP, "siglip_gap_webli", _timm(
        "gap_{}.webli", vit_b16=(224, 256, 384), vit_l16=(256, 384), vit_so400m14=(224,)
    )),
    Published(_TIMM_GAP2, "siglip2_gap_webli", _timm(
        "gap_{}.v2_webli", vit_b32=(256,), vit_b16=(224, 256), vit_l16=(256,), vit_so400m14=(224,)
    )),
    Published(_HUB_SIGLIP, "siglip_webli", _hub(
        "siglip-{}-{}", vit_b16=(224, 256, 384, 512), vit_l16=(256, 384), vit_so400m14=(224,)
    )),
    Published(_HUB_SIGLIP, "siglip_webli_i18n",
              _hub("siglip-{}-{}-multilingual", vit_b16=(256,))),
    Published(_HUB_SIGLIP2, "siglip2_webli", _hub(
        "siglip2-{}-{}", vit_b32=(256,), vit_b16=(224, 256, 384, 512), vit_l16=(384, 512),
        vit_so400m14=(224,), vit_so400m16=(512,), vit_giantopt16=(256, 384),
    )),
    Published(Origin(HUB, _SIGLIP2_PAPER, {}, SQUASHED), "webli", _hub(
        "siglip2-{}-naflex", siglip2_naflex_b16=(256,), siglip2_naflex_so400m16=(256,)
    )),
)  # fmt: skip

FAMILY = Family(
    VARIANTS, NAMES, CARDS, MODEL_TYPES, PROCESSORS, timm_images=TIMM_IMAGES, layouts=(HF_SIGLIP,),
    text_layouts=(_HF_TEXT, _BIG_VISION_TEXT), text_types=TEXT_TYPES,
    text_others=((
        "(params/)?txt/BertEncoder_0/",
        "the BERT of LiT, which is not computed here: take SigLIP of the same project, or compute "
        "vectors of classes with LiT's own code",
    ),),
)  # fmt: skip
