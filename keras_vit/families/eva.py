"""EVA and EVA-02."""

from __future__ import annotations

from keras_vit.families.cards import TIMM, Origin, Published, of_size
from keras_vit.families.family import Family
from keras_vit.families.keys import Fields
from keras_vit.families.names import (
    EXACT,
    NO_KEY_BIAS,
    NORM_LAST,
    WORDS,
    Names,
    architectures,
    joined,
    of_timm,
    sized,
)
from keras_vit.families.preprocessing import CENTER, IMAGENET, OPENAI_PIXELS, WHOLE, TimmImages

# https://arxiv.org/abs/2303.11331; positions are learned, too.
EVA02: Fields = {
    "rope": {"reference_grid": (16, 16)},
    "swiglu": True,
    "without_bias": ("key",),
    "gelu": "exact",
    "pooling": "gap",
    "norm_after_pooling": True,
}
_INNER: Fields = {"inner_norms": ("mlp",)}
VARIANTS: dict[str, Fields] = {
    "eva02_ti14": sized((192, 12, 3, 512), 14, EVA02),
    "eva02_s14": sized((384, 12, 6, 1024), 14, EVA02),
    "eva02_b14": sized((768, 12, 12, 2048), 14, EVA02, _INNER),
    "eva02_l14": sized((1024, 24, 16, 2730), 14, EVA02, _INNER),
}
# Towers of CLIP, without the pooling.
_CLIP: Fields = {
    **{key: EVA02[key] for key in ("rope", "swiglu", "without_bias", "gelu")},
    "inner_norms": ("attention", "mlp"),
}
# A pooling by attention, where there is one, is of all tokens in timm's class of these models.
_OF_ALL: Fields = {"map_prefix_tokens": True}
_MEAN: Fields = {**EXACT, "pooling": "gap", **NORM_LAST}
NAMES: Names = {
    **joined(
        of_timm(f"eva02_{WORDS[size]}_patch14_224", f"eva02_{size}14")
        for size in ("ti", "s", "b", "l")
    ),
    **architectures("eva_{}_patch14_196", "large", _MEAN, settings=_OF_ALL),
    **architectures("eva_{}_patch14_224", "giant", _MEAN, NO_KEY_BIAS, settings=_OF_ALL),
    **architectures("eva_{}_patch14_clip_224", "giant", EXACT, NO_KEY_BIAS, settings=_OF_ALL),
    **architectures("eva02_{}_patch16_clip_224", "base", _CLIP, {"mlp_dim": 2048}),
    **architectures("eva02_{}_patch14_clip_224", "large", _CLIP, {"mlp_dim": 2730}),
}
TIMM_IMAGES: TimmImages = (
    (r"eva(02)?_.*", OPENAI_PIXELS),
    (r"eva_giant_patch14_560.*|eva_giant_.*\.m30m.*", IMAGENET),
    (r"eva02_.*_(336|448)(\..*)?|eva_large_patch14_196.*", CENTER),
    (r"eva_(giant|large)_.*_(336|560).*|eva02_.*_448(\.\w*_ft_in22k\w*)?", WHOLE),
)
TIMM_OTHERS = {"eva02_enormous_patch14_clip_224": "norms after attention and MLP"}

# Published checkpoints, by timm
_EVA02 = Origin(TIMM, "https://arxiv.org/abs/2303.11331", classes=1000, licence="MIT")
_PRETRAINED = _EVA02._replace(options={"pooling": "gap"}, classes=None)
CARDS = (
    Published(_EVA02, "mim_in22k_ft_in1k", (
        ("eva02_ti14", "eva02_tiny_patch14_336.mim_in22k_ft_in1k", 336),
        ("eva02_s14", "eva02_small_patch14_336.mim_in22k_ft_in1k", 336),
        ("eva02_b14", "eva02_base_patch14_448.mim_in22k_ft_in1k", 448),
    )),
    Published(_EVA02, "mim_in22k_ft_in22k_in1k",
              (("eva02_b14", "eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", 448),)),
    Published(_EVA02, "mim_m38m_ft_in22k_in1k",
              (("eva02_l14", "eva02_large_patch14_448.mim_m38m_ft_in22k_in1k", 448, 90.05),)),
    Published(_PRETRAINED, "mim_in22k", of_size("eva02_{}_patch14_224.mim_in22k", {
        "eva02_ti14": "tiny", "eva02_s14": "small", "eva02_b14": "base",
    })),
    Published(_PRETRAINED, "mim_m38m", (("eva02_l14", "eva02_large_patch14_224.mim_m38m"),)),
)  # fmt: skip

FAMILY = Family(VARIANTS, NAMES, CARDS, timm_images=TIMM_IMAGES, timm_others=TIMM_OTHERS)
