"""Preprocessing that several families share; layouts, cards and names refer to it."""

from __future__ import annotations

import dataclasses

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
