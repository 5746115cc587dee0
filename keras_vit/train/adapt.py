"""A trained model for other classes, and images of another size: how the paper transfers."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np

from keras_vit.checks import pair
from keras_vit.config import ResNetConfig, ViTConfig
from keras_vit.create import build
from keras_vit.resize import resize_positions
from keras_vit.trainers.model import Model

_POSITIONS = "position_embedding/embedding"
_HEADS = ("head", "head_distillation")  # as they are built


def adapt_model(
    model: Model,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    **options: Any,
) -> Model:
    """A copy of a trained model with a fresh head, for images of another size.

    As in the paper, section 3.2: the whole head, with its hidden layer, makes way for one dense
    layer of zeros, and positions are interpolated to the grid of the new size.

    Args:
        model: A model of `create_model`, `build_vit` or `build_resnet`; it stays as it is.
        classes: Outputs of the new head; `None` keeps their number, not the head.
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


def scope_of(model: Any) -> Any:
    """The scope of the strategy that a model was made under, or none."""
    strategy = getattr(model, "_distribute_strategy", None)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def _new_config(old: Any, classes: Any, image_size: Any, options: dict[str, Any]) -> Any:
    changes: dict[str, Any] = dict(options)
    changes["classes"] = old.classes if classes is None else classes
    if changes["classes"] is None:
        raise ValueError("The model has no head. Pass `classes`, to give it one.")
    changes.setdefault("head_bias", 0.0)
    changes["classifier_activation"] = None
    if isinstance(old, ViTConfig):
        changes["pre_logits"] = None
        if old.pooling is None:
            changes["pooling"] = "token" if old.class_token else "gap"
    if image_size is not None:
        changes["image_size"] = pair("image_size", image_size)
    return dataclasses.replace(old, **changes)


def _carry_over(model: Any, new: Any) -> None:
    """Assigns what the old model has; heads stay as they were built."""
    source = {variable.path: variable for variable in model.weights}
    values, problems = {}, []
    for variable in new.weights:
        path = variable.path
        if "seed_generator" in path or path.split("/")[0] in _HEADS:
            continue
        if path not in source:
            problems.append(f"{path} is not in the model")
        else:
            value = np.asarray(source[path])
            if path == _POSITIONS and value.shape != tuple(variable.shape):
                value = _resized(value, model.config, new.config)
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
    cells = resize_positions(table[:, prefix:], old.grid, new.grid)
    return np.concatenate((table[:, :prefix], cells), axis=1)
