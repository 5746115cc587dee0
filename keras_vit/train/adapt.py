"""Adaptation of a trained model to other classes and another image size."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, cast

import keras
import numpy as np

from keras_vit.checks import pair
from keras_vit.config import ResNetConfig, ViTConfig
from keras_vit.create import build
from keras_vit.resize import resize_positions
from keras_vit.trainers.distributed import is_distributed
from keras_vit.trainers.model import Model
from keras_vit.weights.matching import model_variables

POSITIONS = "position_embedding/embedding"
HEADS = ("head", "head_distillation")  # as they are built


def adapt_model(
    model: Model,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    **options: Any,
) -> Model:
    """Copies a trained model with a new head, for images of another size.

    As in section 3.2 of the paper, the whole head with its hidden layer is replaced by one dense
    layer of zeros, and positions are resized to the grid of the new image size. The method of
    resizing is `model.config.position_resize`, which loading sets to that of the checkpoint's
    project.

    Args:
        model: A model of `create_model`, `build_vit` or `build_resnet`; it is not changed.
        classes: Outputs of the new head; `None` keeps the number, not the head.
        image_size: Pixels along (height, width); `None` keeps it.
        **options: Other fields of the configuration, such as `dropout_rate`.

    Returns:
        A new `keras_vit.Model`, made under the strategy of the old one.

    Raises:
        ValueError: If the model is not one of this package, or its weights do not fit another size.

    Example:

    >>> model = keras_vit.ViTTi16(weights=None, classes=1000)
    >>> keras_vit.adapt_model(model, classes=37, image_size=64).output_shape
    (None, 37)
    """
    old = getattr(model, "config", None)
    if not isinstance(old, (ViTConfig, ResNetConfig)):
        raise ValueError(
            f"Only models of this package can be adapted. Received: {type(model).__name__} "
            f"{model.name!r}. Adapt what it was built on, then build it again."
        )
    config = _new_config(old, classes, image_size, options)
    with scope_of(model):
        new = build(config, name=model.name)
        _carry_over(model, new)
    return new


def scope_of(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Returns the scope of the strategy that a model was made under, or an empty one."""
    return model.distribute_strategy.scope() if is_distributed(model) else contextlib.nullcontext()


def _new_config(
    old: ViTConfig | ResNetConfig,
    classes: int | None,
    image_size: int | tuple[int, int] | None,
    options: dict[str, Any],
) -> ViTConfig | ResNetConfig:
    changes: dict[str, Any] = dict(options)
    changes["classes"] = old.classes if classes is None else classes
    if changes["classes"] is None:
        raise ValueError("The model has no head. Pass `classes` to add one.")
    changes.setdefault("head_bias", 0.0)
    changes["classifier_activation"] = None
    if isinstance(old, ViTConfig):
        changes["pre_logits"] = None
        if old.pooling is None:
            changes["pooling"] = "token" if old.class_token else "gap"
    if image_size is not None:
        changes["image_size"] = pair("image_size", image_size)
    return dataclasses.replace(old, **changes)


def _carry_over(model: Model, new: Model) -> None:
    """Copies the weights except those of heads; positions are resized."""
    source = {variable.path: variable for variable in model_variables(model)}
    values, problems = {}, []
    for variable in new.weights:
        path = variable.path
        if "seed_generator" in path or path.split("/")[0] in HEADS:
            continue
        if path not in source:
            problems.append(f"{path} is not in the model")
        else:
            value = np.asarray(source[path])
            if path == POSITIONS and value.shape != tuple(variable.shape):
                value = _resized(value, cast(ViTConfig, model.config), cast(ViTConfig, new.config))
            values[path] = value
            if value.shape != tuple(variable.shape):
                problems.append(f"{path} is {value.shape}, and must be {tuple(variable.shape)}")
    if problems:
        rest = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(
            f"The weights of {model.name!r} do not fit the new configuration: "
            f"{'; '.join(problems[:5])}{rest}. Change nothing but classes, image_size and rates."
        )
    for variable in new.weights:
        if variable.path in values:
            variable.assign(values[variable.path])


def _resized(table: np.ndarray, old: ViTConfig, new: ViTConfig) -> np.ndarray:
    prefix = table.shape[1] - old.num_patches
    patches = resize_positions(table[:, prefix:], old.grid, new.grid, new.position_resize)
    return np.concatenate((table[:, :prefix], patches), axis=1)
