"""What is known of a family of models, and the list of all families."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keras_vit.families import (
    aimv2,
    beit,
    bit,
    clip,
    deit,
    dino,
    eva,
    google,
    mae,
    perception,
    siglip,
    timm,
)
from keras_vit.families.cards import Published
from keras_vit.families.keys import Doubt, ModelType, Processor, TimmModel


@dataclasses.dataclass(frozen=True)
class Family:
    """Tables of a family.

    Args:
        cards: Its published checkpoints.
        model_types: Its models in transformers, by `model_type`.
        processors: Its image processors in transformers, by name without the ending.
        timm_models: Its models that timm makes by arguments.
        doubts: What its names in timm leave open.
    """

    cards: tuple[Published, ...] = ()
    model_types: Mapping[str, ModelType] = dataclasses.field(default_factory=dict)
    processors: Mapping[str, Processor] = dataclasses.field(default_factory=dict)
    timm_models: tuple[TimmModel, ...] = ()
    doubts: tuple[Doubt, ...] = ()


FAMILIES: tuple[Family, ...] = (
    Family(google.CARDS, google.MODEL_TYPES, google.PROCESSORS, google.TIMM_MODELS),
    Family(bit.CARDS, bit.MODEL_TYPES, bit.PROCESSORS, bit.TIMM_MODELS),
    Family(deit.CARDS, deit.MODEL_TYPES, deit.PROCESSORS, deit.TIMM_MODELS),
    Family(mae.CARDS, mae.MODEL_TYPES),
    Family(dino.CARDS, dino.MODEL_TYPES, dino.PROCESSORS),
    Family(clip.CARDS, clip.MODEL_TYPES, clip.PROCESSORS, doubts=clip.DOUBTS),
    Family(siglip.CARDS, siglip.MODEL_TYPES, siglip.PROCESSORS),
    Family(eva.CARDS),
    Family(beit.CARDS, beit.MODEL_TYPES, beit.PROCESSORS, beit.TIMM_MODELS),
    Family(perception.CARDS),
    Family(aimv2.CARDS, aimv2.MODEL_TYPES),
    Family(timm.CARDS, timm_models=timm.TIMM_MODELS),
)
