"""`fine_tune`, `pretrain` and `transfer`: train a model on images by a recipe.

They call public functions of Keras only; `docs/recipes.md` shows the same in twenty plain lines.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras

from keras_vit.evaluate.class_predictions import predict_set
from keras_vit.models.lora import add_lora
from keras_vit.models.resizing import resize_model
from keras_vit.resume.callback import ResumeTraining
from keras_vit.resume.state_folder import has_states
from keras_vit.runtime.distributed import is_distributed
from keras_vit.runtime.model import Model
from keras_vit.train.arguments import check_model, check_types
from keras_vit.train.callbacks import EarlyStopping, EvaluateAverages, last_weights
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.new_head import adapt_model
from keras_vit.train.run_folder import SaveBest
from keras_vit.train.stages import (
    EarlierEpochs,
    augmentation_of,
    carry_over,
    plan_run,
    plan_stages,
    training_batches,
    validation_batches,
)
from keras_vit.train.starting_head import start_head
from keras_vit.train.tasks import MONITORS, build_loss, compile_for, in_units, standardized

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet


class TrainingResult(NamedTuple):
    """Result of `fine_tune` and `pretrain`.

    Args:
        model: The trained model.
        history: Loss and metrics of every epoch, as `fit` returns them.
    """

    model: Model
    history: keras.callbacks.History


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

    The copy has a new head for the classes of the images, of zeros or that of a probe
    (`recipe.initial_head`), the image size of the recipe (`adapt_model`), and dropout and
    stochastic depth of `model` where the recipe has no rates. What is frozen in `model` stays so.
    `model` itself is not changed. Several labels for each image need
    `recipe.replace(loss="sigmoid")`, regression `"mse"` or `"huber"`: it trains on standardised
    targets, and the model that it returns predicts in their units.

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
    adapted = adapt_by_recipe(model, recipe, images)
    if recipe.initial_head == "probe" and not has_states(folder):
        build_loss(recipe, images)  # refuses a loss for another task before features are computed
        start_head(adapted, images, seed, verbose != 0)
    return train_as_built(adapted, images, recipe, validation, seed, folder, callbacks, verbose)


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
        A `TrainingResult` with the same model; of a regression with a copy, see `fine_tune`.

    Raises:
        TypeError: As for `fine_tune`.
        ValueError: If the model has another image size, head bias, dropout rate or stochastic
            depth rate than the recipe.
    """
    check_types(model, recipe, images=images, validation=validation)
    check_model(model, recipe)
    if recipe.lora_rank or recipe.initial_head != "zeros":
        raise ValueError(
            "`pretrain` trains the whole model, and keeps its head; low-rank updates and a head "
            f"from a probe are of `fine_tune`. Received: lora_rank={recipe.lora_rank}, "
            f"initial_head={recipe.initial_head!r}."
        )
    return train_as_built(model, images, recipe, validation, seed, folder, callbacks, verbose)


class TransferResult(NamedTuple):
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
        ValueError: If the recipe has no `learning_rates` or no `held_out`, `test` has other classes
            than `images`, or images do not have one class each.
    """
    check_types(model, recipe, images=images, test=test)
    if images.task != "single_label":
        raise ValueError(
            "`transfer`, which chooses by accuracy, needs one class for each image. "
            f"{images.name} has task={images.task!r}: use `fine_tune`."
        )
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
    accuracies, size = {}, recipe.batch_size
    for rate in sorted(recipe.learning_rates):
        # Not `rate-0.01`: these hold states of other held-out images, of older versions.
        candidate = run(rest, rate, f"stratified-{rate:g}").model
        accuracies[rate] = predict_set(candidate, held_out, size, verbose=False).accuracy
    best = max(accuracies, key=lambda rate: accuracies[rate])
    result = run(images, best, f"all-{best:g}")
    tested = predict_set(result.model, test, size, verbose=False).accuracy
    return TransferResult(result.model, result.history, best, accuracies, tested)


def adapt_by_recipe(model: Model, recipe: Recipe, images: ImageSet) -> Model:
    """Copies a trained model with a new head for images, and size and rates of a recipe."""
    options = recipe.options_for(getattr(model, "config", None))
    return adapt_model(model, images.num_classes, recipe.image_size, **options)


def train_as_built(
    model: Model,
    images: ImageSet,
    recipe: Recipe,
    validation: ImageSet | None,
    seed: int,
    folder: str | os.PathLike[str] | None,
    callbacks: Sequence[keras.callbacks.Callback],
    verbose: int | str,
) -> TrainingResult:
    """As `pretrain`, of a model that fits the recipe; low-rank updates are added to it."""
    from keras_vit.data.image_set import check_same_classes  # TensorFlow

    if validation is not None:
        check_same_classes(images.class_names, validation, images.task)
    elif recipe.early_stopping:
        raise ValueError(
            f"Early stopping needs {MONITORS[images.task].metric}. Received: "
            f"early_stopping={recipe.early_stopping}, validation=None. Pass validation images, "
            "such as those of `images.split(0.1)`."
        )
    replicas = model.distribute_strategy.num_replicas_in_sync if is_distributed(model) else 1
    recipe = recipe.for_images(images.num_images, replicas)
    if images.num_classes == model.output_shape[-1]:
        model.class_names = images.class_names
    model = standardized(model, recipe, images)
    if recipe.lora_rank:
        add_lora(model, recipe.lora_rank, recipe.lora_targets)
    plan = plan_run(recipe, images.num_images)
    stages = plan_stages(recipe, plan.epochs)
    previous: Model | None = None
    history: keras.callbacks.History | None = None
    for number, stage in enumerate(stages):
        is_last = number == len(stages) - 1
        current = model
        if stage.image_size is not None and not is_last:
            current = resize_model(previous or model, stage.image_size)
        compile_for(current, recipe, images)
        if previous is not None:
            carry_over(previous, current)
        own: list[keras.callbacks.Callback] = []
        ends = () if is_last or recipe.averaging is None else last_weights(current)
        if recipe.averaging is not None:
            own.append(EvaluateAverages())
        own += ends[:1]
        if recipe.early_stopping and is_last:
            own.append(EarlyStopping(recipe.early_stopping, *MONITORS[images.task]))
        if folder is not None:
            states = pathlib.Path(folder)
            own.append(ResumeTraining(states if is_last else states / str(stage.image_size)))
        own += ends[1:]
        if history is not None:
            own.append(EarlierEpochs(history))
        for callback in (*callbacks, *own):
            if isinstance(callback, (SaveBest, EarlyStopping)):
                callback.first_epoch = stage.first
        staged = recipe.replace(augmentation=augmentation_of(recipe, stage))
        history = current.fit(
            training_batches(current, images, staged, plan, seed + number),
            initial_epoch=stage.first,
            epochs=stage.end,
            validation_data=validation and validation_batches(current, validation, recipe),
            callbacks=[*callbacks, *own],
            shuffle=False,  # the pipeline shuffles
            verbose=verbose,
        )
        history.params["first_epoch"] = stage.first  # of the last image size
        previous = current
    return TrainingResult(in_units(model), history)
