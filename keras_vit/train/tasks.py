"""Tasks: their loss, metrics, best epoch, and units of regression targets.

A regression trains on targets with a mean of 0 and a standard deviation of 1. The models that it
saves and returns are copies whose heads predict in the units of the targets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from keras_vit.models.lora import merge_lora
from keras_vit.runtime.model import Model
from keras_vit.train.hyperparameters import LOSSES, Recipe
from keras_vit.train.losses import RegressionLoss
from keras_vit.train.metrics import AveragePrecision, TargetError
from keras_vit.train.new_head import HEADS, scope_of
from keras_vit.train.optimizers import layerwise_decay

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_Change = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]  # of kernel and bias


class Monitor(NamedTuple):
    """The metric that decides which epoch is the best: of its `"max"` or `"min"`."""

    metric: str
    mode: str

    def best_of(self, values: Sequence[float]) -> int:
        """Position of the best of some values, of equal ones the first."""
        losses = -np.array(values, "float64") if self.mode == "max" else np.array(values, "float64")
        return int(np.argmin(np.where(np.isnan(losses), np.inf, losses)))


MONITORS = {
    "single_label": Monitor("val_accuracy", "max"),
    "multi_label": Monitor("val_average_precision", "max"),
    "regression": Monitor("val_loss", "min"),
    "segmentation": Monitor("val_mean_iou", "max"),
}


def compile_for(model: Model, recipe: Recipe, images: ImageSet) -> None:
    """Compiles a model with the optimizer, schedule, loss and metrics of a recipe.

    Args:
        model: A model of this package.
        recipe: The recipe.
        images: Training images, from whose number the steps follow.

    Raises:
        ValueError: If loss, head and images do not fit, or a regression target is constant.
    """
    activation = getattr(model.config, "classifier_activation", None)
    # Keras finds the logits behind a softmax for its own loss of classes alone.
    if recipe.loss != "softmax" and activation not in (None, "linear"):
        raise ValueError(
            f"The loss {recipe.loss!r} of task={images.task!r} needs a model that returns logits. "
            f"Received: classifier_activation={activation!r}. Build it with "
            "classifier_activation=None."
        )
    with scope_of(model):
        loss = build_loss(recipe, images)
        metrics: list[Any] = ["accuracy"]
        if isinstance(loss, RegressionLoss):
            metrics = _errors(loss)
        elif images.task == "multi_label":
            metrics = [AveragePrecision(images.num_classes)]
        decay = recipe.layer_decay
        factors = None if decay is None else layerwise_decay(model, decay)
        model.compile(recipe.build_optimizer(images.num_images, factors), loss, metrics=metrics)


def build_loss(recipe: Recipe, images: ImageSet) -> keras.losses.Loss:
    """The loss of a recipe; of a regression with mean and deviation of the targets.

    Raises:
        ValueError: If the loss is for other labels, or a regression target is constant.
    """
    if images.task not in LOSSES[recipe.loss]:
        fitting = [loss for loss, tasks in LOSSES.items() if images.task in tasks]
        raise ValueError(
            f"The loss {recipe.loss!r} is not for task={images.task!r} of {images.name}. Take "
            f"{' or '.join(fitting)}: recipe.replace(loss={fitting[0]!r}), --loss {fitting[0]} on "
            "the command line."
        )
    if images.task != "regression":
        return recipe.build_loss()
    targets = np.asarray(images.all_labels, "float64")
    mean, stddev = targets.mean(axis=0), targets.std(axis=0)
    constant = [name for name, s in zip(images.class_names, stddev, strict=True) if not s > 0]
    if constant:
        raise ValueError(
            f"{', '.join(constant)} has one value for all training images of {images.name}, so "
            "there is nothing to learn. Remove the column."
        )
    return RegressionLoss(images.class_names, mean.tolist(), stddev.tolist(), recipe.loss)


def _errors(loss: RegressionLoss) -> list[keras.metrics.Metric]:
    """Mean absolute error of every target: `mae`, or `mae_NAME` of several."""
    errors: list[keras.metrics.Metric] = []
    for index, name in enumerate(loss.names):
        own = (0.0, 1.0) if loss.predicts_units else (loss.mean[index], loss.stddev[index])
        title = "mae" if len(loss.names) == 1 else "mae_" + re.sub(r"\W+", "_", name)
        errors.append(TargetError(index, *own, name=title))
    return errors


def standardized(model: Model, recipe: Recipe, images: ImageSet) -> Model:
    """The model to train: of a regression, a copy that predicts standardised targets.

    A head of zeros, as it is built, stays one: it predicts the mean.
    """
    loss = build_loss(recipe, images)
    return _with_head(model, _standardizing(loss)) if isinstance(loss, RegressionLoss) else model


def standardize_head(model: Model, recipe: Recipe, images: ImageSet) -> None:
    """Changes the head of a model as `standardized` does that of its copy."""
    loss = build_loss(recipe, images)
    if isinstance(loss, RegressionLoss):
        _change_heads(model, _standardizing(loss))


def in_units(model: Model) -> Model:
    """A copy of a trained regression model that predicts in the units of the targets, compiled.

    A model of another task, or one that predicts in units already, is returned itself.
    """
    loss = model.loss
    if not isinstance(loss, RegressionLoss) or loss.predicts_units:
        return model
    mean, stddev = np.array(loss.mean), np.array(loss.stddev)
    copy = _with_head(model, lambda kernel, bias: (kernel * stddev, bias * stddev + mean))
    own = RegressionLoss.from_config({**loss.get_config(), "predicts_units": True})
    optimizer: Any = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    with scope_of(copy):
        fresh = type(optimizer).from_config(optimizer.get_config())
        copy.compile(fresh, own, metrics=_errors(own))
        fresh.build(copy.trainable_variables)  # so that a saved copy has the variables it needs
    return copy


def _standardizing(loss: RegressionLoss) -> _Change:
    mean, stddev = np.array(loss.mean), np.array(loss.stddev)

    def change(kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (kernel / stddev, (bias - mean) / stddev) if kernel.any() else (kernel, bias)

    return change


def _with_head(model: Model, change: _Change) -> Model:
    """A copy of a model, with kernel and bias of the head changed and low-rank updates merged."""
    with scope_of(model):
        merged = merge_lora(model)
        copy = type(model).from_config(model.get_config())
        copy.set_weights(merged.get_weights())
        _change_heads(copy, change)
    return copy


def _change_heads(model: Model, change: _Change) -> None:
    heads = [layer for layer in model.layers if layer.name in HEADS]
    if not heads or not all(getattr(head, "use_bias", False) for head in heads):
        raise ValueError(
            "Regression needs a dense layer with a bias, named 'head', at the end. Received: "
            f"{model.name!r}, whose last layer is {model.layers[-1].name!r}. Add one: "
            "`keras_vit.adapt_model(model, classes=...)`."
        )
    for head in heads:
        values = [np.asarray(value, "float64") for value in head.get_weights()]
        head.set_weights(list(change(*values)))
