"""MAE and other ViTs pre-trained on hidden patches: I-JEPA, MSN."""

from __future__ import annotations

from keras_vit.families import keys
from keras_vit.families.cards import HUB, HUB_EXACT, TIMM, Origin, Published, of_size
from keras_vit.families.family import Family
from keras_vit.families.names import EXACT, GAP, Name, Names, architectures
from keras_vit.families.preprocessing import CENTER, IMAGENET, TORCHVISION, TimmImages

# I-JEPA is https://arxiv.org/abs/2301.08243, MSN https://arxiv.org/abs/2204.07141.
NAMES: Names = {
    **architectures("vit_{}_patch14_gap_224", "huge", EXACT, GAP),
    **architectures("vit_{}_patch16_gap_448", "huge", EXACT, GAP),
    **architectures("vit_{}_patch16_gap_224", "giant", EXACT, GAP),
    "facebook/ijepa_vith14_1k": Name("vit_huge_patch14_gap"),
    "facebook/ijepa_vith14_22k": Name("vit_huge_patch14_gap"),
    "facebook/ijepa_vith16_1k": Name("vit_huge_patch16_gap", {"image_size": 448}),
    "facebook/ijepa_vitg16_22k": Name("vit_giant_patch16_gap"),
}
TIMM_IMAGES: TimmImages = (
    (r"vit_(huge_patch1[46]|giant_patch16)_gap_.*|.*\.mae", IMAGENET),
    (r"vit_huge_patch16_gap_448.*", CENTER),
)

# transformers
MODEL_TYPES = {
    "vit_mae": keys.ModelType(
        {
            **keys.VIT,
            **keys.harmless(
                "decoder_num_attention_heads decoder_hidden_size decoder_num_hidden_layers "
                "decoder_intermediate_size mask_ratio norm_pix_loss"
            ),
        },
        keys.DEFAULTS,
    ),
    "ijepa": keys.ModelType(keys.VIT, keys.DEFAULTS),
    "vit_msn": keys.ModelType(keys.VIT, {**keys.DEFAULTS, "layer_norm_eps": 1e-6}),
}

# Published checkpoints. The authors evaluate with torchvision.
_TIMM_MAE = Origin(TIMM, "https://arxiv.org/abs/2111.06377", licence="CC-BY-NC-4.0")
_HUB_MAE = _TIMM_MAE._replace(publisher=HUB, options=HUB_EXACT, preprocessing=TORCHVISION)
CARDS = (
    Published(_TIMM_MAE, "mae", of_size("vit_{}_224.mae", {
        "vit_b16": "base_patch16", "vit_l16": "large_patch16", "vit_h14": "huge_patch14",
    })),
    Published(_HUB_MAE, "mae", of_size("facebook/vit-mae-{}", {
        "vit_b16": "base", "vit_l16": "large", "vit_h14": "huge",
    })),
)  # fmt: skip

FAMILY = Family({}, NAMES, CARDS, MODEL_TYPES, timm_images=TIMM_IMAGES)
