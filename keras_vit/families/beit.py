"""BEiT and its relatives."""

from __future__ import annotations

from typing import Any

from keras_vit.families import keys
from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family
from keras_vit.families.keys import Fields


# transformers
def _positions(config: Any) -> Fields:
    return {
        "use_absolute_position_embeddings": config.position_embedding in ("learned", "sincos_2d"),
        "use_relative_position_bias": config.position_embedding == "relative_bias",
        "use_mean_pooling": config.norm_after_pooling,
        "layer_scale_init_value": config.block.layer_scale or 0,
    }


_KEYS: keys.Rules = {
    **keys.ENCODER,
    **keys.BACKBONE,
    "intermediate_size": keys.Size("mlp_dim"),
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


def _timm_arguments(config: Any) -> Fields:
    return {**keys.timm_sizes(config), "qkv_bias": "query" not in config.block.without_bias}


TIMM_MODELS = (
    keys.TimmModel(
        lambda config: getattr(config, "position_embedding", "") == "relative_bias"
        and keys.has_arguments(config),
        _timm_name, keys.TIMM_SIZES, _timm_arguments,
    ),
)  # fmt: skip

# Published checkpoints, by timm
_BEIT = Origin(TIMM, "https://arxiv.org/abs/2106.08254", classes=1000)
_BEITV2 = _BEIT._replace(paper="https://arxiv.org/abs/2208.06366")
_BOTH = (("b", "base"), ("l", "large"))
CARDS = (
    Published(_BEIT._replace(classes=21841), "in22k_ft_in22k", tuple(
        (f"beit_{size}16", f"beit_{name}_patch16_224.in22k_ft_in22k") for size, name in _BOTH
    )),
    Published(_BEIT, "in22k_ft_in22k_in1k", (
        ("beit_b16", "beit_base_patch16_224.in22k_ft_in22k_in1k"),
        ("beit_b16", "beit_base_patch16_384.in22k_ft_in22k_in1k", 384),
        ("beit_l16", "beit_large_patch16_224.in22k_ft_in22k_in1k"),
        ("beit_l16", "beit_large_patch16_384.in22k_ft_in22k_in1k", 384),
        ("beit_l16", "beit_large_patch16_512.in22k_ft_in22k_in1k", 512),
    )),
    *(
        Published(
            _BEITV2._replace(classes=classes),
            tag,
            tuple((f"beitv2_{size}16", f"beitv2_{name}_patch16_224.{tag}") for size, name in _BOTH),
        )
        for tag, classes in (
            ("in1k_ft_in22k", 21841),
            ("in1k_ft_in22k_in1k", 1000),
            ("in1k_ft_in1k", 1000),
        )
    ),
)  # fmt: skip

FAMILY = Family(CARDS, MODEL_TYPES, PROCESSORS, TIMM_MODELS)
