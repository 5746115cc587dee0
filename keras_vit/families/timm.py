"""What is timm's alone: its plain ViT by arguments, and its own checkpoints."""

from __future__ import annotations

from typing import Any

from keras_vit.config import ViTConfig
from keras_vit.families import keys
from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family
from keras_vit.families.keys import Fields
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

_SBB: Fields = {**SCALED, **GAP, **NORM_LAST}
_ROPE: Fields = {**SCALED, "rope": {"base": 100.0, "order": "wh"}}
_NO_POSITIONS: Fields = {"position_embedding": "none"}
_SBB_ROPE: Fields = {**_SBB, **NO_KEY_BIAS, **_NO_POSITIONS, "rope": {"reference_grid": (16, 16)}}
_ONE: Fields = {"num_registers": 1}
_FOUR: Fields = {"num_registers": 4}
_PLUS: Fields = {**SCALED, "width": 896, "num_heads": 14, "mlp_dim": 3584}
_NAFLEX: Fields = {"image_size": 256}
# Those of NaFlex resample positions bicubically and have registers, and are loaded for images of
# one size.
_RESIZE: Fields = {"position_resize": "bicubic"}
_TEST: Fields = {"image_size": 160}
NAMES: Names = {
    **of_timm("test_vit", None, sized((64, 6, 2, 192), 16, EXACT, _TEST)),
    **of_timm("test_vit2", None, sized((64, 8, 2, 192), 16, SCALED, GAP, _ONE, _TEST)),
    **of_timm(
        "test_vit3", None,
        sized((96, 9, 3, 192), 16, SCALED, MAP, {"map_prefix_tokens": True}, _ONE, _TEST),
    ),
    **architectures("vit_{}_patch16_gap_224", "base", EXACT, GAP, {"num_heads": 16}),
    **architectures(
        "vit_{}_patch16_reg1_gap_256", "wee little medium betwixt", _SBB, _ONE
    ),
    **architectures(
        "vit_{}_patch16_reg4_gap_256", "little medium mediumd betwixt", _SBB, _FOUR
    ),
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
    **architectures(
        "naflexvit_{}_patch16_gap", "base", _SBB, _FOUR, _NAFLEX, settings=_RESIZE
    ),
    **architectures(
        "naflexvit_{}_patch16_map", "base", SCALED, MAP, _ONE, _NAFLEX, settings=_RESIZE
    ),
    **architectures(
        "naflexvit_{}_patch16_reg1_gap", "so150m2", _SBB, NO_QKV_BIAS, _ONE, _NAFLEX,
        settings=_RESIZE,
    ),
    **architectures(
        "naflexvit_{}_patch16_reg1_map", "so150m2", SCALED, MAP, NO_QKV_BIAS, _ONE, _NAFLEX,
        settings=_RESIZE,
    ),
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

# The plain ViT by its arguments, by the epsilon of its norms.
_PLAIN = {1e-6: "vit_base_patch16_224", 1e-5: "vit_base_patch16_clip_quickgelu_224"}


def _plain_name(config: Any) -> str:
    if config.block.norm_epsilon not in _PLAIN:
        raise keys.no_such("norm_epsilon", config.block.norm_epsilon)
    return _PLAIN[config.block.norm_epsilon]


def _is_plain(config: Any) -> bool:
    other = config.position_embedding == "relative_bias" or config.distillation_token
    return keys.has_arguments(config) and config.stem is None and not other


TIMM_MODELS = (
    keys.TimmModel(
        lambda config: isinstance(config, ViTConfig) and _is_plain(config),
        _plain_name, keys.TIMM_WRITTEN, keys.timm_tokens,
    ),
)  # fmt: skip

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
    {}, NAMES, CARDS, timm_models=TIMM_MODELS, timm_images=TIMM_IMAGES, timm_others=TIMM_OTHERS
)
