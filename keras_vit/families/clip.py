"""CLIP and its relatives."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.families import keys, parts, rules
from keras_vit.families.cards import TIMM, Files, Origin, Published, each
from keras_vit.families.family import Family
from keras_vit.families.names import EXACT, WORDS, Name, architectures, joined, of_timm, sized
from keras_vit.families.preprocessing import (
    CENTER,
    HALF,
    OPENAI,
    OPENAI_CENTER,
    OPENAI_PIXELS,
    WHOLE,
    TimmImages,
)
from keras_vit.families.rules import Rule
from keras_vit.families.siglip import siglip_blocks

# https://arxiv.org/abs/2103.00020, `VisionTransformer` in github.com/openai/CLIP. The head is its
# projection to the space of images and texts.
CLIP: keys.Fields = {
    "norm_before_blocks": True,
    "without_bias": ("patch",),
    "norm_epsilon": 1e-5,
    "gelu": "quick",
}
_SIZES = {
    f"clip_{size}{patch}": (size, patch)
    for size, patch in (
        ("b", 32), ("b", 16), ("l", 14), ("h", 14), ("giant", 14), ("gigantic", 14)
    )
}  # fmt: skip
VARIANTS: dict[str, keys.Fields] = {name: sized(*sizes, CLIP) for name, sizes in _SIZES.items()}
_PLUS: keys.Fields = {"width": 896, "num_heads": 14, "mlp_dim": 3584}
NAMES = {
    **joined(
        of_timm(f"vit_{WORDS[size]}_patch{patch}_clip_{gelu}224", variant, fields)
        for variant, (size, patch) in _SIZES.items()
        for gelu, fields in (("", EXACT), ("quickgelu_", {}))
        if (size, gelu) != ("giant", "quickgelu_")
    ),
    **architectures("vit_{}_patch16_clip_224", "xsmall medium", CLIP, EXACT),
    **architectures("vit_{}_patch32_clip_224", "medium betwixt", CLIP, EXACT),
    **architectures("vit_{}_patch16_plus_clip_240", "base", CLIP, EXACT, _PLUS),
    "openai/clip-vit-base-patch32": Name("clip_b32"),
    "openai/clip-vit-base-patch16": Name("clip_b16"),
    "openai/clip-vit-large-patch14": Name("clip_l14"),
    "openai/clip-vit-large-patch14-336": Name("clip_l14", {"image_size": 336}),
    **{f"facebook/metaclip-{size}-400m": Name(f"clip_{size}") for size in ("b32", "b16", "l14")},
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": Name("clip_b32", EXACT),
    "laion/CLIP-ViT-B-16-laion2B-s34B-b88K": Name("clip_b16", EXACT),
    "laion/CLIP-ViT-L-14-laion2B-s32B-b82K": Name("clip_l14", EXACT),
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": Name("clip_h14", EXACT),
    "laion/CLIP-ViT-g-14-laion2B-s12B-b42K": Name("clip_giant14", EXACT),
    "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k": Name("clip_gigantic14", EXACT),
}  # fmt: skip
TIMM_IMAGES: TimmImages = (
    (r"vit_.*_clip_.*", {**OPENAI_PIXELS, **CENTER}),
    (r"vit_large_patch14_clip_(224|336)(\.laion2b.*)?", HALF),
    (
        r"vit_(xsmall|medium|betwixt)_.*_clip_.*|"
        r"vit_base_patch(16|32)_clip_(quickgelu_)?224\.openai.*|"
        r"vit_base_patch32_clip_(quickgelu_)?224(\.laion.*)?|"
        r"vit_base_patch16_clip_224\.laion2b_ft_in12k",
        {"crop_ratio": 0.9},
    ),
    (r"vit_base_patch16_clip_224(\..*_in12k_in1k)?", {"crop_ratio": 0.95}),
    (
        r"vit_(?!base_patch32)\w*_clip_(336|384)\..*ft_in1.*|vit_.*_clip_378\.\w*worldwide|"
        r"vit_(huge|large)_patch14_clip_336|vit_base_patch16_clip_384|"
        r"vit_gigantic_patch14_clip_378",
        WHOLE,
    ),
    (r".*_clip_384\.openai_ft_in12k_in1k", {"crop_ratio": 0.95, "crop_mode": "squash"}),
)

# transformers: relatives whose image tower is CLIP's.
_TOWER: keys.Rules = {**keys.ENCODER, **keys.harmless("projection_dim")}
_TOWER_DEFAULTS = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 12}
_TWO_TOWERS = keys.two_towers(
    "text_config_dict vision_config_dict projection_dim logit_scale_init_value"
)


def _projection(config: Any) -> keys.Fields:
    return {} if config.classes is None else {"projection_dim": config.classes}


MODEL_TYPES = {
    "clip_vision_model": keys.ModelType(
        _TOWER, _TOWER_DEFAULTS, layouts=("transformers_clip",), headless="CLIPVisionModel",
        head="CLIPVisionModelWithProjection", labels=False, more=_projection, square=True,
    ),
    "clip": keys.ModelType(_TWO_TOWERS, images="clip_vision_model"),
    **{
        name: model_type
        for relative in ("metaclip_2", "altclip", "chinese_clip")
        for name, model_type in (
            (f"{relative}_vision_model", keys.ModelType(_TOWER, _TOWER_DEFAULTS)),
            (relative, keys.ModelType(_TWO_TOWERS, images=f"{relative}_vision_model")),
        )
    },
}  # fmt: skip
PROCESSORS = {"CLIP": keys.Processor(3, 224, False, 224, OPENAI, writes="center")}
DOUBTS = (
    keys.Doubt(
        ".*_clip_(?!.*quickgelu).*|(?!.*quickgelu).*_clip_.*",
        "QuickGELU",
        "gelu",
        'the model may have been trained with gelu="quick", and timm computes "exact" for the '
        "name {}",
    ),
)

# layouts of arrays
# The image tower of CLIP and its relatives; the head is the projection.
_HF_IMAGES = (
    Rule("class_token/token", ("embeddings.class_embedding",), rules.VECTOR),
    parts.conv("patch_encoder/projection", "embeddings.patch_embedding"),
    parts.POSITIONS,
    *parts.norm("embedding_norm", "pre_layrnorm"),  # misspelt there
    *siglip_blocks(),
)
HF_CLIP = parts.torch_layout(
    "transformers_clip",
    (*_HF_IMAGES, Rule("head/kernel", ("visual_projection.weight",), rules.LINEAR)),
    {**{k: v for k, v in CLIP.items() if k != "without_bias"}, "preprocessing": OPENAI_CENTER},
    writes=lambda config: config.norm_before_blocks,
    pooling="token",
    lacks=(rules.biases(("patch",)),),
    prefixes=("vision_model.", ""),
    others=(
        "text_model\\.",
        "text_projection\\.",
        "logit_(scale|bias)$",
        "(vision_model\\.)?embeddings\\.position_ids$",
    ),
    unprefixed=("visual_projection\\.",),
)
# `CLIPForImageClassification`: a head reads the mean of the patches, which no norm precedes.
HF_CLASSIFIER = dataclasses.replace(
    HF_CLIP,
    name="transformers_clip_classifier",
    rules=(*_HF_IMAGES, *parts.dense("head", "classifier")),
    options={**HF_CLIP.options, "norm_after_blocks": False},
    writes=None,
    pooling="gap",
    others=(*HF_CLIP.others, "(vision_model\\.)?post_layernorm\\."),
    unprefixed=("classifier\\.",),
    needs=r"(^|\.)classifier\.",
)


def open_clip_blocks(tower: str) -> tuple[Rule, ...]:
    """Blocks of both towers as OpenAI names them; a text tower has no prefix, or "text."."""
    block = f"{tower}transformer.resblocks.{{i}}"
    joined = f"{block}.attn.in_proj_"
    return (
        Rule("block_{i}/attention/qkv/kernel", (f"{joined}weight",), rules.LINEAR),
        Rule("block_{i}/attention/qkv/bias", (f"{joined}bias",)),
        *parts.dense("block_{i}/attention/output", f"{block}.attn.out_proj"),
        *parts.branches(block, ("ln_1", "ln_2"), ("mlp.c_fc", "mlp.c_proj")),
    )


_TEXT = (
    r"(text\.)?(token_embedding\.|positional_embedding$|transformer\.|ln_final\.|text_projection)"
)
OPEN_CLIP = rules.Layout(
    "open_clip",
    (
        Rule("class_token/token", ("visual.class_embedding",), rules.VECTOR),
        parts.conv("patch_encoder/projection", "visual.conv1"),
        Rule("position_embedding/embedding", ("visual.positional_embedding",), rules.TABLE),
        *parts.norm("embedding_norm", "visual.ln_pre"),
        *open_clip_blocks("visual."),
        *parts.norm("encoder_norm", "visual.ln_post"),
        Rule("head/kernel", ("visual.proj",)),
    ),
    "open_clip",
    kind="safetensors",
    options={"norm_epsilon": 1e-5, "preprocessing": OPENAI_CENTER},
    resize="bicubic",
    resize_patches="bicubic",
    pooling="token",
    others=(_TEXT, r"(text\.)?attn_mask$", "logit_(scale|bias)$"),
    unsaid=(
        rules.Unsaid(
            "gelu",
            lambda values, names: True,
            "open_clip computes some of its models with the quick GELU, and the arrays do not tell "
            "(`keras_vit.image_text.load_towers` reads open_clip_config.json)",
            ("gelu",),
        ),
        rules.Unsaid(
            "pooling",
            lambda values, names: "visual.ln_pre.weight" not in names,
            "open_clip pools its models without a norm before the blocks in several ways (CLIPA), "
            "and the arrays do not tell (`keras_vit.image_text.load_towers` reads "
            "open_clip_config.json)",
            ("pooling", "norm_after_pooling"),
        ),
    ),
)

# Text towers
TEXT_FIELDS: keys.Fields = {"pooling": "eot", "causal": True}
_TEXT_KEYS: keys.Rules = {**keys.TEXT, "eos_token_id": keys.Sets("end_id", int)}
_ALL_TEXT_DEFAULTS = {**_TOWER_DEFAULTS, "num_attention_heads": 8}
_TEXT_DEFAULTS = {**_ALL_TEXT_DEFAULTS, "eos_token_id": 49407}
TEXT_TYPES = {
    # Most published files say 2, which transformers takes for the largest id.
    "clip": keys.TextType(_TEXT_KEYS, TEXT_FIELDS, _TEXT_DEFAULTS, old_end=2),
    "metaclip_2": keys.TextType(_TEXT_KEYS, TEXT_FIELDS, _TEXT_DEFAULTS),
    # OWL-ViT takes the largest id for the end.
    **dict.fromkeys(("owlvit", "owlv2"), keys.TextType(keys.TEXT, TEXT_FIELDS, _ALL_TEXT_DEFAULTS)),
}
_HF_TEXT = parts.text_layout(
    "transformers_clip", *siglip_blocks("final_layer_norm"), parts.TEXT_PROJECTION
)
_OPEN_CLIP_TEXT = rules.Layout(
    "open_clip",
    (
        Rule("token_embedding/embeddings", ("token_embedding.weight",)),
        Rule("position_embedding/embedding", ("positional_embedding",), rules.TABLE),
        *open_clip_blocks(""),
        *parts.norm("encoder_norm", "ln_final"),
        *parts.dense("projection", "text_projection"),
        Rule("projection/kernel", ("text_projection",)),
        *parts.LOGITS,
    ),
    "open_clip",
    kind="safetensors",
    prefixes=("text.", ""),
    others=("attn_mask$", "visual\\."),
    unprefixed=parts.UNPREFIXED,
)
# Keys of `model_cfg` in open_clip_config.json, and of its parts for texts and images.
OPEN_CLIP_KEYS: keys.Rules = {
    "multimodal_cfg": keys.Only((), "a decoder of texts"),
    "quick_gelu": keys.Sets("gelu", {True: "quick", False: "exact"}),
    **keys.harmless(
        "embed_dim text_cfg vision_cfg custom_text init_logit_scale init_logit_bias "
        "nonscalar_logit_scale"
    ),
}
_SWITCHES: keys.Rules = {
    **{
        key: keys.Only((False,), "other blocks than a plain transformer's")
        for key in (
            "qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn",
            "scale_fc", "final_ln_after_pool",
        )
    },
    "block_type": keys.Only(("default",), "other blocks than a plain transformer's"),
    "ls_init_value": keys.Only((), "scales of the branches (layer scale)"),
    "norm_kwargs": keys.Part({"eps": keys.Sets("norm_epsilon", float)}),
    "act_kwargs": keys.Part({"approximate": keys.Sets("gelu", {"tanh": "tanh", "none": "exact"})}),
    **keys.harmless("mlp_ratio output_tokens"),
}  # fmt: skip
OPEN_CLIP_TEXT_KEYS: keys.Rules = {
    **_SWITCHES,
    "width": keys.Size("width"),
    "layers": keys.Size("depth"),
    "context_length": keys.Size("context_length"),
    "vocab_size": keys.Size("vocabulary_size"),
    "heads": keys.Sets("num_heads", int),
    "no_causal_mask": keys.Sets("causal", {True: False, False: True}),
    "pool_type": keys.Sets("pooling", {"argmax": "eot", "eos": "eot", "last": "last"}),
    "eos_id": keys.Sets("end_id", int),
    "proj_type": keys.Only(("linear", "none"), "another projection"),
    "embed_cls": keys.Only((False,), "a class token in the text"),
    "hf_model_name": keys.Only((), "a text tower of transformers"),
    **keys.harmless("proj_bias pad_id hf_tokenizer_name tokenizer_kwargs tokenizer_mode"),
}
OPEN_CLIP_IMAGE_KEYS: keys.Rules = {
    **_SWITCHES,
    "width": keys.Sets("width", int),
    "head_width": keys.Sets("head_width", int),
    "attentional_pool": keys.Only((False,), "a pooling by attention"),
    "pos_embed_type": keys.Only(("learnable",), "fixed positions"),
    "pool_type": keys.Sets("pooling", {"tok": "token", "avg": "gap"}),
    "final_ln_after_pool": keys.Sets("norm_after_pooling", {True: True, False: False}),
    "timm_proj": keys.Only(("none", ""), "a projection after timm's model"),
    **keys.harmless(
        "layers patch_size image_size patch_dropout no_ln_pre attn_pooler_queries "
        "attn_pooler_heads timm_model_name timm_model_pretrained timm_pool timm_proj_bias "
        "timm_drop timm_drop_path"
    ),
}


FEATURES = (
    (r"(^|\.)norm_pre\.|pre_layrnorm|pre_layernorm|ln_pre\.", "a norm before the blocks (CLIP)"),
)

# Published checkpoints, by timm. Classes are dimensions of the projection.
_DIMENSIONS = {
    "clip_b32": 512, "clip_b16": 512, "clip_l14": 768, "clip_h14": 1024, "clip_giant14": 1024,
    "clip_gigantic14": 1280,
}  # fmt: skip


def _origin(paper: str, licence: str = "MIT", note: str | None = None, **options: Any) -> Origin:
    return Origin(TIMM, paper, options, None, _DIMENSIONS, licence, note)


_OPENAI = _origin("https://arxiv.org/abs/2103.00020", gelu="quick")
_OPEN_CLIP = _origin("https://arxiv.org/abs/2212.07143")
_DATACOMP = _origin("https://arxiv.org/abs/2304.14108")
_DFN = _origin(
    "https://arxiv.org/abs/2309.17425", "Apple-ASCL", "Under Apple's sample code licence.",
    gelu="quick",
)  # fmt: skip
_METACLIP = _origin(
    "https://arxiv.org/abs/2309.16671", "CC-BY-NC-4.0", "Not for commercial use.", gelu="quick"
)
_MODELS = {variant: f"{WORDS[size]}_patch{patch}" for variant, (size, patch) in _SIZES.items()}


def _files(ending: str, **sizes: tuple[int, ...]) -> Files:
    return each(
        f"vit_{{}}_clip_{{}}.{ending}", _MODELS, {f"clip_{size}": s for size, s in sizes.items()}
    )


_ONE = (224,)
CARDS = (
    Published(_OPENAI, "openai", _files("openai", b32=_ONE, b16=_ONE, l14=(224, 336))),
    Published(_OPEN_CLIP, "laion2b", _files(
        "laion2b", b32=_ONE, b16=_ONE, l14=_ONE, h14=_ONE, giant14=_ONE, gigantic14=_ONE
    )),
    Published(_OPEN_CLIP, "laion400m", _files("laion400m_e32", b16=_ONE, l14=_ONE)),
    Published(_DATACOMP, "datacompxl", _files("datacompxl", b32=_ONE, b16=_ONE, l14=_ONE)),
    Published(_DFN, "dfn2b", _files("dfn2b", b16=_ONE, l14=_ONE)),
    Published(_DFN, "dfn5b", _files("dfn5b", h14=(224, 378))),
    Published(_DFN._replace(options={}), "dfn2b_s39b", _files("dfn2b_s39b", l14=_ONE)),
    Published(_METACLIP, "metaclip", _files(
        "metaclip_2pt5b", b32=_ONE, b16=_ONE, l14=_ONE, h14=_ONE
    )),
)  # fmt: skip

FAMILY = Family(
    VARIANTS, NAMES, CARDS, MODEL_TYPES, PROCESSORS, doubts=DOUBTS, timm_images=TIMM_IMAGES,
    layouts=(HF_CLIP, HF_CLASSIFIER, OPEN_CLIP), features=FEATURES,
    text_layouts=(_HF_TEXT, _OPEN_CLIP_TEXT), text_types=TEXT_TYPES,
)  # fmt: skip
