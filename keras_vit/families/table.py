"""The list of families.

A new family is a file with its `FAMILY`, and a word in both lists below.
"""

from keras_vit.families import (
    aimv2,
    beit,
    bit,
    clip,
    cordonnier,
    deit,
    dino,
    eva,
    google,
    mae,
    perception,
    siglip,
    timm,
    vit5,
)

FAMILIES = tuple(
    module.FAMILY
    for module in (
        google, bit, cordonnier, deit, mae, dino, clip, siglip, eva, beit, perception, aimv2, vit5,
        timm,
    )
)  # fmt: skip
