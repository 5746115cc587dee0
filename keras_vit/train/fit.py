"""`fine_tune` and `pretrain`: a model, images and a recipe, put together of public pieces of Keras.

`docs/recipes.md` shows the same in twenty plain lines.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.resume.callback import ResumeTraining
from keras_vit.train.adapt import adapt_model, scope_of
from keras_vit.train.recipe import Recipe
from keras_vit.trainers.model import Model

# Shorter epochs would spend their time on beginning and ending.
_LEAST_STEPS = 100


class Fitted(NamedTuple):
    """What training returns.

    Args:
        model: The trained model.
        history: What `fit` returned: loss and accuracy by the epoch.
    """

    model: Model
    history: keras.callbacks.History


@dataclasses.dataclass(frozen=True)
class Epochs:
    """How the steps of a recipe become epochs of `fit`.

    Args:
        epochs: Their number.
        steps: Steps of each.
        repeats: How often each goes through the images, where they are few.
    """

    epochs: int
    steps: int
    repeats: int


def plan_epochs(steps: int, num_images: int, batch_size: int) -> Epochs:
    """Epochs of about a pass over the images, or of 100 steps where a pass is shorter.

    All epochs have equally many steps, so up to `epochs - 1` may follow the last of the recipe; the
    learning rate has then come to its end, which is 0 in a fall to 0, and they change nothing.

    Args:
        steps: Of the recipe.
        num_images: Images to train on.
        batch_size: Images of a step.

    Returns:
        `Epochs`.
    """
    length = max(num_images / batch_size, min(_LEAST_STEPS, steps))
    epochs = math.ceil(steps / length - 1e-9)
    each = math.ceil(steps / epochs)
    return Epochs(epochs, each, math.ceil(each * batch_size / num_images))


def fine_tune(
    model: Model,
    images: Any,
    recipe: Recipe,
    validation: Any = None,
    *,
    seed: int = 0,
    folder: str | os.PathLike | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: int | str = "auto",
) -> Fitted:
    """Trains a copy of a pre-trained model on other images, the paper's way.

    The copy has a fresh head of zeros for the classes of the images, and the size of the recipe
    (`adapt_model`). The model that is passed stays as it is.

    Args:
        model: A model of `create_model`, with its weights.
        images: An `ImageSet`, as of `read_folder`.
        recipe: Such as `find_recipe("finetune_pets")`.
        validation: An `ImageSet` to evaluate on after every epoch, or `None`.
        seed: What shuffling and augmentation follow from.
        folder: Where to keep the state of the run, with which the same call goes on after the
            process was killed (`ResumeTraining`); `None` keeps none.
        callbacks: Callbacks of Keras.
        verbose: As for `fit`.

    Returns:
        The trained model, and the history of `fit`.

    Raises:
        ValueError: If images, model and recipe do not fit together.
    """
    adapted = adapt_model(model, images.num_classes, recipe.image_size, **recipe.model_options)
    return _train(adapted, images, recipe, validation, seed, folder, callbacks, verbose)


def pretrain(
    model: Model,
    images: Any,
    recipe: Recipe,
    validation: Any = None,
    *,
    seed: int = 0,
    folder: str | os.PathLike | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: int | str = "auto",
) -> Fitted:
    """Trains a model as it is, from the weights that it has.

    Args:
        model: As of `create_model(variant, classes=images.num_classes, **recipe.model_options)`.
        images: As for `fine_tune`.
        recipe: Such as `find_recipe("paper_in1k")`.
        validation: As for `fine_tune`.
        seed: As for `fine_tune`.
        folder: As for `fine_tune`.
        callbacks: As for `fine_tune`.
        verbose: As for `fine_tune`.

    Returns:
        The model, trained, and the history of `fit`.

    Raises:
        ValueError: If the model is not what the recipe trains: of other rates of dropout, head
            bias, classes or size.
    """
    _check_model(model, recipe)
    return _train(model, images, recipe, validation, seed, folder, callbacks, verbose)


def compile_for(model: Model, recipe: Recipe, num_images: int) -> None:
    """Compiles a model with the optimizer, schedule and loss of a recipe.

    Args:
        model: The model.
        recipe: The recipe.
        num_images: Images to train on, which epochs become steps by.
    """
    with scope_of(model):
        model.compile(recipe.build_optimizer(num_images), recipe.build_loss(), metrics=["accuracy"])


def evaluate_accuracy(model: Model, images: Any, batch_size: int = 64) -> float:
    """Share of the images whose class a model finds, in [0, 1].

    Args:
        model: A model with logits or probabilities for classes.
        images: An `ImageSet`.
        batch_size: Images of a step.

    Returns:
        The accuracy.
    """
    from keras_vit.data.batches import eval_batches

    right = 0
    for x, y in eval_batches(images, model, min(batch_size, images.num_images), one_hot=False):
        right += int(np.sum(np.argmax(model.predict_on_batch(x), -1) == np.asarray(y)))
    return right / images.num_images


def _train(
    model: Model,
    images: Any,
    recipe: Recipe,
    validation: Any,
    seed: int,
    folder: Any,
    callbacks: Any,
    verbose: Any,
) -> Fitted:
    from keras_vit.data.batches import eval_batches, train_batches  # TensorFlow

    count, batch = images.num_images, recipe.batch_size
    plan = plan_epochs(recipe.count_steps(count), count, batch)
    compile_for(model, recipe, count)
    size = None if model.inputs[0].shape[1] else recipe.image_size
    with scope_of(model):
        training = train_batches(
            images,
            model,
            batch,
            recipe.augmentation,
            seed,
            repeats=plan.repeats,
            steps=plan.steps,
            image_size=size,
        )
        evaluation = None
        if validation is not None:
            evaluation = eval_batches(validation, model, batch, image_size=size)
    every = list(callbacks) + ([] if folder is None else [ResumeTraining(folder)])
    history = model.fit(
        training,
        epochs=plan.epochs,
        validation_data=evaluation,
        callbacks=every,
        shuffle=False,  # the batches are
        verbose=verbose,
    )
    return Fitted(model, history)


def _check_model(model: Model, recipe: Recipe) -> None:
    config = model.config
    if config is None:
        return
    wrong = [
        f"{field}={getattr(config, field)}, not {value}"
        for field, value in recipe.model_options.items()
        if hasattr(config, field) and getattr(config, field) != value
    ]
    size = recipe.image_size
    if size is not None and config.image_size not in (None, (size, size)):
        wrong.append(f"image_size={config.image_size}, not {(size, size)}")
    if wrong:
        raise ValueError(
            f"The model is not what the recipe trains: {'; '.join(wrong)}. Build it with "
            "`create_model(..., **recipe.model_options)`, or change the recipe with "
            "`dataclasses.replace`."
        )
