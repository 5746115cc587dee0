"""`fine_tune`, `pretrain` and `transfer`: train a model on images by a recipe.

They call public functions of Keras only; `docs/recipes.md` shows the same in twenty plain lines.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from keras_vit.resume.callback import ResumeTraining
from keras_vit.train.adapt import adapt_model, scope_of
from keras_vit.train.arguments import check_model, check_types
from keras_vit.train.callbacks import EarlyStopping, EvaluateAverages
from keras_vit.train.hyperparameters import Recipe
from keras_vit.trainers.model import Model

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

# In shorter epochs, most of the time would go into their overhead.
_MIN_STEPS = 100


class TrainingResult(NamedTuple):
    """Result of `fine_tune` and `pretrain`.

    Args:
        model: The trained model.
        history: Loss and accuracy of every epoch, as `fit` returns them.
    """

    model: Model
    history: keras.callbacks.History


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Epochs of `fit` that make up the steps of a recipe.

    Args:
        epochs: Number of epochs.
        steps: Steps of each epoch.
        repeats: How often an epoch reads the images: more than once where they are few.
    """

    epochs: int
    steps: int
    repeats: int


def plan_epochs(steps: int, num_images: int, batch_size: int) -> Epochs:
    """Divides the steps of a recipe into epochs of equal length.

    An epoch reads all images about once, or has 100 steps where that is more. Because epochs are
    equally long, up to `epochs - 1` steps may follow the last step of the recipe. The learning rate
    is at its end value then; where that is 0, these steps change nothing.

    Args:
        steps: Steps of the recipe.
        num_images: Training images.
        batch_size: Images per step.

    Returns:
        `Epochs`.
    """
    length = max(num_images / batch_size, min(_MIN_STEPS, steps))
    epochs = math.ceil(steps / length - 1e-9)
    each = math.ceil(steps / epochs)
    return Epochs(epochs, each, math.ceil(each * batch_size / num_images))


def fine_tune(
    model: Model,
    images: ImageSet,
    recipe: Recipe,
    validation: ImageSet | None = None,
    *,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: int | str = "auto",
) -> TrainingResult:
    """Fine-tunes a copy of a pre-trained model as the paper does.

    The copy has a new head of zeros for the classes of the images and the image size of the recipe
    (`adapt_model`). `model` itself is not changed.

    Args:
        model: A pre-trained model of this package.
        images: Training images, for example from `read_folder`.
        recipe: A recipe, for example `find_recipe("finetune_pets")`.
        validation: Images to evaluate on after every epoch.
        seed: Seed of shuffling and augmentation.
        folder: Folder for checkpoints. The same call resumes from them after the process was
            killed (`ResumeTraining`). `None` writes none.
        callbacks: Callbacks of Keras.
        verbose: As for `fit`.

    Returns:
        A `TrainingResult`.

    Raises:
        TypeError: If `images` is not an `ImageSet`, or `model` or `recipe` is only a name.
        ValueError: If images, model and recipe do not fit together, or `validation` has other
            classes than `images`.
    """
    check_types(model, recipe, images=images, validation=validation)
    adapted = adapt_model(model, images.num_classes, recipe.image_size, **recipe.model_options)
    return _train(adapted, images, recipe, validation, seed, folder, callbacks, verbose)


def pretrain(
    model: Model,
    images: ImageSet,
    recipe: Recipe,
    validation: ImageSet | None = None,
    *,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: int | str = "auto",
) -> TrainingResult:
    """Trains a model from its present weights, without changing its head or size.

    Args:
        model: A model made by
            `create_model(variant, classes=images.num_classes, **recipe.model_options)`.
        images: As for `fine_tune`.
        recipe: A recipe, for example `find_recipe("paper_in1k")`.
        validation: As for `fine_tune`.
        seed: As for `fine_tune`.
        folder: As for `fine_tune`.
        callbacks: As for `fine_tune`.
        verbose: As for `fine_tune`.

    Returns:
        A `TrainingResult` with the same model.

    Raises:
        TypeError: As for `fine_tune`.
        ValueError: If the model has another image size, head bias, dropout rate or stochastic
            depth rate than the recipe.
    """
    check_types(model, recipe, images=images, validation=validation)
    check_model(model, recipe)
    return _train(model, images, recipe, validation, seed, folder, callbacks, verbose)


def compile_for(model: Model, recipe: Recipe, num_images: int) -> None:
    """Compiles a model with the optimizer, schedule and loss of a recipe.

    Args:
        model: A model of this package.
        recipe: The recipe.
        num_images: Training images, from which the number of steps follows.
    """
    with scope_of(model):
        model.compile(recipe.build_optimizer(num_images), recipe.build_loss(), metrics=["accuracy"])


def evaluate_accuracy(model: Model, images: ImageSet, batch_size: int = 64) -> float:
    """Top-1 accuracy of a model.

    Args:
        model: A model that returns logits or probabilities.
        images: Images with their classes.
        batch_size: Images per step.

    Returns:
        The accuracy, in [0, 1].
    """
    from keras_vit.data.batches import eval_batches

    right = 0
    for x, y in eval_batches(images, model, min(batch_size, images.num_images), one_hot=False):
        right += int(np.sum(np.argmax(model.predict_on_batch(x), -1) == np.asarray(y)))
    return right / images.num_images


@dataclasses.dataclass(frozen=True)
class TransferResult:
    """Result of `transfer`.

    Args:
        model: The model trained on all training images with the chosen learning rate.
        history: Loss and accuracy of every epoch of that training.
        learning_rate: The chosen learning rate.
        held_out_accuracy: Accuracy on the held-out images for every learning rate, in [0, 1].
        test_accuracy: Accuracy on the test images, in [0, 1]. No choice depends on them.
    """

    model: Model
    history: keras.callbacks.History
    learning_rate: float
    held_out_accuracy: dict[float, float]
    test_accuracy: float


def transfer(
    model: Model,
    images: ImageSet,
    test: ImageSet,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: int | str = "auto",
) -> TransferResult:
    """Selects the learning rate on held-out images, fine-tunes on all of them, and tests once.

    As in the paper, section 4.1 and appendix B.1.1: a part of the training images is held out, and
    every learning rate of the recipe is tried. The rate with the best accuracy on the held-out
    images (the lower of two equals) then trains on all training images. Remove test images that are
    also in the training set first: see `find_near_duplicates`.

    Args:
        model: A pre-trained model of this package, which is not changed.
        images: Training images.
        test: Test images.
        recipe: A recipe with `learning_rates` and `held_out`, for example
            `find_recipe("finetune_pets")`.
        seed: Seed of the choice of held-out images, of shuffling and of augmentation.
        folder: Folder for the checkpoints of all runs, to resume after a restart. `None` writes
            none.
        callbacks: Callbacks of Keras, used in every run.
        verbose: As for `fit`.

    Returns:
        A `TransferResult`.

    Raises:
        ValueError: If the recipe has no `learning_rates` or no `held_out`, or `test` has other
            classes than `images`.
    """
    check_types(model, recipe, images=images, test=test)
    if not recipe.learning_rates or not recipe.held_out:
        raise ValueError(
            "A recipe for `transfer` needs `learning_rates` and `held_out`. Received: "
            f"learning_rates={recipe.learning_rates}, held_out={recipe.held_out}. Set both with "
            "`recipe.replace`, or use `fine_tune`."
        )
    from keras_vit.data.image_set import check_same_classes  # TensorFlow

    check_same_classes(images.class_names, test)

    def run(train: ImageSet, rate: float, name: str) -> TrainingResult:
        changed = recipe.replace(learning_rate=rate, early_stopping=0)  # without validation
        subfolder = None if folder is None else pathlib.Path(folder) / name
        options: dict[str, Any] = {"seed": seed, "folder": subfolder, "verbose": verbose}
        return fine_tune(model, train, changed, callbacks=callbacks, **options)

    rest, held_out = images.split(recipe.held_out, seed)
    accuracies = {}
    for rate in sorted(recipe.learning_rates):
        candidate = run(rest, rate, f"rate-{rate:g}").model
        accuracies[rate] = evaluate_accuracy(candidate, held_out, recipe.batch_size)
    best = max(accuracies, key=lambda rate: accuracies[rate])
    result = run(images, best, "all")
    test_accuracy = evaluate_accuracy(result.model, test, recipe.batch_size)
    return TransferResult(result.model, result.history, best, accuracies, test_accuracy)


def _train(
    model: Model,
    images: ImageSet,
    recipe: Recipe,
    validation: ImageSet | None,
    seed: int,
    folder: str | os.PathLike[str] | None,
    callbacks: Sequence[keras.callbacks.Callback],
    verbose: int | str,
) -> TrainingResult:
    from keras_vit.data.batches import eval_batches, train_batches  # TensorFlow
    from keras_vit.data.image_set import check_same_classes

    if validation is not None:
        check_same_classes(images.class_names, validation)
    elif recipe.early_stopping:
        raise ValueError(
            "Early stopping needs a validation accuracy. Received: "
            f"early_stopping={recipe.early_stopping}, validation=None. Pass validation images, "
            "such as those of `images.split(0.1)`."
        )
    count, batch = images.num_images, recipe.batch_size
    plan = plan_epochs(recipe.count_steps(count), count, batch)
    compile_for(model, recipe, count)
    size = None if model.inputs[0].shape[1] else recipe.image_size
    with scope_of(model):
        training = train_batches(
            images.balanced() if recipe.balanced_sampling else images,
            model,
            batch,
            recipe.augmentation,
            seed,
            class_weights=list(images.class_weights()) if recipe.class_weights else None,
            repeats=plan.repeats,
            steps=plan.steps,
            image_size=size,
        )
        evaluation = None
        if validation is not None:
            evaluation = eval_batches(validation, model, batch, image_size=size)
    own: list[keras.callbacks.Callback] = []
    if recipe.averaging is not None:
        own.append(EvaluateAverages())
    if recipe.early_stopping:
        own.append(EarlyStopping(recipe.early_stopping))
    if folder is not None:
        own.append(ResumeTraining(folder))  # the last
    history = model.fit(
        training,
        epochs=plan.epochs,
        validation_data=evaluation,
        callbacks=[*callbacks, *own],
        shuffle=False,  # the pipeline shuffles
        verbose=verbose,
    )
    return TrainingResult(model, history)
