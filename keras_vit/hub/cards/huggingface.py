"""Checkpoints that their authors publish on the Hugging Face hub, in transformers' names."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, Preprocessing
from keras_vit.hub.cards.card import PAPERS, Card

_SOURCE = "https://huggingface.co"
_DEIT_README = "README_deit.md of facebookresearch/deit"
_VIT_OPTIONS = {"gelu": "exact", "norm_epsilon": 1e-12}
_POOLER = (
    "The file has no head. Its pooler, the hidden layer of pre-training, is not part of the "
    "features."
)


# As the image processors in the repositories: squashed, squashed to 8/7 of the crop, or with the
# shorter side at 8/7 of it. The authors of MAE and DINO evaluate with torchvision.
_SQUASHED = Preprocessing(library="transformers")
_BICUBIC = dataclasses.replace(_SQUASHED, interpolation="bicubic")
_DINOV2_CROP = dataclasses.replace(
    IMAGENET_STATISTICS, crop_ratio=224 / 256, library="transformers"
)
_DEIT_CROP = dataclasses.replace(_DINOV2_CROP, crop_mode="squash")
_TORCHVISION = dataclasses.replace(_DINOV2_CROP, library="timm")


@dataclasses.dataclass(frozen=True)
class _Family:
    """What the files of one origin share."""

    paper: str
    options: dict[str, Any]
    preprocessing: Preprocessing = _SQUASHED
    classes: int | None = 1000
    licence: str = "Apache-2.0"
    note: str | None = None


_VIT = _Family("vit", _VIT_OPTIONS)
_HYBRID = dataclasses.replace(
    _VIT, preprocessing=dataclasses.replace(_BICUBIC, crop_ratio=1.0)
)  # as timm, from which it was converted
_VIT_IN21K = _Family("vit", _VIT_OPTIONS, classes=None, note=_POOLER)
_DEIT = _Family("deit", _VIT_OPTIONS, _DEIT_CROP)
_DISTILLED = _Family("deit", {**_VIT_OPTIONS, "distillation_token": True}, _DEIT_CROP)
_MAE = _Family("mae", _VIT_OPTIONS, _TORCHVISION, None, "CC-BY-NC-4.0")
_DINO = _Family("dino", _VIT_OPTIONS, _TORCHVISION, None)
_DINOV2 = _Family("dinov2", {"gelu": "exact", "layer_scale": 1e-5}, _DINOV2_CROP, None)
_REGISTERS = _Family(
    "registers", {**_DINOV2.options, "num_registers": 4}, _DINOV2_CROP, None
)  # positions of the class token are stored, unlike in timm's copy
_TOWER = "The file holds a text tower too, which is left out."
_MAP = {"pooling": "map", "class_token": False, "position_on_class_token": False}
_SIGLIP = _Family("siglip", {"gelu": "tanh", **_MAP}, _BICUBIC, None, note=_TOWER)
_SIGLIP2 = dataclasses.replace(_SIGLIP, paper="siglip2", preprocessing=_SQUASHED)

# Family; variant, tag, repository, image size, top-1.
_ROWS: tuple[tuple[_Family, tuple[tuple[Any, ...], ...]], ...] = (
    (
        _VIT,
        (
            ("vit_b16", "orig_in21k_ft_in1k", "google/vit-base-patch16-224", 224, None),
            ("vit_b16", "orig_in21k_ft_in1k", "google/vit-base-patch16-384", 384, None),
            ("vit_b32", "orig_in21k_ft_in1k", "google/vit-base-patch32-384", 384, None),
            ("vit_l16", "orig_in21k_ft_in1k", "google/vit-large-patch16-224", 224, None),
            ("vit_l16", "orig_in21k_ft_in1k", "google/vit-large-patch16-384", 384, None),
            ("vit_l32", "orig_in21k_ft_in1k", "google/vit-large-patch32-384", 384, None),
        ),
    ),
    (
        _HYBRID,
        (("r50_vit_b16", "orig_in21k_ft_in1k", "google/vit-hybrid-base-bit-384", 384, None),),
    ),
    (
        _VIT_IN21K,
        (
            ("vit_b16", "orig_in21k", "google/vit-base-patch16-224-in21k", 224, None),
            ("vit_b32", "orig_in21k", "google/vit-base-patch32-224-in21k", 224, None),
            ("vit_l16", "orig_in21k", "google/vit-large-patch16-224-in21k", 224, None),
            ("vit_l32", "orig_in21k", "google/vit-large-patch32-224-in21k", 224, None),
            ("vit_h14", "orig_in21k", "google/vit-huge-patch14-224-in21k", 224, None),
        ),
    ),
    (
        _DEIT,
        (
            ("vit_ti16", "deit_in1k", "facebook/deit-tiny-patch16-224", 224, 72.2),
            ("vit_s16", "deit_in1k", "facebook/deit-small-patch16-224", 224, 79.9),
            ("vit_b16", "deit_in1k", "facebook/deit-base-patch16-224", 224, 81.8),
            ("vit_b16", "deit_in1k", "facebook/deit-base-patch16-384", 384, 82.9),
        ),
    ),
    (
        _DISTILLED,
        (
            (
                "vit_ti16",
                "deit_distilled_in1k",
                "facebook/deit-tiny-distilled-patch16-224",
                224,
                74.5,
            ),
            (
                "vit_s16",
                "deit_distilled_in1k",
                "facebook/deit-small-distilled-patch16-224",
                224,
                81.2,
            ),
            (
                "vit_b16",
                "deit_distilled_in1k",
                "facebook/deit-base-distilled-patch16-224",
                224,
                83.4,
            ),
            (
                "vit_b16",
                "deit_distilled_in1k",
                "facebook/deit-base-distilled-patch16-384",
                384,
                85.2,
            ),
        ),
    ),
    (
        _MAE,
        (
            ("vit_b16", "mae", "facebook/vit-mae-base", 224, None),
            ("vit_l16", "mae", "facebook/vit-mae-large", 224, None),
            ("vit_h14", "mae", "facebook/vit-mae-huge", 224, None),
        ),
    ),
    (
        _DINO,
        (
            ("vit_s16", "dino", "facebook/dino-vits16", 224, None),
            ("vit_s8", "dino", "facebook/dino-vits8", 224, None),
            ("vit_b16", "dino", "facebook/dino-vitb16", 224, None),
            ("vit_b8", "dino", "facebook/dino-vitb8", 224, None),
        ),
    ),
    (
        _DINOV2,
        (
            ("vit_s14", "dinov2_lvd142m", "facebook/dinov2-small", 518, None),
            ("vit_b14", "dinov2_lvd142m", "facebook/dinov2-base", 518, None),
            ("vit_l14", "dinov2_lvd142m", "facebook/dinov2-large", 518, None),
        ),
    ),
    (
        _REGISTERS,
        (
            ("vit_s14", "dinov2_reg4_lvd142m", "facebook/dinov2-with-registers-small", 518, None),
            ("vit_b14", "dinov2_reg4_lvd142m", "facebook/dinov2-with-registers-base", 518, None),
            ("vit_l14", "dinov2_reg4_lvd142m", "facebook/dinov2-with-registers-large", 518, None),
        ),
    ),
    (
        _SIGLIP,
        (
            ("vit_b16", "siglip_webli", "google/siglip-base-patch16-224", 224, None),
            ("vit_b16", "siglip_webli", "google/siglip-base-patch16-256", 256, None),
            ("vit_b16", "siglip_webli", "google/siglip-base-patch16-384", 384, None),
            ("vit_b16", "siglip_webli", "google/siglip-base-patch16-512", 512, None),
            (
                "vit_b16",
                "siglip_webli_i18n",
                "google/siglip-base-patch16-256-multilingual",
                256,
                None,
            ),
            ("vit_l16", "siglip_webli", "google/siglip-large-patch16-256", 256, None),
            ("vit_l16", "siglip_webli", "google/siglip-large-patch16-384", 384, None),
            ("vit_so400m14", "siglip_webli", "google/siglip-so400m-patch14-224", 224, None),
        ),
    ),
    (
        _SIGLIP2,
        (
            ("vit_b32", "siglip2_webli", "google/siglip2-base-patch32-256", 256, None),
            ("vit_b16", "siglip2_webli", "google/siglip2-base-patch16-224", 224, None),
            ("vit_b16", "siglip2_webli", "google/siglip2-base-patch16-256", 256, None),
            ("vit_b16", "siglip2_webli", "google/siglip2-base-patch16-384", 384, None),
            ("vit_b16", "siglip2_webli", "google/siglip2-base-patch16-512", 512, None),
            ("vit_l16", "siglip2_webli", "google/siglip2-large-patch16-384", 384, None),
            ("vit_l16", "siglip2_webli", "google/siglip2-large-patch16-512", 512, None),
            ("vit_so400m14", "siglip2_webli", "google/siglip2-so400m-patch14-224", 224, None),
            ("vit_so400m16", "siglip2_webli", "google/siglip2-so400m-patch16-512", 512, None),
            ("vit_giantopt16", "siglip2_webli", "google/siglip2-giant-opt-patch16-256", 256, None),
            ("vit_giantopt16", "siglip2_webli", "google/siglip2-giant-opt-patch16-384", 384, None),
        ),
    ),
)


def _card(family: _Family, row: tuple[Any, ...]) -> Card:
    variant, tag, repository, size, top1 = row
    return Card(
        variant,
        f"hf_{tag}" + ("" if size == 224 else f"_{size}"),
        f"hf://{repository}",
        "transformers",
        image_size=(size, size),
        classes=family.classes,
        preprocessing=family.preprocessing,
        options=family.options,
        paper=PAPERS[family.paper],
        licence=family.licence,
        source=f"{_SOURCE}/{repository}",
        top1=top1,
        top1_source=_DEIT_README if top1 else None,
        note=family.note,
    )


HUGGING_FACE_CARDS: tuple[Card, ...] = tuple(
    _card(family, row) for family, rows in _ROWS for row in rows
)
