"""Preprocessing that several families share; layouts, cards and names refer to it."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit.config import IMAGENET_STATISTICS, Preprocessing

# Statistics of OpenAI's CLIP, which EVA-02 and AIMv2 have too.
OPENAI = Preprocessing(
    mean=(122.7709383, 116.7460125, 104.09373615),
    std=(68.5005327, 66.6321579, 70.32316305),
    interpolation="bicubic",
)
OPENAI_CENTER = dataclasses.replace(OPENAI, crop_ratio=1.0, library="transformers")
# transformers: the whole image, or the centre of one resized to 8/7 of the crop.
SQUASHED = Preprocessing(library="transformers")
SHORTER_SIDE = dataclasses.replace(IMAGENET_STATISTICS, crop_ratio=0.875, library="transformers")
# torchvision, with which the authors of MAE and DINO evaluate, resizes as timm does.
TORCHVISION = dataclasses.replace(SHORTER_SIDE, library="timm")

# Fields of timm's preprocessing, by a pattern of names with their tags; of those that fit, later
# ones override. What none says: a mean and deviation of 127.5, the central 0.9, bicubic.
TimmImages = tuple[tuple[str, dict[str, Any]], ...]
HALF: dict[str, Any] = {"mean": (127.5,), "std": (127.5,)}
IMAGENET: dict[str, Any] = {"mean": IMAGENET_STATISTICS.mean, "std": IMAGENET_STATISTICS.std}
OPENAI_PIXELS: dict[str, Any] = {"mean": OPENAI.mean, "std": OPENAI.std}
CENTER: dict[str, Any] = {"crop_ratio": 1.0, "crop_mode": "center"}
WHOLE: dict[str, Any] = {"crop_ratio": None, "crop_mode": "center"}
