"""BEiT and its relatives."""

from __future__ import annotations

from typing import Any

from keras_vit.config import POSITION_BIASES, ViTConfig
from keras_vit.families import keys, parts, rules
from keras_vit.families.cards import TIMM, Origin, Published, each, of_size
from keras_vit.families.family import Family
from keras_vit.families.names import WORDS, Name, Names, joined, of_timm, sized
from keras_vit.families.preprocessing import CENTER, IMAGENET, SQUASHED, TimmImages
from keras_vit.families.rules import Rule

# https://arxiv.org/abs/2106.08254 and https://arxiv.org/abs/2208.06366, `beit/` and `beit2/` in
# github.com/microsoft/unilm: the fine-tuned models, which have one architecture.
BEIT: keys.Fields = {
    "position_embedding": "relative_bias",
    "without_bias": ("key",),
    "layer_scale": 1e-5,
    "gelu": "exact",
    "pooling": "gap",
    "norm_after_pooling": True,
}
VARIANTS: dict[str, keys.Fields] = {
    "beit_b16": sized("b", 16, BEIT, {"layer_scale": 0.1}),
    "beit_l16": sized("l", 16, BEIT),
    "beitv2_b16": sized("b", 16, BEIT),
    "beitv2_l16": sized("l", 16, BEIT),
}


def _hub(size: str, side: int, ending: str = "") -> Names:
    name = f"microsoft/beit-{WORDS[size]}-patch16-{side}{ending}"
    return {name: Name(f"beit_{size}16", {"image_size": side})}


NAMES: Names = joined(
    of_timm(f"beit_{WORDS[size]}_patch16_224", f"beit_{size}16")
    | of_timm(f"beitv2_{WORDS[size]}_patch16_224", f"beitv2_{size}16")
    | _hub(size, 224) | _hub(size, 224, "-pt22k-ft22k") | _hub(size, 384)
    for size in ("b", "l")
) | _hub("l", 512)  # fmt: skip
TIMM_IMAGES: TimmImages = (
    (r"beit_.*_(384|512)(\..*)?", CENTER),
    (r"beitv2_.*", IMAGENET),
    (r"beitv2_large_.*(?<!_ft_in22k)", {"crop_ratio": 0.95}),
)


_WITHOUT_TABLE = ("relative_bias", "none")


# transformers
def _positions(config: Any) -> keys.Fields:
    return {
        "use_absolute_position_embeddings": config.position_embedding not in _WITHOUT_TABLE,
        "use_relative_position_bias": config.position_embedding in POSITION_BIASES,
        "use_mean_pooling": config.norm_after_pooling,
        "layer_scale_init_value": config.block.layer_scale or 0.0,
    }


_KEYS: keys.Rules = {
    **keys.ENCODER,
    **keys.BACKBONE,
    "use_shared_relative_position_bias": keys.Only(
        (False,), "relative positions that all blocks share"
    ),
    "add_fpn": keys.Only((False,), "feature maps of several sizes"),
    **keys.harmless(
        "use_absolute_position_embeddings use_relative_position_bias use_mean_pooling vocab_size "
        "layer_scale_init_value pool_scales use_auxiliary_head auxiliary_loss_weight "
        "auxiliary_channels auxiliary_num_convs auxiliary_concat_input semantic_loss_ignore_index"
    ),
}
MODEL_TYPES = {
    "beit": keys.ModelType(
        _KEYS, keys.DEFAULTS, layouts=("transformers_beit",), headless="BeitModel",
        head="BeitForImageClassification", more=_positions,
    ),
    "data2vec-vision": keys.ModelType(_KEYS, keys.DEFAULTS),
}  # fmt: skip
PROCESSORS = {"Beit": keys.Processor(3, 224, True)}


# timm
def _timm_name(config: Any) -> str:
    if config.block.norm_epsilon != 1e-6 or config.block.gelu != "exact":
        raise keys.no_such("norm_epsilon, gelu", (config.block.norm_epsilon, config.block.gelu))
    return "beit_base_patch16_224"


def _timm_arguments(config: Any) -> keys.Fields:
    return {
        **keys.timm_sizes(config),
        "qkv_bias": "query" not in config.block.without_bias,
        "scale_mlp": "mlp" in config.block.inner_norms,
        "use_abs_pos_emb": config.position_embedding != "relative_bias",
        "use_fc_norm": config.norm_after_pooling,
    }


TIMM_MODELS = (
    keys.TimmModel(
        lambda config: isinstance(config, ViTConfig) and keys.has_arguments(config)
        and keys.is_beit(config),
        _timm_name, keys.TIMM_SIZES, _timm_arguments,
    ),
)  # fmt: skip

# layouts of arrays
_BEIT_ATTENTION = "encoder.layer.{i}.attention.attention"
HF_BEIT = parts.torch_layout(
    "transformers_beit",
    (
        Rule(
            "block_{i}/attention/position_bias",
            (f"{_BEIT_ATTENTION}.relative_position_bias.relative_position_bias_table",),
        ),
        Rule("block_{i}/attention_scale/gamma", ("encoder.layer.{i}.lambda_1",)),
        Rule("block_{i}/mlp_scale/gamma", ("encoder.layer.{i}.lambda_2",)),
        *parts.norm("encoder_norm", "pooler.layernorm", when=("norm_after_pooling", True)),
        *parts.encoder(("head", "classifier")),
    ),
    {**parts.HF_OPTIONS, "preprocessing": SQUASHED},
    writes=lambda config: config.block.without_bias == ("key",) and not config.block.rope,
    lacks=(rules.biases(("key",)),),
    # Models without a head can be without the pooler, where alone there is a norm.
    settings=lambda find, sizes: (
        {} if find("encoder_norm/gamma") or find("head/kernel") else {"norm_after_blocks": False}
    ),
    pooling=lambda config: "gap" if config.norm_after_pooling else "token",
    no_positions="none",
    square_grids=True,
    in_memory=(
        (
            "layers.{i}.relative_position_bias",
            "encoder.layer.{i}.attention.attention.relative_position_bias",
        ),
        *parts.IN_MEMORY,
    ),
    prefixes=("beit.", "", "data2vec_vision."),
    others=("embeddings\\.mask_token$", "lm_head\\.", ".*\\.relative_position_index$"),
    unprefixed=("classifier\\.",),
)
FEATURES = (
    (
        r"^(\w+\.)?(rel_pos_bias|encoder\.relative_position_bias|shared_(rel_pos|position_bias))\b",
        "relative positions that all blocks share (BEiT for masked images, timm's srelpos)",
    ),
    (r"(attn|attention)\.[qv]_bias$", "separate biases of queries and values (BEiT, EVA)"),
    (
        r"(decode|auxiliary|segmentation)_head\.|(^|\.)fpn\d",
        "a head that segments images (UPerNet, BEiT for segmentation)",
    ),
    (r"\.(gamma|lambda)_[12]$", "layer scales of BEiT and CaiT"),
)

# Published checkpoints, by timm
_BEIT = Origin(TIMM, "https://arxiv.org/abs/2106.08254", classes=1000)
_BEITV2 = _BEIT._replace(paper="https://arxiv.org/abs/2208.06366")
_MODELS = {"beit_b16": "base", "beit_l16": "large"}
_MODELS2 = {"beitv2_b16": "base", "beitv2_l16": "large"}
CARDS = (
    Published(_BEIT._replace(classes=21841), "in22k_ft_in22k",
              of_size("beit_{}_patch16_224.in22k_ft_in22k", _MODELS)),
    Published(_BEIT, "in22k_ft_in22k_in1k", each(
        "beit_{}_patch16_{}.in22k_ft_in22k_in1k", _MODELS,
        {"beit_b16": (224, 384), "beit_l16": (224, 384, 512)},
    )),
    *(
        Published(_BEITV2._replace(classes=classes), tag,
                  of_size(f"beitv2_{{}}_patch16_224.{tag}", _MODELS2))
        for tag, classes in (
            ("in1k_ft_in22k", 21841), ("in1k_ft_in22k_in1k", 1000), ("in1k_ft_in1k", 1000),
        )
    ),
)  # fmt: skip

FAMILY = Family(
    VARIANTS, NAMES, CARDS, MODEL_TYPES, PROCESSORS, TIMM_MODELS, timm_images=TIMM_IMAGES,
    layouts=(HF_BEIT,), features=FEATURES,
)  # fmt: skip
