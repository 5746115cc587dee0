"""EVA-02."""

from __future__ import annotations

from keras_vit.families.cards import TIMM, Origin, Published
from keras_vit.families.family import Family

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
    Published(_PRETRAINED, "mim_in22k", (
        ("eva02_ti14", "eva02_tiny_patch14_224.mim_in22k"),
        ("eva02_s14", "eva02_small_patch14_224.mim_in22k"),
        ("eva02_b14", "eva02_base_patch14_224.mim_in22k"),
    )),
    Published(_PRETRAINED, "mim_m38m", (("eva02_l14", "eva02_large_patch14_224.mim_m38m"),)),
)  # fmt: skip

FAMILY = Family(CARDS)
