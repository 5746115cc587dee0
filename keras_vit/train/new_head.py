"""Adaptation of a trained model to other classes and another image size."""

from __future__ import annotations

import contextlib
from typing import Any

import keras

from keras_vit.config import ResNetConfig, ViTConfig, replace_fields
from keras_vit.create import build
from keras_vit.models.resizing import copy_weights, with_size
from keras_vit.runtime.distributed import is_distributed
from keras_vit.runtime.model import Model

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
        **options: Other fields of the configuration, such as `dropout_rate`. With `pre_logits` the
            new head has a hidden layer, with `classifier_activation` an activation.

    Returns:
        A new `keras_vit.Model` that is not compiled, made under the strategy of the old one and of
        the global dtype policy. Its layers are frozen where those of the old one are, except for
        the head.

    Raises:
        ValueError: If the model is not one of this package or has low-rank updates, or its weights
            do not fit another size.

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
    changes: dict[str, Any] = {"head_bias": 0.0, "classifier_activation": None, **options}
    changes["classes"] = old.classes if classes is None else classes
    model.warn_of_lost_calibration("Another head changes the probabilities")
    if changes["classes"] is None:
        raise ValueError("The model has no head. Pass `classes` to add one.")
    if isinstance(old, ViTConfig):
        changes.setdefault("pre_logits", None)
        if old.pooling is None:
            changes["pooling"] = "token" if old.class_token else "gap"
    sized = old if image_size is None else with_size(old, image_size)
    with scope_of(model):
        new = build(replace_fields(sized, **changes), name=model.name)
        copy_weights(model, new, leave=(*HEADS, "pre_logits"))
    return new


def scope_of(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Returns the scope of the strategy that a model was made under, or an empty one."""
    return model.distribute_strategy.scope() if is_distributed(model) else contextlib.nullcontext()
