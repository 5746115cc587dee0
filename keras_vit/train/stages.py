"""Epochs of a run, and its stages: progressive image size, from small images to large ones.

Each stage has a model of its own for its size, which starts with the weights and the state of the
optimizer of the stage before; positions are resized by the method of the model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from keras_vit.data.augmentation import Augmentation
from keras_vit.models.resizing import TABLES, resize_table
from keras_vit.runtime.model import Model
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.new_head import scope_of

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

# In shorter epochs, most of the time would go into their overhead.
_MIN_STEPS = 100


class Epochs(NamedTuple):
    """Epochs of `fit` that make up the steps of a recipe.

    Args:
        epochs: Number of epochs.
        steps: Steps of each epoch.
        repeats: How often an epoch reads the images: more than once where they are few.
    """

    epochs: int
    steps: int
    repeats: int


def divide_steps(steps: int, epochs: int, num_images: int, batch_size: int) -> Epochs:
    """Divides steps into epochs of equal length, the last of which may have more than are left."""
    each = math.ceil(steps / epochs)
    return Epochs(epochs, each, math.ceil(each * batch_size / num_images))


def plan_run(recipe: Recipe, num_images: int) -> Epochs:
    """The epochs of a recipe: those it states, or of its steps as many for each image size.

    Of steps, an epoch reads all images about once, or has 100 steps where that is more. Because
    epochs are equally long, up to `epochs - 1` steps may follow the last step of the recipe. The
    learning rate is at its end value then; where that is 0, these steps change nothing.

    Args:
        recipe: The recipe.
        num_images: Training images.

    Returns:
        `Epochs`.
    """
    steps, stages = recipe.count_steps(num_images), max(1, len(recipe.progressive_sizes))
    if recipe.epochs is None:
        length = max(num_images / recipe.batch_size, min(_MIN_STEPS, steps))
        epochs = math.ceil(math.ceil(steps / length - 1e-9) / stages) * stages
    else:
        epochs = max(math.ceil(recipe.epochs), stages)
    return divide_steps(steps, epochs, num_images, recipe.batch_size)


class Stage(NamedTuple):
    """Epochs of one image size.

    Args:
        image_size: Pixels along both sides; `None` is that of the model.
        first: First epoch, counted from 0.
        end: The epoch after the last.
    """

    image_size: int | None
    first: int
    end: int


def plan_stages(recipe: Recipe, epochs: int) -> list[Stage]:
    """Divides epochs evenly over the image sizes of a recipe; one stage without them."""
    sizes = recipe.progressive_sizes
    if not sizes:
        return [Stage(None, 0, epochs)]
    limits = [epochs * number // len(sizes) for number in range(len(sizes) + 1)]
    return [Stage(*stage) for stage in zip(sizes, limits[:-1], limits[1:], strict=True)]


def share_of_pixels(sizes: Sequence[int]) -> float:
    """Mean number of pixels of a training image over that of the last stage; 1 without stages."""
    return float(np.mean(np.square(sizes)) / sizes[-1] ** 2) if sizes else 1.0


def augmentation_of(recipe: Recipe, stage: Stage) -> Augmentation:
    """The augmentation of a stage: what images are resized to before a crop is of its size too."""
    chosen = recipe.augmentation
    if stage.image_size is None or recipe.image_size is None or chosen.resize_size is None:
        return chosen
    share = stage.image_size / recipe.image_size
    height, width = chosen.resize_size
    smaller = (round(height * share), round(width * share))
    return dataclasses.replace(chosen, resize_size=smaller)


def training_batches(
    model: Model, images: ImageSet, recipe: Recipe, plan: Epochs, seed: int
) -> Any:
    """Batches to train on by a recipe."""
    from keras_vit.data.batches import train_batches  # TensorFlow

    with scope_of(model):
        return train_batches(
            images.balanced() if recipe.balanced_sampling else images,
            model,
            recipe.batch_size,
            recipe.augmentation,
            seed,
            class_weights=list(images.class_weights()) if recipe.class_weights else None,
            repeats=plan.repeats,
            steps=plan.steps,
            image_size=None if model.inputs[0].shape[1] else recipe.image_size,
        )


def validation_batches(model: Model, images: ImageSet, recipe: Recipe) -> Any:
    """Batches to validate a model on that is trained by a recipe."""
    from keras_vit.data.batches import eval_batches  # TensorFlow

    size = None if model.inputs[0].shape[1] else recipe.image_size
    with scope_of(model):
        return eval_batches(images, model, recipe.batch_size, image_size=size)


def carry_over(old: Model, new: Model) -> None:
    """Copies weights, and the state of the optimizer if both are compiled, to another image size.

    Raises:
        ValueError: If weights other than positions have other shapes.
    """
    values = _resized(old.weights, new.weights, old, new)
    if all(getattr(model, "optimizer", None) is not None for model in (old, new)):
        with scope_of(new):
            new.optimizer.build(new.trainable_variables)
        values += _resized(old.optimizer.variables, new.optimizer.variables, old, new)
    for variable, value in values:
        variable.assign(value)


def _resized(source: Any, target: Any, old: Model, new: Model) -> list[tuple[Any, np.ndarray]]:
    """Variables of `target` with the values of `source`, those of positions resized."""
    found, problems = [], []
    for one, other in zip(source, target, strict=True):
        value = np.asarray(keras.ops.convert_to_numpy(one))
        if value.shape != tuple(other.shape):
            # The optimizer's variables have the path of the weight with "_" in place of "/".
            path = other.path.replace("/", "_")
            table = next((each for each in TABLES if each.replace("/", "_") in path), None)
            if table is None:
                problems.append(f"{other.path}: {value.shape}, {tuple(other.shape)}")
                continue
            is_positive = value.min() >= 0
            value = resize_table(f"block_0/{table}", value, old.config, new.config)
            if is_positive:  # second moments stay so: bicubic resizing overshoots
                value = np.maximum(value, 0)
        found.append((other, value))
    if problems:
        raise ValueError(
            "Progressive image sizes need weights that are the same for all sizes, except "
            f"positions. Received: {'; '.join(problems[:5])}. Train at one size, or with "
            'position_embedding="learned".'
        )
    return found


class EarlierEpochs(keras.callbacks.Callback):
    """Puts the epochs of earlier stages before those of this one in the history of `fit`.

    It stands after `ResumeTraining`, which restores those of this stage.

    Args:
        earlier: History of the stages before.
    """

    def __init__(self, earlier: keras.callbacks.History):
        super().__init__()
        self.earlier = earlier

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        history = self.model.history
        if history.epoch[:1] == self.earlier.epoch[:1]:  # they are there
            return
        history.epoch[:0] = self.earlier.epoch
        for name, values in self.earlier.history.items():
            history.history[name] = [*values, *history.history.get(name, [])]

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        self.on_epoch_begin(0)  # of a stage without an epoch left
