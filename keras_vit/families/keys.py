"""Keys of sidecar files: what is done with each, and the models of other projects that have them.

A key that no table has is refused by its name. Sources: `VisionTransformer` and `_parse_model_cfg`
of timm 1.0.31, the configuration and model classes of transformers 5.23.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_vit.config import POSITION_BIASES, UNIT_RANGE, Preprocessing

Fields = dict[str, Any]


class Sets(NamedTuple):
    """A key that is followed.

    Args:
        field: Field of the configuration that it sets.
        values: The field's value for each value of the key; `int` and `float` take numbers, and a
            function makes it from a number.
        also: Further fields that it sets, whatever its value.
    """

    field: str
    values: Mapping[Any, Any] | type | Callable[[float], Any]
    also: Mapping[str, Any] = MappingProxyType({})


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
    """A key with the size of images."""


class Part(NamedTuple):
    """A key with an object of further keys.

    Args:
        rules: What is done with each of them.
    """

    rules: Rules


Rule = Sets | Only | Size | Images | Part | None
Rules = Mapping[str, Rule]
HARMLESS = None  # does not change outputs, or the arrays tell


def harmless(names: str) -> dict[str, Rule]:
    """Rules of keys that do not change outputs, or that the arrays tell."""
    return every(names, HARMLESS)


def every(names: str, rule: Rule) -> dict[str, Rule]:
    """The same rule for several keys."""
    return dict.fromkeys(names.split(), rule)


def without(name: str, rules: Rules) -> Rules:
    """Rules without that of a key."""
    return {key: rule for key, rule in rules.items() if key != name}


@dataclasses.dataclass(frozen=True)
class ModelType:
    """A `model_type` of transformers.

    Args:
        rules: What is done with each key of its configuration.
        defaults: Values that transformers takes where a key is missing.
        gate: A key that says that MLPs are gated, and the rule of `hidden_act` then.
        images: Model type of the images' part in `vision_config`, in a model of two towers.
        layouts: Layouts of its files. The first type of a layout is that of a file without one.
        holds: Whether a model of these layouts is written as this type.
        headless: Class without a head.
        head: Class with a head, if there is one that is known here.
        parent: Model type of that class, where it keeps these keys in `vision_config`.
        labels: Whether its outputs are classes with names.
        more: Keys that the arrays tell here, from the configuration.
        square: Whether images and patches must be squares.
        processor: Name in `Family.processors`; `None` goes by how images are cropped.
    """

    rules: Rules
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gate: tuple[str, Rule] | None = None
    images: str | None = None
    layouts: tuple[str, ...] = ()
    holds: Callable[[Any], bool] = lambda config: True
    headless: str = ""
    head: str | None = None
    parent: str | None = None
    labels: bool = True
    more: Callable[[Any], Fields] = lambda config: {}
    square: bool = False
    processor: str | None = None


@dataclasses.dataclass(frozen=True)
class TextType:
    """A `model_type` of transformers that has a text tower.

    Args:
        rules: What is done with each key of its `text_config`.
        fields: Fields of `TextConfig` that all its models have.
        defaults: Values that transformers takes where a key is missing.
        old_end: An `eos_token_id` that means the largest id of each text.
        max_scale: Key of the largest scale of the logits, and its default, in models that limit it.
        temperature: Key of the inverse of the scale, and its default, where arrays may lack it.
        projects: Whether the towers have projections to a space of both.
    """

    rules: Rules
    fields: Fields
    defaults: Mapping[str, Any]
    old_end: int | None = None
    max_scale: tuple[str, float] | None = None
    temperature: tuple[str, float] | None = None
    projects: bool = True


@dataclasses.dataclass(frozen=True)
class Processor:
    """An image processor of transformers: its defaults, for keys that a file lacks.

    Args:
        resample: Number of Pillow's filter.
        size: Sides of the resized image.
        square: Whether one number means both sides; otherwise the shorter one.
        crop_size: Side of the crop, if it crops.
        statistics: Mean and standard deviation.
        rules: Further keys, and what is done with each.
        defaults: Their values where a file lacks them.
        writes: The crop of preprocessing that is written for it: `"whole"`, or a crop mode.
    """

    resample: int
    size: Any
    square: bool
    crop_size: int | None = None
    statistics: Preprocessing = UNIT_RANGE
    rules: Rules = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    writes: str | None = None


@dataclasses.dataclass(frozen=True)
class TimmModel:
    """Models that a function of timm makes by its arguments.

    Args:
        holds: Whether it makes the model of a configuration.
        name: A name of timm that the function has. Raises ValueError if it makes no such model.
        written: Names of the arguments that are written by their rules.
        more: Arguments that the arrays tell, from the configuration.
        rules: What is done with each argument of a file that is read.
        layouts: Layouts of such files, if they have rules of their own.
    """

    holds: Callable[[Any], bool]
    name: Callable[[Any], str]
    written: str = "img_size in_chans"
    more: Callable[[Any], Fields] = lambda config: {}
    rules: Rules = dataclasses.field(default_factory=dict)
    layouts: tuple[str, ...] = ()


class Doubt(NamedTuple):
    """A setting that neither `config.json` nor a name of timm tells.

    Args:
        names: Pattern of the names.
        notes: What timm's notes on such a checkpoint say, if the file has any.
        field: Field of the configuration. If the caller sets it, the key is ignored.
        text: What is in doubt, with `{}` for the name.
    """

    names: str
    notes: str
    field: str
    text: str


_POOL = Sets("pooling", {"token": "token", "avg": "gap", "map": "map", "": None})
_LAYER, _EPSILON = {"layernorm": "layer", "layernormfp32": "layer"}, {"norm_epsilon": 1e-6}
_ACTS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick", "relu": "relu"}
_PRODUCTS, _OUTPUTS = {"query", "key", "value"}, {"projection", "mlp"}

# timm: what `timm.create_model` gets besides the name.
TIMM_ARGS: Rules = {
    "act_layer": Sets("gelu", _ACTS),
    "norm_layer": Sets("norm", {**_LAYER, "rmsnorm": "rms", "rmsnormfp32": "rms"}, _EPSILON),
    "num_heads": Sets("num_heads", int),
    "global_pool": _POOL,
    "pool_include_prefix": Sets("map_prefix_tokens", {True: True, False: False}),
    "pos_embed": Sets("position_embedding", {"learn": "learned", "none": "none", "": "none"}),
    "embed_dim": Size("width"),
    "depth": Size("depth"),
    "patch_size": Size("patch_size"),
    "in_chans": Size("channels"),
    "img_size": Images(),
    "final_norm": Sets("norm_after_blocks", {True: True, False: False}),
    "use_naflex": Only((False,), "patches of any grid (NaFlex)"),
    **every(
        "embed_layer embed_norm_layer block_fn mlp_layer",
        Only((), "other layers than a plain ViT's"),
    ),
    "attn_layer": Only(("", "attn"), "another attention"),
    # of BEiT, EVA and DINOv3
    "use_shared_rel_pos_bias": Only((False,), "relative positions that all blocks share"),
    "use_post_transformer_norm": Sets("norm_after_blocks", {True: True, False: False}),
    "use_post_norm": Only((False,), "norms after attention and MLP"),
    "attn_only_layer_scale": Only((False,), "a layer scale of the attention alone"),
    "num_kv_heads": Only((), "keys and values that heads share (grouped-query attention)"),
    "attn_pool_num_heads": Sets("map_heads", int),
    **every(
        "use_rot_pos_emb rope_type rope_grid_offset rope_grid_indexing rope_temperature "
        "rope_rotate_half rope_mrope_section ref_feat_shape",
        Only((), "other rotary positions than those of the name"),
    ),
    **harmless(
        "use_abs_pos_emb use_rel_pos_bias use_fc_norm use_pre_transformer_norm num_reg_tokens "
        "qkv_fused swiglu_mlp swiglu_align_to scale_mlp scale_attn_inner attn_type "
        "attn_pool_mlp_ratio head_init_scale rope_shift_coords rope_jitter_coords "
        "rope_rescale_coords "
        # of the plain ViT
        "qk_norm num_classes mlp_ratio init_values class_token no_embed_class reg_tokens fc_norm "
        "dynamic_img_size dynamic_img_pad strict_img_size drop_rate pos_drop_rate "
        "patch_drop_rate proj_drop_rate attn_drop_rate drop_path_rate weight_init fix_init "
        "qkv_bias proj_bias scale_attn_norm scale_mlp_norm pre_norm"
    ),
}
# Arguments of a plain ViT that are written by these rules.
TIMM_SIZES = "img_size in_chans patch_size embed_dim depth num_heads global_pool"
TIMM_WRITTEN = f"{TIMM_SIZES} act_layer final_norm"


def is_beit(config: Any) -> bool:
    """Whether timm has a ViT in its class of BEiT."""
    return config.position_embedding in POSITION_BIASES and config.stem is None


def has_arguments(config: Any) -> bool:
    """Whether timm makes a model by its arguments, not by its name alone."""
    block, without = config.block, {*config.block.without_bias}
    beit = config.position_embedding in POSITION_BIASES
    known = ({"key"}, _PRODUCTS) if beit else (set(), _PRODUCTS, _OUTPUTS, _PRODUCTS | _OUTPUTS)
    by_name = block.rope or config.takes_patches or block.swiglu or config.norm_patches
    patch = ("patch" in without) == config.norm_before_blocks
    return patch and not by_name and without - {"patch"} in known


def timm_sizes(config: Any) -> Fields:
    """Arguments of timm about sizes that no rule has, since the arrays tell them."""
    tokens = {"global_pool": ""} if config.pooling is None else {}
    return {"mlp_ratio": _ratio(config), "init_values": config.block.layer_scale, **tokens}


def timm_tokens(config: Any) -> Fields:
    """Arguments of timm's plain ViT that no rule has, since the arrays tell them."""
    block = config.block
    prefix = config.num_prefix_tokens and getattr(config, f"{config.pooling}_prefix_tokens", False)
    seldom = {
        "qkv_bias": ("query" in block.without_bias, False),
        "proj_bias": ("mlp" in block.without_bias, False),
        "qk_norm": (block.qk_norm, True),
        "scale_attn_norm": ("attention" in block.inner_norms, True),
        "scale_mlp_norm": ("mlp" in block.inner_norms, True),
        "norm_layer": (block.norm == "rms", "rmsnorm"),
        "pool_include_prefix": (prefix, True),
    }
    arguments = {
        **timm_sizes(config),
        **{key: value for key, (is_so, value) in seldom.items() if is_so},
        "class_token": config.class_token,
        "reg_tokens": config.num_registers,
        "no_embed_class": not (config.num_prefix_tokens and config.position_on_class_token),
        "pos_embed": "none" if config.position_embedding == "none" else "learn",
        "pre_norm": config.norm_before_blocks,
        "fc_norm": config.norm_after_pooling,
    }
    if config.distillation_token and config.stem is None:  # DeiT's function sets them
        del arguments["class_token"], arguments["fc_norm"]
    return arguments


def _ratio(config: Any) -> float:
    """The `mlp_ratio` whose product with the width, rounded down, is the hidden dimension."""
    ratio = config.block.mlp_dim / config.width
    while int(config.width * ratio) < config.block.mlp_dim:
        ratio = math.nextafter(ratio, math.inf)
    return int(ratio) if ratio == int(ratio) else ratio


def no_such(field: str, value: Any) -> ValueError:
    """An error for a field that a `config.json` of timm cannot say."""
    return ValueError(
        f'config.json of timm cannot say {field}={value!r}. Save with layout="transformers", or '
        "the model with `model.save`."
    )


TIMM_PRETRAINED: Rules = {
    "input_size": Images(),
    "global_pool": _POOL,
    "label_offset": Only((0,), "classes before the first label"),
    **harmless(
        "url file hf_hub_id hf_hub_filename source architecture tag custom_load test_input_size "
        "min_input_size fixed_input_size test_crop_pct num_classes label_names "
        "label_descriptions labels pool_size test_pool_size first_conv classifier license "
        "description origin_url paper_name paper_ids notes num_features "
        "mean std interpolation crop_pct crop_mode"  # see `timm_preprocessing`
    ),
}

# transformers: what every configuration can hold. Generation's settings stand in old files.
COMMON: Rules = harmless(
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


def two_towers(names: str) -> Rules:
    """Rules of a model of images and texts, which has each of them in a part of its own."""
    return {**COMMON, **harmless(f"text_config vision_config {names}")}


TIMM: Rules = {
    **COMMON,
    "global_pool": _POOL,
    **harmless(
        "architecture num_classes num_features model_args pretrained_cfg label_names "
        "label_descriptions labels tags "
        "keras_vit"  # of the preprocessing, see `processors.py`
    ),
}

ACTIVATION = Sets(
    "gelu",
    {
        **dict.fromkeys(("gelu", "gelu_python"), "exact"),
        "quick_gelu": "quick",
        "relu": "relu",
        **dict.fromkeys(
            ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"),
            "tanh",
        ),
    },
)
# Of a tower of images or of texts.
_TOWER: Rules = {
    **COMMON,
    "hidden_act": ACTIVATION,
    "layer_norm_eps": Sets("norm_epsilon", float),
    "num_attention_heads": Sets("num_heads", int),
    "hidden_size": Size("width"),
    "num_hidden_layers": Size("depth"),
    "intermediate_size": Size("mlp_dim"),
    "qkv_bias": Only((True,), "queries, keys and values without bias"),
    **harmless("attention_dropout dropout"),
}
ENCODER: Rules = {
    **_TOWER,
    "num_channels": Size("channels"),
    "patch_size": Size("patch_size"),
    "image_size": Images(),
    **harmless("hidden_dropout_prob attention_probs_dropout_prob drop_path_rate"),
}
TEXT: Rules = {  # `text_config` in models of images and texts
    **_TOWER,
    "max_position_embeddings": Size("context_length"),
    "vocab_size": Size("vocabulary_size"),
    **harmless("projection_dim"),
}
# Of models that have all of these biases or none.
PRODUCTS = {"qkv_bias": Sets("without_bias", {True: (), False: ("query", "key", "value")})}
VIT: Rules = {
    **ENCODER,
    **PRODUCTS,
    "pooler_act": Only(("tanh",), "another activation of the pooler", "pre_logits"),
    **harmless("encoder_stride pooler_output_size"),
}
BACKBONE = harmless(
    "_out_features _out_indices out_features out_indices stage_names apply_layernorm "
    "reshape_hidden_states use_mask_token"
)
# Values that transformers takes where the key is not in the file.
DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 12} | {
    "qkv_bias": True
}
