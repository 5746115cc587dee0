"""The plan of `keras-vit train`: steps, memory and, in the dry run, time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_vit.evaluate.compute import training_exaflops, training_memory
from keras_vit.evaluate.counting import count_parameters
from keras_vit.train.fit import compile_for, plan_epochs
from keras_vit.train.hyperparameters import Recipe

if TYPE_CHECKING:
    from keras_vit.data.augmentation import Augmentation

_TIMED_IMAGES = 4


def describe_run(
    model: keras.Model,
    recipe: Recipe,
    num_images: int,
    num_validation: int,
    is_timed: bool = False,
) -> Iterator[tuple[str, str]]:
    """Estimates of a run, as pairs of a name and a text.

    Args:
        model: The model to train.
        recipe: The recipe.
        num_images: Training images.
        num_validation: Validation images.
        is_timed: Whether to time a step, which trains the model.
    """
    steps = recipe.count_steps(num_images)
    epochs = plan_epochs(steps, num_images, recipe.batch_size)
    seen = steps * recipe.batch_size
    yield "model", f"{model.name}, {count_parameters(model):,} parameters"
    yield "images", f"{num_images:,} to train on, {num_validation:,} to evaluate on"
    yield "classes", f"{model.output_shape[-1]:,}"
    yield "size", " x ".join(map(str, model.input_shape[1:]))
    yield (
        "steps",
        (
            f"{steps:,} of {recipe.batch_size:,} images: {epochs.epochs:,} epochs of "
            f"{epochs.steps:,} steps, {seen / num_images:,.1f} times every image"
        ),
    )
    yield (
        "optimizer",
        (
            f"{recipe.optimizer}, rate {recipe.learning_rate:g}, {recipe.schedule} after "
            f"{recipe.count_warmup(num_images):,} steps of warm-up, decay {recipe.weight_decay:g}"
        ),
    )
    yield "augmentation", _text(recipe.augmentation)
    yield "recipe", recipe.source
    slots = (2 if recipe.optimizer == "adam" else 1) + (recipe.averaging is not None)
    size = 2 if keras.config.dtype_policy().compute_dtype != "float32" else 4
    memory = training_memory(model, recipe.batch_size, slots, size)
    yield (
        "memory",
        (
            f"about {memory.total / 2**30:.1f} GiB on one device, of which weights and optimizer "
            f"{(memory.weights + memory.optimizer) / 2**30:.1f} GiB"
        ),
    )
    yield "computation", f"{training_exaflops(model, seen):,.4g} exaFLOPs"
    if is_timed:
        yield "time", _time(model, recipe, num_images, seen)


def _text(augmentation: Augmentation) -> str:
    default = type(augmentation)()
    changed = [
        f"{field}={value}"
        for field, value in vars(augmentation).items()
        if field == "crop" or value != getattr(default, field)
    ]
    return ", ".join(changed)


def _time(model: keras.Model, recipe: Recipe, num_images: int, seen: int) -> str:
    """Estimated duration, from a step with a few images on this machine."""
    compile_for(model, recipe, num_images)
    batch = min(_TIMED_IMAGES, recipe.batch_size)
    images = np.zeros((batch, *model.input_shape[1:]), "float32")
    labels = np.eye(model.output_shape[-1], dtype="float32")[[0] * batch]
    model.train_on_batch(images, labels)  # compiles; the rate of the first step is 0
    start = time.perf_counter()
    model.train_on_batch(images, labels)
    seconds = (time.perf_counter() - start) / batch * seen
    return (
        f"about {_hours(seconds)} here, from one step of {batch} images; larger batches are faster "
        "on accelerators, and reading images is not included"
    )


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3_600:,.1f} hours"
