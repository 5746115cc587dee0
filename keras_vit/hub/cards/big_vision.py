"""Checkpoints of google-research/big_vision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keras_vit.config import UNIT_RANGE, Preprocessing
from keras_vit.hub.cards.card import PAPERS, Card

_SOURCE = "https://github.com/google-research/big_vision"
_TIMM = "timm's results-imagenet.csv (exact GELU, bicubic, centre crop)"
_DEIT_README = "README_revenge.md of facebookresearch/deit (the weights before conversion)"

# Positions have no row for the class token there.
_TOKEN = {"position_on_class_token": False}
_SIGLIP = {"pooling": "map", "class_token": False, "position_on_class_token": False}
# Hidden layer before the head, fixed positions, mean of the patch tokens.
_PLAIN = {
    "pooling": "gap",
    "class_token": False,
    "position_embedding": "sincos_2d",
    "pre_logits": 384,
}

_SHORTER_SIDE_256 = Preprocessing(interpolation="area", crop_ratio=224 / 256)
_SEVEN_EIGHTHS = Preprocessing(interpolation="bilinear", crop_ratio=7 / 8)

# "Better plain ViT baselines": epochs and top-1.
_PLAIN_EPOCHS = ((90, 76.5), (150, None), (300, 80.0))

# FlexiViT, recommended first: variant, file, epochs, top-1 at 240 pixels.
_FLEXIVIT_IN1K = (
    ("vit_l16", "flexivit_l_i1k", 1200, 85.646),
    ("vit_b16", "flexivit_b_i1k", 1200, 84.678),
    ("vit_s16", "flexivit_s_i1k", 1200, 82.576),
    ("vit_l16", "flexivit_l_i1k_600ep", 600, 85.530),
    ("vit_l16", "flexivit_l_i1k_300ep", 300, 85.284),
    ("vit_l16", "flexivit_l_i1k_90ep", 90, None),
    ("vit_b16", "flexivit_b_i1k_600ep", 600, 84.564),
    ("vit_b16", "flexivit_b_i1k_300ep", 300, 84.402),
    ("vit_b16", "flexivit_b_i1k_90ep", 90, None),
    ("vit_s16", "flexivit_s_i1k_600ep", 600, 82.388),
    ("vit_s16", "flexivit_s_i1k_300ep", 300, 82.170),
    ("vit_s16", "flexivit_s_i1k_90ep", 90, None),
)
_THIRTY = {"patch_size": (30, 30)}
_FLEXIVIT_IN21K: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("vit_b16", "flexivit_b_i21k_1000ep", "flexivit_in21k_1000ep_240", {}),
    ("vit_b16", "flexivit_b_i21k_300ep", "flexivit_in21k_300ep_240", {}),
    ("vit_b16", "flexivit_b_i21k_90ep", "flexivit_in21k_90ep_240", {}),
    ("vit_b16", "vit_b16_i21k_300ep", "flexivit_baseline_in21k_300ep_240", {}),
    (
        "vit_b32",
        "vit_b30_i21k_300ep",
        "flexivit_baseline_in21k_300ep_240",
        {"patch_size": (30, 30)},
    ),
)

# DeiT III: size, image size, top-1 trained on ImageNet, and pre-trained on ImageNet-22k.
_DEIT3 = (
    ("vit_s16", "small", 224, 81.4, 83.1),
    ("vit_s16", "small", 384, 83.4, 84.8),
    ("vit_b16", "base", 224, 83.8, 85.7),
    ("vit_b16", "base", 384, 85.0, 86.7),
    ("vit_l16", "large", 224, 84.9, 87.0),
    ("vit_l16", "large", 384, 85.8, 87.7),
)

# Image towers: variant, tag, file, image size.
_SIGLIP_FILES = (
    ("vit_b16", "siglip_webli", "webli_en_b16_224_63724782", 224),
    ("vit_b16", "siglip_webli_256", "webli_en_b16_256_60500360", 256),
    ("vit_b16", "siglip_webli_384", "webli_en_b16_384_68578854", 384),
    ("vit_b16", "siglip_webli_512", "webli_en_b16_512_68580893", 512),
    ("vit_l16", "siglip_webli_256", "webli_en_l16_256_60552751", 256),
    ("vit_l16", "siglip_webli_384", "webli_en_l16_384_63634585", 384),
    ("vit_so400m14", "siglip_webli", "webli_en_so400m_224_57633886", 224),
    ("vit_so400m14", "siglip_webli_378", "webli_en_so400m_384_58765454", 378),
    ("vit_b16", "siglip_webli_i18n_256", "webli_i18n_b16_256_66117334", 256),
    ("vit_so400m16", "siglip_webli_i18n_256", "webli_i18n_so400m_16_256_78061115", 256),
)
_SIGLIP2_FILES = (
    ("vit_b32", "siglip2_webli_256", "siglip2_b32_256", 256),
    ("vit_b16", "siglip2_webli", "siglip2_b16_224", 224),
    ("vit_b16", "siglip2_webli_256", "siglip2_b16_256", 256),
    ("vit_b16", "siglip2_webli_384", "siglip2_b16_384", 384),
    ("vit_b16", "siglip2_webli_512", "siglip2_b16_512", 512),
    ("vit_l16", "siglip2_webli_256", "siglip2_l16_256", 256),
    ("vit_l16", "siglip2_webli_384", "siglip2_l16_384", 384),
    ("vit_l16", "siglip2_webli_512", "siglip2_l16_512", 512),
    ("vit_so400m14", "siglip2_webli", "siglip2_so400m14_224", 224),
    ("vit_so400m14", "siglip2_webli_378", "siglip2_so400m14_384", 378),
    ("vit_so400m16", "siglip2_webli_256", "siglip2_so400m16_256", 256),
    ("vit_so400m16", "siglip2_webli_384", "siglip2_so400m16_384", 384),
    ("vit_so400m16", "siglip2_webli_512", "siglip2_so400m16_512", 512),
    ("vit_giantopt16", "siglip2_webli_256", "siglip2_g-opt16_256", 256),
    ("vit_giantopt16", "siglip2_webli_384", "siglip2_g-opt16_384", 384),
)
_CUT_OFF = (
    "Made for 384 pixels, of which patches of 14 cover 378: the official code leaves the last six "
    "rows and columns out."
)
_TWO_TOWERS = "The file holds a text tower too, which is left out."


def _card(variant: str, tag: str, file: str, image_size: int, **fields: Any) -> Card:
    fields = {"licence": "Apache-2.0", "source": _SOURCE, **fields}
    return Card(
        variant,
        tag,
        f"gs://big_vision/{file}.npz",
        "big_vision",
        image_size=(image_size, image_size),
        **fields,
    )


def _plain() -> list[Card]:
    return [
        _card("vit_s16", f"plain_in1k_{epochs}ep", f"vit_s16_i1k_{epochs}ep", 224, top1=top1,
              top1_source="the paper" if top1 else None, options=_PLAIN, paper=PAPERS["plain"],
              preprocessing=_SHORTER_SIDE_256)
        for epochs, top1 in _PLAIN_EPOCHS
    ]  # fmt: skip


def _flexivit() -> list[Card]:
    fields = {"paper": PAPERS["flexivit"], "preprocessing": _SEVEN_EIGHTHS}
    cards = [
        _card(variant, f"flexivit_in1k_{epochs}ep_240", f"flexivit/{file}", 240, top1=top1,
              top1_source=_TIMM if top1 else None, options=_TOKEN, flexible=True, **fields)
        for variant, file, epochs, top1 in _FLEXIVIT_IN1K
    ]  # fmt: skip
    return cards + [
        _card(variant, tag, f"flexivit/{file}", 240, classes=21843, options={**_TOKEN, **options},
              flexible="baseline" not in tag, **fields)
        for variant, file, tag, options in _FLEXIVIT_IN21K
    ]  # fmt: skip


def _deit3() -> list[Card]:
    cards = []
    for variant, name, size, in1k, in21k in _DEIT3:
        suffix = "" if size == 224 else f"_{size}"
        for data, tag, top1 in (("1k", "in1k", in1k), ("21k", "in21k_ft_in1k", in21k)):
            cards.append(
                _card(variant, f"bv_deit3_{tag}{suffix}",
                      f"zoo/deit3/bv_deit_3_{name}_{size}_{data}", size, options=_TOKEN,
                      top1=top1, top1_source=_DEIT_README, paper=PAPERS["deit3"],
                      preprocessing=_SEVEN_EIGHTHS if size == 224 else UNIT_RANGE,
                      note="Its first layer is changed to take images in [-1, 1].")
            )  # fmt: skip
    return cards


def _siglip(files: Iterable[tuple[str, str, str, int]], paper: str, licence: str) -> list[Card]:
    return [
        _card(variant, tag, f"{paper}/{file}", size, classes=None, options=_SIGLIP,
              paper=PAPERS[paper], licence=licence,
              note=f"{_TWO_TOWERS} {_CUT_OFF}" if size == 378 else _TWO_TOWERS)
        for variant, tag, file, size in files
    ]  # fmt: skip


BIG_VISION_CARDS: tuple[Card, ...] = (
    *_plain(),
    *_flexivit(),
    *_deit3(),
    *_siglip(_SIGLIP_FILES, "siglip", "Apache-2.0"),
    *_siglip(_SIGLIP2_FILES, "siglip2", "Apache-2.0"),
)
