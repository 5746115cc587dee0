"""CLIP and its relatives."""

from __future__ import annotations

from typing import Any

from keras_vit.families import keys
from keras_vit.families.cards import EXACT, TIMM, Files, Origin, Published, each
from keras_vit.families.family import Family
from keras_vit.families.keys import Fields
from keras_vit.families.preprocessing import OPENAI

# transformers: relatives whose image tower is CLIP's.
_TOWER: keys.Rules = {
    **keys.ENCODER,
    "intermediate_size": keys.Size("mlp_dim"),
    **keys.harmless("projection_dim"),
}
_TOWER_DEFAULTS = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 12}
_TWO_TOWERS: keys.Rules = {
    **keys.COMMON,
    **keys.harmless(
        "text_config text_config_dict vision_config vision_config_dict projection_dim "
        "logit_scale_init_value"
    ),
}


def _projection(config: Any) -> Fields:
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

# Published checkpoints, by timm. Classes are dimensions of the projection.
_DIMENSIONS = {
    "clip_b32": 512, "clip_b16": 512, "clip_l14": 768, "clip_h14": 1024, "clip_giant14": 1024,
    "clip_gigantic14": 1280,
}  # fmt: skip


def _origin(paper: str, gelu: str, licence: str = "MIT", note: str | None = None) -> Origin:
    return Origin(TIMM, paper, {"gelu": gelu}, None, _DIMENSIONS, licence, note)


_OPENAI = _origin("https://arxiv.org/abs/2103.00020", "quick")
_OPEN_CLIP = _origin("https://arxiv.org/abs/2212.07143", "exact")
_DATACOMP = _origin("https://arxiv.org/abs/2304.14108", "exact")
_DFN = _origin(
    "https://arxiv.org/abs/2309.17425", "quick", "Apple-ASCL",
    "Under Apple's sample code licence.",
)  # fmt: skip
_METACLIP = _origin(
    "https://arxiv.org/abs/2309.16671", "quick", "CC-BY-NC-4.0", "Not for commercial use."
)
_MODELS = {
    "clip_b32": "base_patch32", "clip_b16": "base_patch16", "clip_l14": "large_patch14",
    "clip_h14": "huge_patch14", "clip_giant14": "giant_patch14",
    "clip_gigantic14": "gigantic_patch14",
}  # fmt: skip


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
    Published(_DFN._replace(options=EXACT), "dfn2b_s39b", _files("dfn2b_s39b", l14=_ONE)),
    Published(_METACLIP, "metaclip", _files(
        "metaclip_2pt5b", b32=_ONE, b16=_ONE, l14=_ONE, h14=_ONE
    )),
)  # fmt: skip

FAMILY = Family(CARDS, MODEL_TYPES, PROCESSORS, doubts=DOUBTS)
