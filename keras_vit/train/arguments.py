"""Checks of the arguments of `fine_tune`, `pretrain` and `transfer`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from keras_vit.config import field_names, field_value
from keras_vit.errors import needing_tensorflow
from keras_vit.runtime.model import Model
from keras_vit.train.hyperparameters import Recipe


def check_types(model: Any, recipe: Any, **sets: Any) -> None:
    """Checks that images are an `ImageSet`, and that model and recipe are more than names.

    Raises:
        TypeError: If they are not; the message says how to make them.
    """
    with needing_tensorflow("Training on images"):
        from keras_vit.data.image_set import ImageSet

    if isinstance(model, str):
        raise TypeError(
            f"Expected a model. Received: the name {model!r}. Build it: "
            f"`keras_vit.create_model({model!r}, weights=...)`."
        )
    if not isinstance(recipe, Recipe):
        found = f"the name {recipe!r}" if isinstance(recipe, str) else f"a {type(recipe).__name__}"
        name = recipe if isinstance(recipe, str) else "finetune_pets"
        raise TypeError(
            f"Expected a `Recipe`. Received: {found}. Find one: "
            f"`keras_vit.train.find_recipe({name!r})`."
        )
    for name, images in sets.items():
        if images is None or isinstance(images, ImageSet):
            continue
        received = f"a {type(images).__name__}"
        if isinstance(images, str | os.PathLike):
            received = f"the path {str(images)!r}"
            advice = f"`keras_vit.read_folder({str(images)!r})`"
        elif isinstance(images, tuple | list | np.ndarray):
            advice = "`keras_vit.read_arrays(x, y)`, with pixels in [0, 255] and integer labels"
        else:
            advice = (
                "`keras_vit.read_folder`, `read_tfds` or `read_records`, whose images are shuffled "
                "and augmented as the recipe says; batches of your own go to `model.fit`"
            )
        raise TypeError(
            f"`{name}` must be an `ImageSet`. Received: {received}. Make one: {advice}."
        )


def check_model(model: Model, recipe: Recipe) -> None:
    """Checks that a model has the size, head bias and rates of a recipe.

    Raises:
        ValueError: If it does not; the message lists all differences.
    """
    config = model.config
    if config is None:
        return
    wrong = [
        f"{field}={field_value(config, field)}, not {value}"
        for field, value in recipe.model_options.items()
        if field in field_names(config) and field_value(config, field) != value
    ]
    size = recipe.image_size
    own = config.input_shape[:2]
    if size is not None and own not in ((None, None), (size, size)):
        wrong.append(f"image_size={own}, not {(size, size)}")
    if wrong:
        raise ValueError(
            f"The model does not fit the recipe: {'; '.join(wrong)}. Build it with "
            "`create_model(..., **recipe.model_options)`, or change the recipe with "
            "`recipe.replace`."
        )
