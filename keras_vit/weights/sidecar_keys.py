"""The table of sidecar files: which keys change a model's outputs, and what is done with each.

Sources: `VisionTransformer` and `_parse_model_cfg` of timm 1.0.31, the configuration and model
classes of transformers 5.23. A key that is not here is refused by its name. `processors.py` has the
keys of `preprocessor_config.json`, and follows those marked `Images`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_vit.config import RotaryPositions
from keras_vit.families import DINOV3


class Sets(NamedTuple):
    """A key that is followed.

    Args:
        field: Field of the configuration that it sets.
        values: The field's value for each value of the key; `int` and `float` take numbers, and a
            function makes it from a number.
    """

    field: str
    values: Mapping[Any, Any] | type | Callable[[float], Any]


class Only(NamedTuple):
    """A key that is refused unless it has one of a few values.

    Args:
        values: The values.
        feature: What the other values ask for.
        field: Field of the configuration that a caller sets to go on without it, if any.
    """

    values: tuple[Any, ...]
    feature: str
    field: str = ""


class Size(NamedTuple):
    """A key that the shapes of the arrays state too, and that must agree with them.

    Args:
        field: Name of the size, as in `Checkpoint.sizes`.
    """

    field: str


class Images(NamedTuple):
    """A key about the preprocessing or size of images, read together with others like it."""


Rule = Sets | Only | Size | Images | None
Rules = Mapping[str, Rule]
HARMLESS = None  # does not change outputs, or the arrays tell


def _harmless(names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), HARMLESS)


_POOL = Sets("pooling", {"token": "token", "avg": "gap", "map": "map"})

# timm: what `timm.create_model` gets besides the name, by model.
TIMM_ARGS: dict[str, Rules] = {
    "vit": {
        "act_layer": Sets("gelu", {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}),
        "norm_layer": Sets("norm_epsilon", {"layernorm": 1e-6}),
        "num_heads": Sets("num_heads", int),
        "global_pool": _POOL,
        "pool_include_prefix": Sets("map_prefix_tokens", {True: True, False: False}),
        "pos_embed": Sets("position_embedding", {"learn": "learned", "none": "none", "": "none"}),
        "embed_dim": Size("width"),
        "depth": Size("depth"),
        "patch_size": Size("patch_size"),
        "in_chans": Size("channels"),
        "img_size": Images(),
        "qk_norm": Only((False,), "a norm of queries and keys"),
        "final_norm": Sets("norm_after_blocks", {True: True, False: False}),
        "use_naflex": Only((False,), "patches of any grid (NaFlex)"),
        **{
            key: Only((), "other layers than a plain ViT's")
            for key in ("embed_layer", "embed_norm_layer", "block_fn", "mlp_layer", "attn_layer")
        },
        "use_shared_rel_pos_bias": Only((False,), "relative positions that all blocks share"),
        **_harmless(
            "use_abs_pos_emb use_rel_pos_bias use_fc_norm "  # of BEiT
            "num_classes mlp_ratio init_values class_token no_embed_class reg_tokens fc_norm "
            "dynamic_img_size dynamic_img_pad strict_img_size drop_rate pos_drop_rate "
            "patch_drop_rate proj_drop_rate attn_drop_rate drop_path_rate weight_init fix_init "
            "qkv_bias proj_bias scale_attn_norm scale_mlp_norm pre_norm"
        ),
    },
    "bit": {
        "global_pool": Only(("avg",), "another pooling"),
        "output_stride": Only((32,), "dilated convolutions"),
        "act_layer": Only(("relu",), "another activation"),
        "in_chans": Size("channels"),
        **_harmless("num_classes img_size drop_rate drop_path_rate zero_init_last"),
    },
}

TIMM_PRETRAINED: Rules = {
    **dict.fromkeys(("mean", "std", "interpolation", "crop_pct", "crop_mode"), Images()),
    "input_size": Images(),
    "global_pool": _POOL,
    "label_offset": Only((0,), "classes before the first label"),
    **_harmless(
        "url file hf_hub_id hf_hub_filename source architecture tag custom_load test_input_size "
        "min_input_size fixed_input_size test_crop_pct num_classes label_names "
        "label_descriptions labels pool_size test_pool_size first_conv classifier license "
        "description origin_url paper_name paper_ids notes num_features"
    ),
}

# transformers: what every configuration can hold. Generation's settings stand in old files.
COMMON = _harmless(
    "_attn_implementation _attn_implementation_autoset _attn_implementation_internal "
    "_experts_implementation_internal _output_attentions auto_map base_model_name_or_path "
    "library_name license loss_type output_past padding trust_remote_code use_return_dict "
    "xla_device _commit_hash _name_or_path _num_labels add_cross_attention "
    "architectures attn_implementation bad_words_ids begin_suppress_tokens bos_token_id "
    "chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id "
    "diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size "
    "eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id "
    "forced_eos_token_id gradient_checkpointing id2label initializer_factor "
    "initializer_range is_decoder is_encoder_decoder label2id length_penalty max_length "
    "min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_labels "
    "num_return_sequences output_attentions output_hidden_states output_scores pad_token_id "
    "prefix problem_type remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature "
    "tf_legacy_loss tie_encoder_decoder tie_word_embeddings tokenizer_class top_k top_p "
    "torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache"
) | {"pruned_heads": Only(({},), "pruned attention heads")}

TIMM: Rules = {
    **COMMON,
    "global_pool": _POOL,
    **_harmless(
        "architecture num_classes num_features model_args pretrained_cfg label_names "
        "label_descriptions labels tags "
        "keras_vit"  # of the preprocessing, see `processors.py`
    ),
}

_ACTIVATION = Sets(
    "gelu",
    {
        **dict.fromkeys(("gelu", "gelu_python"), "exact"),
        "quick_gelu": "quick",
        **dict.fromkeys(
            ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"),
            "tanh",
        ),
    },
)
_ENCODER: Rules = {
    **COMMON,
    "hidden_act": _ACTIVATION,
    "layer_norm_eps": Sets("norm_epsilon", float),
    "num_attention_heads": Sets("num_heads", int),
    "hidden_size": Size("width"),
    "num_hidden_layers": Size("depth"),
    "num_channels": Size("channels"),
    "patch_size": Size("patch_size"),
    "image_size": Images(),
    "qkv_bias": Only((True,), "queries, keys and values without bias"),
    **_harmless(
        "hidden_dropout_prob attention_probs_dropout_prob attention_dropout dropout drop_path_rate"
    ),
}
_VIT: Rules = {
    **_ENCODER,
    "intermediate_size": Size("mlp_dim"),
    "pooler_act": Only(("tanh",), "another activation of the pooler", "pre_logits"),
    **_harmless("encoder_stride pooler_output_size"),
}
_BACKBONE = _harmless(
    "_out_features _out_indices out_features out_indices stage_names apply_layernorm "
    "reshape_hidden_states use_mask_token"
)
_DINOV2: Rules = {
    **_ENCODER,
    **_BACKBONE,
    **_harmless("use_swiglu_ffn mlp_ratio layerscale_value num_register_tokens"),
}
_DINOV3: Rules = {
    **_ENCODER,
    **_BACKBONE,
    "intermediate_size": Size("mlp_dim"),
    "rope_theta": Sets("rope", lambda base: RotaryPositions(**{**DINOV3["rope"], "base": base})),
    **_harmless(
        "query_bias key_bias value_bias proj_bias mlp_bias layerscale_value use_gated_mlp "
        "num_register_tokens pos_embed_shift pos_embed_jitter pos_embed_rescale"
    ),
}
_BEIT: Rules = {
    **_ENCODER,
    **_BACKBONE,
    "intermediate_size": Size("mlp_dim"),
    "use_shared_relative_position_bias": Only((False,), "relative positions that all blocks share"),
    "add_fpn": Only((False,), "feature maps of several sizes"),
    **_harmless(
        "use_absolute_position_embeddings use_relative_position_bias use_mean_pooling vocab_size "
        "layer_scale_init_value pool_scales use_auxiliary_head auxiliary_loss_weight "
        "auxiliary_channels auxiliary_num_convs auxiliary_concat_input semantic_loss_ignore_index"
    ),
}
_CLIP: Rules = {
    **_ENCODER,
    "intermediate_size": Size("mlp_dim"),
    **_harmless("projection_dim"),
}
# Gated MLPs: a key that says so, and what the activation then is.
GATES: dict[str, tuple[str, Rule]] = {
    "dinov2": ("use_swiglu_ffn", None),
    "dinov2_with_registers": ("use_swiglu_ffn", None),
    "dinov3_vit": ("use_gated_mlp", Only(("silu",), "another activation of the gate")),
}
_TWO_TOWERS: Rules = {
    **COMMON,
    **_harmless(
        "text_config text_config_dict vision_config vision_config_dict projection_dim "
        "logit_scale_init_value"
    ),
}
_SIGLIP: Rules = {
    **_ENCODER,
    "intermediate_size": Size("mlp_dim"),
    **_harmless("vision_use_head"),
}
_SIGLIP2: Rules = {**_SIGLIP, **_harmless("num_patches")}  # of the table of positions
_NO_BIAS = Only((False,), "dense layers with bias")
_AIMV2: Rules = {
    **{key: rule for key, rule in _ENCODER.items() if key != "layer_norm_eps"},
    "hidden_act": Only(("silu",), "another activation of the gate"),
    "rms_norm_eps": Sets("norm_epsilon", float),
    "intermediate_size": Size("mlp_dim"),
    "qkv_bias": _NO_BIAS,
    "mlp_bias": _NO_BIAS,
    "is_native": Only((False,), "positions of sines and cosines for images of any size"),
    "use_head": Only((False,), "a pooling by attention without query and MLP"),
}
_BIT: Rules = {
    **COMMON,
    "padding": Only((None,), "another padding"),
    **_BACKBONE,
    "num_channels": Size("channels"),
    "hidden_act": Only(("relu",), "another activation"),
    "num_groups": Only((32,), "another number of groups"),
    "output_stride": Only((32,), "dilated convolutions"),
    "layer_type": Only(("preactivation",), "units of another kind"),
    "global_padding": Only((None,), "another padding"),
    "embedding_dynamic_padding": Only((False,), "another padding of the root"),
    "image_size": Images(),
    **_harmless("embedding_size hidden_sizes depths drop_path_rate width_factor"),
}

# Relatives whose image tower is CLIP's.
CLIP_TOWERS = ("clip", "metaclip_2", "altclip", "chinese_clip")
# Models of two towers, in whose files `vision_config` is that of the images.
TOWERS = (*CLIP_TOWERS, "siglip2")
# By `model_type`; `vision_config` takes the rules of its own model type.
TRANSFORMERS: dict[str, Rules] = {
    "vit": _VIT,
    "deit": _VIT,
    "ijepa": _VIT,
    "vit_msn": _VIT,
    "vit_mae": {
        **_VIT,
        **_harmless(
            "decoder_num_attention_heads decoder_hidden_size decoder_num_hidden_layers "
            "decoder_intermediate_size mask_ratio norm_pix_loss"
        ),
    },
    "vit-hybrid": {
        **_VIT,
        "patch_size": HARMLESS,  # of the maps of the stem
        **_harmless("backbone backbone_featmap_shape backbone_kwargs use_pretrained_backbone"),
        **_harmless("use_timm_backbone backbone_config"),
    },
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2,
    "siglip_vision_model": _SIGLIP,
    "siglip2_vision_model": _SIGLIP2,
    "siglip2": {**COMMON, **_harmless("text_config vision_config projection_dim")},
    "siglip": {**COMMON, **_harmless("text_config vision_config projection_dim")},
    "dinov3_vit": _DINOV3,
    "aimv2_vision_model": _AIMV2,
    "beit": _BEIT,
    "data2vec-vision": _BEIT,
    **{
        f"{name}{ending}": rules
        for name in CLIP_TOWERS
        for ending, rules in (("", _TWO_TOWERS), ("_vision_model", _CLIP))
    },
    "bit": _BIT,
}
# The model type of a layout, where the file does not name it.
MODEL_TYPES = {
    "transformers_vit": "vit",
    "transformers_deit": "deit",
    "transformers_deit_token": "deit",
    "transformers_dinov2": "dinov2",
    "transformers_registers": "dinov2_with_registers",
    "transformers_siglip": "siglip_vision_model",
    "transformers_clip": "clip_vision_model",
    "transformers_dinov3": "dinov3_vit",
    "transformers_aimv2": "aimv2_vision_model",
    "transformers_beit": "beit",
    "transformers_bit": "bit",
}
# The stem of `vit-hybrid`, in its `backbone_config`.
HYBRID_STEM: Rules = {
    **_BIT,
    "layer_type": Only(("bottleneck",), "units of another kind"),
    "global_padding": Only(("same", "SAME"), "another padding"),
    "embedding_dynamic_padding": Only((True,), "another padding of the root"),
}
# Values that transformers takes where the key is not in the file.
_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 12}
_SMALLER_EPSILON = {**_DEFAULTS, "layer_norm_eps": 1e-6}
TRANSFORMERS_DEFAULTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("vit", "deit", "ijepa", "vit_mae", "vit-hybrid", "beit", "data2vec-vision"), _DEFAULTS
    ),
    **dict.fromkeys(("vit_msn", "dinov2", "dinov2_with_registers"), _SMALLER_EPSILON),
    **{
        f"{name}_vision_model": {**_SMALLER_EPSILON, "hidden_act": "gelu_pytorch_tanh"}
        for name in ("siglip", "siglip2")
    },
    **{
        f"{name}_vision_model": {
            "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 12,
        }
        for name in CLIP_TOWERS
    },
    "dinov3_vit": {
        "hidden_act": "gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 6, "rope_theta": 100.0,
    },
    "aimv2_vision_model": {"rms_norm_eps": 1e-5, "num_attention_heads": 8},
    "bit": {},
}  # fmt: skip
