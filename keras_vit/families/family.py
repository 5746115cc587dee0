"""What is known of a family of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keras_vit.families import keys
from keras_vit.families.cards import Published
from keras_vit.families.keys import Fields
from keras_vit.families.names import Name
from keras_vit.families.preprocessing import TimmImages
from keras_vit.families.rules import Layout


@dataclasses.dataclass(frozen=True)
class Family:
    """Tables of a family.

    Args:
        variants: Fields of its architectures, by the names of this package.
        names: Its names elsewhere, without image sizes.
        cards: Its published checkpoints.
        model_types: Its models in transformers, by `model_type`.
        processors: Its image processors in transformers, by name without the ending.
        timm_models: Its models that timm makes by arguments.
        doubts: What its names in timm leave open.
        layouts: Names and conventions of its files' arrays.
        features: What models of this package do not compute, by patterns of names of arrays that
            their layout does not know.
        timm_images: Preprocessing of its names in timm.
        timm_others: What is unlike a plain ViT in names of timm whose arrays do not show it.
        text_layouts: Names of the arrays of its text towers.
        text_types: Its models of images and texts in transformers, by `model_type`.
        text_others: Text towers that are not loaded, by patterns of names of their arrays: what
            they are, and what to do.
    """

    variants: Mapping[str, Fields] = dataclasses.field(default_factory=dict)
    names: Mapping[str, Name] = dataclasses.field(default_factory=dict)
    cards: tuple[Published, ...] = ()
    model_types: Mapping[str, keys.ModelType] = dataclasses.field(default_factory=dict)
    processors: Mapping[str, keys.Processor] = dataclasses.field(default_factory=dict)
    timm_models: tuple[keys.TimmModel, ...] = ()
    doubts: tuple[keys.Doubt, ...] = ()
    layouts: tuple[Layout, ...] = ()
    features: tuple[tuple[str, str], ...] = ()
    timm_images: TimmImages = ()
    timm_others: Mapping[str, str] = dataclasses.field(default_factory=dict)
    text_layouts: tuple[Layout, ...] = ()
    text_types: Mapping[str, keys.TextType] = dataclasses.field(default_factory=dict)
    text_others: tuple[tuple[str, str], ...] = ()
