"""ViT-5 (https://arxiv.org/abs/2602.08071)."""

from __future__ import annotations

from keras_vit.families.family import Family
from keras_vit.families.keys import Fields
from keras_vit.families.names import NO_QKV_BIAS, Name, Names, sized

# `models_vit5.py` in github.com/wangf3014/ViT-5. Its registers follow the patches, which changes no
# output: attention does not depend on the order of tokens.
VIT5: Fields = {
    "rope": {"register_base": 100.0},
    "num_registers": 4,
    "position_on_class_token": False,
    "norm": "rms",
    "qk_norm": True,
    "layer_scale": 1e-4,
    **NO_QKV_BIAS,
    "gelu": "exact",
}
VARIANTS: dict[str, Fields] = {
    "vit5_s16": sized("s", 16, VIT5),
    "vit5_b16": sized("b", 16, VIT5),
    "vit5_l16": sized("l", 16, VIT5),
    "vit5_xl16": sized((1152, 28, 16, 4608), 16, VIT5),
}
NAMES: Names = {  # of the authors: functions, and files
    f"vit5_{name}{ending}": Name(f"vit5_{size}16")
    for size, name in (("s", "small"), ("b", "base"), ("l", "large"), ("xl", "xlarge"))
    for ending in ("", "_patch16")
}

FAMILY = Family(VARIANTS, NAMES)
