"""What is timm's alone: its plain ViT by arguments, and its own checkpoints."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit.config import POSITION_BIASES, Preprocessing, ViTConfig
from keras_vit.families import keys, parts, rules
from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family
from keras_vit.families.names import (
    EXACT,
    GAP,
    MAP,
    NO_KEY_BIAS,
    NO_QKV_BIAS,
    NORM_LAST,
    PATCHES,
    SCALED,
    Names,
    architectures,
    of_timm,
    sized,
)
from keras_vit.families.preprocessing import CENTER, IMAGENET, OPENAI_PIXELS, WHOLE, TimmImages
from keras_vit.families.rules import Rule

_SBB: keys.Fields = {**SCALED, **GAP, **NORM_LAST}
_ROPE: keys.Fields = {**SCALED, "rope": {"base": 100.0, "order": "wh"}}
_NO_POSITIONS: keys.Fields = {"position_embedding": "none"}
_SBB_ROPE = {**_SBB, **NO_KEY_BIAS, **_NO_POSITIONS, "rope": {"reference_grid": (16, 16)}}
_ONE: keys.Fields = {"num_registers": 1}
_FOUR: keys.Fields = {"num_registers": 4}
_PLUS: keys.Fields = {**SCALED, "width": 896, "num_heads": 14, "mlp_dim": 3584}
_TEST: keys.Fields = {"image_size": 160}


def _naflex(name: str, word: str, *families: keys.Fields) -> Names:
    """Models of NaFlex, which resample positions bicubically, loaded for images of one size."""
    stem, settings = f"naflexvit_{{}}_patch16_{name}", {"position_resize": "bicubic"}
    return architectures(stem, word, *families, {"image_size": 256}, settings=settings)


NAMES: Names = {
    **of_timm("test_vit", None, sized((64, 6, 2, 192), 16, EXACT, _TEST)),
    **of_timm("test_vit2", None, sized((64, 8, 2, 192), 16, SCALED, GAP, _ONE, _TEST)),
    **of_timm(
        "test_vit3", None,
        sized((96, 9, 3, 192), 16, SCALED, MAP, {"map_prefix_tokens": True}, _ONE, _TEST),
    ),
    **architectures("vit_{}_patch16_gap_224", "base", EXACT, GAP, {"num_heads": 16}),
    **architectures("vit_{}_patch16_reg1_gap_256", "wee little medium betwixt", _SBB, _ONE),
    **architectures("vit_{}_patch16_reg4_gap_256", "little medium mediumd betwixt", _SBB, _FOUR),
    **architectures("vit_{}_patch16_reg4_gap_256", "base", EXACT, GAP, NORM_LAST, _FOUR),
    **architectures("vit_{}_patch16_reg1_gap_256", "so150m2", _SBB, NO_QKV_BIAS, _ONE),
    **architectures("vit_{}_patch16_reg4_gap_256", "so150m", EXACT, GAP, _FOUR),
    **architectures("vit_{}_patch16_reg4_map_256", "so150m", EXACT, MAP, _FOUR),
    **architectures("vit_{}_patch16_rope_reg1_gap_256", "medium base", _SBB_ROPE, _ONE),
    **architectures("vit_{}_patch16_rope_reg1_gap_256", "mediumd", _SBB_ROPE, NO_QKV_BIAS, _ONE),
    **architectures("vit_{}_patch16_rope_reg4_gap_256", "betwixt", _SBB_ROPE, _FOUR),
    **architectures("vit_{}_patch16_rope_224", "small base large", _ROPE, _NO_POSITIONS),
    **architectures("vit_{}_patch16_rope_ape_224", "small base large", _ROPE, PATCHES),
    **architectures("vit_{}_patch16_36x1_224", "small", SCALED, {"depth": 36}),
    **architectures("vit_{}_patch16_plus_240", "base", _PLUS),
    **architectures("vit_{}_patch32_plus_256", "base", _PLUS),
    **_naflex("gap", "base", _SBB, _FOUR),
    **_naflex("map", "base", SCALED, MAP, _ONE),
    **_naflex("reg1_gap", "so150m2", _SBB, NO_QKV_BIAS, _ONE),
    **_naflex("reg1_map", "so150m2", SCALED, MAP, NO_QKV_BIAS, _ONE),
}  # fmt: skip
TIMM_IMAGES: TimmImages = (
    (r"test_vit.*|vit_base_patch(16|32)_plus_2\d\d(\..*)?", {"crop_ratio": 0.95}),
    (r"vit_(?!base_patch16_reg)\w+_reg\d_gap_256(\..*)?", {"crop_ratio": 0.95}),
    (r"vit_.*_reg\d_gap_384(\..*)?|naflexvit_.*_(gap|map)(\..*)?|vit_so150m2_.*", CENTER),
    (r"vit_so150m2_.*_448.*", WHOLE),
    (r"vit_.*_rope(_ape)?_224.*", IMAGENET),
    (r"vit_betwixt_patch16_rope_reg4_gap_256.*", OPENAI_PIXELS),
)
# Names whose arrays are those of a plain ViT, and whose blocks or positions are not.
_KEEPS_RATIO = "keep the aspect ratio when they are resampled"
TIMM_OTHERS = {
    "vit_base_patch16_rpn_224": "norms after attention and MLP (ResPostBlock)",
    **dict.fromkeys(
        ("naflexvit_base_patch16_par_gap", *(
            f"naflexvit_{size}_patch16_radio_{version}"
            for size, version in (
                ("base", "v3"), ("large", "v3"), ("huge", "v3"), ("giant", "v3"),
                ("so400m", "v4"), ("huge", "v4"),
            )
        )),
        f"positions that {_KEEPS_RATIO} (pos_embed_ar_preserving)",
    ),
    "naflexvit_base_patch16_parfac_gap": "positions that are sums of a row and a column part, and "
    f"{_KEEPS_RATIO} (factorized)",
}  # fmt: skip

# timm's plain ViT by its arguments: without stem by the epsilon of its norms, with one by the units
# of the stem's stages.
_PLAIN = {1e-6: "vit_base_patch16_224", 1e-5: "vit_base_patch16_clip_quickgelu_224"}
_STEMS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_base_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _plain_name(config: Any) -> str:
    stem, block = config.stem, config.block
    if stem is not None and (stem.stages not in _STEMS or stem.width_factor != 1):
        raise keys.no_such("stem", stem)
    if stem is not None:
        names = {1e-6: _STEMS[stem.stages]}
    elif config.distillation_token:
        names = {1e-6: "deit_base_distilled_patch16_224"}
    else:
        names = _PLAIN if block.norm == "layer" else {1e-6: _PLAIN[1e-6]}
    if block.norm_epsilon not in names:
        raise keys.no_such("norm_epsilon", block.norm_epsilon)
    return names[block.norm_epsilon]


TIMM_MODELS = (
    keys.TimmModel(
        lambda config: isinstance(config, ViTConfig) and keys.has_arguments(config)
        and not keys.is_beit(config),
        _plain_name, keys.TIMM_WRITTEN, keys.timm_tokens,
    ),
)  # fmt: skip


# layouts of arrays
def _is_root(config: ViTConfig) -> bool:
    """Whether the ResNet of a hybrid is a root alone, as in R+Ti/16."""
    return config.stem is not None and not config.stem.stages


_BACKBONE = "patch_embed.backbone"
_STEM = (
    parts.conv("stem_root/conv", f"{_BACKBONE}.conv", written=_is_root),
    *parts.norm("stem_root/norm", f"{_BACKBONE}.norm", written=_is_root),
    parts.conv("stem_root/conv", f"{_BACKBONE}.stem.conv"),
    *parts.norm("stem_root/norm", f"{_BACKBONE}.stem.norm"),
    *parts.units(
        parts.OURS_HYBRID, f"{_BACKBONE}.stages.{{i-1}}.blocks.{{j-1}}", shortcut_norm=True
    ),
)


def _is_eva(config: ViTConfig) -> bool:
    """Whether timm has such a model in `eva.py`, whose names differ."""
    return config.block.rope is not None


def _has_gammas(config: ViTConfig) -> bool:
    """Whether timm calls layer scales gamma: in `eva.py` and `beit.py`."""
    return _is_eva(config) or config.position_embedding in POSITION_BIASES


def _splits_products(config: ViTConfig) -> bool:
    """Whether timm has one layer each for queries, keys and values: EVA-02 B and L."""
    return _is_eva(config) and config.block.swiglu and "mlp" in config.block.inner_norms


def _splits_gate(config: ViTConfig) -> bool:
    """Whether timm has a layer for each input of a gate; in EVA-02 Ti and S one makes both."""
    centered = config.block.rope is not None and config.block.rope.coordinates == "centered"
    return config.block.swiglu and (
        "mlp" in config.block.inner_norms or config.block.norm == "rms" or centered
    )


BLOCK = "blocks.{i}"
_ATTENTION = f"{BLOCK}.attn"
_KERNELS = tuple(f"{_ATTENTION}.{part}_proj.weight" for part in "qkv")
_BLOCKS = (
    *parts.norm("embedding_norm", "norm_pre"),
    # Queries, keys and values: one layer, one with separate biases, or three layers.
    Rule("block_{i}/attention/qkv/kernel", _KERNELS, rules.LINEAR, written=_splits_products),
    *parts.dense("block_{i}/attention/qkv", f"{_ATTENTION}.qkv"),
    Rule(
        "block_{i}/attention/query_bias", (f"{_ATTENTION}.q_proj.bias",), written=_splits_products
    ),
    Rule("block_{i}/attention/query_bias", (f"{_ATTENTION}.q_bias",)),
    Rule(
        "block_{i}/attention/value_bias", (f"{_ATTENTION}.v_proj.bias",), written=_splits_products
    ),
    Rule("block_{i}/attention/value_bias", (f"{_ATTENTION}.v_bias",)),
    *parts.norm("block_{i}/attention/query_norm", f"{_ATTENTION}.q_norm"),
    *parts.norm("block_{i}/attention/key_norm", f"{_ATTENTION}.k_norm"),
    Rule("block_{i}/attention/position_bias", (f"{_ATTENTION}.relative_position_bias_table",)),
    *parts.norm("block_{i}/attention/norm", f"{_ATTENTION}.norm"),
    *parts.dense("block_{i}/attention/output", f"{_ATTENTION}.proj"),
    Rule("block_{i}/attention_scale/gamma", (f"{BLOCK}.gamma_1",), written=_has_gammas),
    *parts.gate(
        "block_{i}/mlp/hidden", f"{BLOCK}.mlp.fc1_g", f"{BLOCK}.mlp.fc1_x", written=_splits_gate
    ),
    *parts.norm("block_{i}/mlp/norm", f"{BLOCK}.mlp.norm"),
    Rule("block_{i}/mlp_scale/gamma", (f"{BLOCK}.gamma_2",), written=_has_gammas),
    *parts.branches(BLOCK, ("norm1", "norm2"), ("mlp.fc1", "mlp.fc2"), ("ls1.gamma", "ls2.gamma")),
    *parts.norm("encoder_norm", "fc_norm", when=("norm_after_pooling", True)),
    *parts.norm("encoder_norm", "norm"),
    Rule("pooling/probe", ("attn_pool.latent",)),
    *parts.dense("pooling/query", "attn_pool.q"),
    *parts.dense("pooling/key_value", "attn_pool.kv"),
    *parts.dense("pooling/output", "attn_pool.proj"),
    *parts.norm("pooling/norm", "attn_pool.norm"),
    *parts.dense("pooling/mlp/hidden", "attn_pool.mlp.fc1"),
    *parts.dense("pooling/mlp/output", "attn_pool.mlp.fc2"),
    *parts.dense("pre_logits", "pre_logits.fc"),  # before timm 0.9
    *parts.dense("head", "head"),
    *parts.dense("head_distillation", "head_dist"),
)
REST = (
    *parts.patches("patch_embed.proj"),
    *parts.norm("patch_norm", "patch_embed.norm"),
    Rule("class_token/token", ("cls_token",)),
    Rule("distillation_token/token", ("dist_token",)),
    Rule("registers/token", ("reg_token",)),
    Rule("registers/token", ("register_tokens",)),  # DINOv2 of its authors
    Rule("position_embedding/embedding", ("pos_embed",)),
    *_BLOCKS,
)


# Preprocessing of its models; a sidecar file overrides it.
_OPTIONS = {
    "gelu": "exact",
    "norm_epsilon": 1e-6,
    "preprocessing": Preprocessing(interpolation="bicubic", library="timm"),
}


def _pooling_settings(find: rules.Find, sizes: Mapping[str, Any]) -> keys.Fields:
    """What the pooling attends to, and the hidden dimension of its MLP."""
    if find("pooling/probe") is None:
        return {}
    bias = find("pooling/mlp/hidden/bias")
    hidden = bias.shape[-1] if bias is not None and bias.shape else None
    other = hidden and hidden != sizes.get("mlp_dim")
    return {"map_prefix_tokens": False, "map_mlp_dim": hidden if other else None}


def _has_names_of_others(values: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether arrays are of timm's other classes."""
    newer = r"(^|\.)norm_pre\.|patch_embed\.norm\.|attn\.(q_bias|q_proj)|gamma_1$|mlp\.fc1_g"
    beit = values.get("position_embedding") in POSITION_BIASES
    return "rope" not in values and not beit and any(re.search(newer, name) for name in names)


_UNSAID = (
    rules.Unsaid(
        "gelu",
        lambda values, names: not (values["class_token"] or values["norm_after_pooling"]),
        "timm computes some SigLIP models with the exact GELU, some with its tanh form, and "
        "neither config.json nor the address names the model",
        ("gelu",),
    ),
    rules.Unsaid(
        "gelu",
        _has_names_of_others,
        "the arrays are of a newer model of timm (CLIP, EVA-02, DINOv3, AIMv2), and neither "
        "config.json nor the address names it, which tells GELU, epsilon and rotary positions",
        ("gelu", "norm_epsilon", "rope"),
    ),
    rules.Unsaid(
        "",
        lambda values, names: values["distillation_token"] and values["num_registers"],
        "registers beside a distillation token, which timm leaves out",
        (),
    ),
)
_NORMS = ("norm_after_blocks", "norm_after_pooling")


def _computes(config: Any) -> tuple[str, ...]:
    """Its class of models with rotary positions has another pooling than its plain ViT."""
    return ("rope", "map", "prefix", *_NORMS) if _is_eva(config) else ("prefix", *_NORMS)


_LACKS = (
    rules.Lack(
        lambda config: (
            _is_eva(config) and config.pooling == "map" and not config.map_prefix_tokens
            and config.num_prefix_tokens
        ),
        "have a pooling that attends to all tokens", ("map_prefix_tokens",),
        "Build the model with map_prefix_tokens=True.",
    ),
    rules.Lack(
        lambda config: (
            config.block.qk_norm and config.block.norm == "layer" and not config.block.qk_norm_bias
        ),
        "have norms of queries and keys with a bias", ("qk_norm_bias",),
        "Build the model with qk_norm_bias=True.",
    ),
    rules.Lack(
        lambda config: config.distillation_token and config.num_registers,
        "have no registers beside a distillation token", ("num_registers",), rules.KEEP,
    ),
)  # fmt: skip
PLAIN = parts.torch_layout(
    "timm",
    (*_STEM, *REST),
    {**_OPTIONS, "stem": parts.STEM},
    writes=lambda config: not (config.block.rope and config.block.rope.register_base),
    computes=_computes,
    lacks=_LACKS,
    settings=_pooling_settings,
    unsaid=_UNSAID,
    resize_block_tables="geometric",
    class_token_positions="either",
    # Of MAE and DINOv2 of their authors, too, whose encoders have timm's names.
    others=(".*\\.relative_position_index$", "decoder_", "mask_token$"),
)
NAFLEX = parts.torch_layout(  # `naflexvit.py`: patches are vectors, positions have rows and columns
    "timm_naflex",
    (
        Rule("patch_encoder/projection/kernel", ("embeds.proj.weight",), rules.PATCH_VECTORS),
        Rule("patch_encoder/projection/bias", ("embeds.proj.bias",)),
        Rule("class_token/token", ("embeds.cls_token",)),
        Rule("registers/token", ("embeds.reg_token",)),
        Rule("position_embedding/embedding", ("embeds.pos_embed",), rules.GRID_TABLE),
        *_BLOCKS,
    ),
    _OPTIONS,
    writes=lambda config: config.takes_patches,
    computes=("max_num_patches", *_NORMS),
    lacks=(
        rules.Lack(
            lambda config: config.grid[0] != config.grid[1],
            "have a square table of positions",
            ("grid",),
            rules.KEEP,
        ),
    ),
    settings=_pooling_settings,
    unsaid=(
        *_UNSAID,
        rules.Unsaid(
            "position_resize",
            lambda values, names: True,
            "the arrays are of a NaFlex model of timm, and neither config.json nor the address "
            "names it, which tells GELU and how positions are resampled",
            ("gelu", "position_resize", "max_num_patches"),
        ),
    ),
    class_token_positions="never",
)
# What other Transformers have, of timm and of other projects
FEATURES = (
    (r"mlp\.(fc1_[gx]|w12|w3|gate_proj|weights_in|gate_up_proj)\b", "gated MLPs (SwiGLU)"),
    (r"mlp\.norm\.|ffn_layernorm", "a norm inside the MLP"),
    (r"attn\.norm\.|inner_attn_ln", "a norm inside the attention"),
    (r"(attn|attention|self_attn)\.(q_norm|k_norm)\.", "a norm of queries and keys"),
    (r"attn\.(lambda_|sub_norm)|\.lambda_[aq]", "differential attention"),
    (r"\.(in_proj\.weight|in_norm\.)", "attention and MLP side by side (parallel blocks)"),
    (r"\.(attns|ffns)\.\d+\.", "several attentions in a block (parallel blocks)"),
    (
        r"\d\.(.*\.)?(rel_pos|relative_position)",
        "relative positions in the attention (SAM, timm's relpos)",
    ),
    (r"^rope\.freqs$", "rotary positions whose frequencies are learned (timm's rope_mixed)"),
    (r"(^|\.)rope(?!_reg|\.freqs$)|\.rope\.freqs$|freqs_cis|rotary", "rotary positions"),
    (r"patch_embed\.norm\.", "a norm of the patches"),
    (r"patch_embed\.backbone\.(conv1|bn1|layer\d|stages\.\d+\.\d)", "a stem of another network"),
    (
        r"\.(lora_[AB]|lora_embedding_[AB]|base_layer)\.",
        "low-rank updates of PEFT (`load_adapter` reads an adapter's folder; save a model with "
        "updates as `merge_and_unload()` returns it)",
    ),
)

# Published checkpoints: its own recipe for small models, "sbb".
_RECIPE = Origin(
    TIMM,
    "https://arxiv.org/abs/2309.16588",
    {
        "pooling": "gap", "class_token": False, "position_on_class_token": False,
        "num_registers": 4, "layer_scale": 1e-5,
    },
    classes=1000,
)  # fmt: skip
CARDS = (
    Published(_RECIPE, "sbb_reg4_in12k_ft_in1k",
              (("vit_m16", "vit_medium_patch16_reg4_gap_256.sbb_in12k_ft_in1k", 256),)),
    Published(_RECIPE, "sbb_reg4_in1k",
              (("vit_m16", "vit_medium_patch16_reg4_gap_256.sbb_in1k", 256),)),
    Published(_RECIPE._replace(options={**_RECIPE.options, "num_registers": 1}), "sbb_reg1_in1k",
              (("vit_m16", "vit_medium_patch16_reg1_gap_256.sbb_in1k", 256),)),
)  # fmt: skip

FAMILY = Family(
    {}, NAMES, CARDS, timm_models=TIMM_MODELS, timm_images=TIMM_IMAGES, timm_others=TIMM_OTHERS,
    layouts=(PLAIN, NAFLEX), features=FEATURES,
)  # fmt: skip
