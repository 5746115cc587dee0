"""What is known of a family of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

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
