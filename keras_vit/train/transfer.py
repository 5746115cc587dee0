"""Transfer as the paper reports it: the learning rate chosen on held-out images, one test."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import keras

from keras_vit.train.fit import evaluate_accuracy, fine_tune
from keras_vit.train.recipe import Recipe
from keras_vit.trainers.model import Model


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What `transfer` found.

    Args:
        model: Trained on all training images with the chosen rate.
        history: Of that training.
        learning_rate: The chosen rate.
        held_out_accuracy: Accuracy on the held-out images by the rate, in [0, 1].
        test_accuracy: Accuracy on the test images, which nothing was chosen on, in [0, 1].
    """

    model: Model
    history: keras.callbacks.History
    learning_rate: float
    held_out_accuracy: dict[float, float]
    test_accuracy: float


def transfer(
    model: Model,
    images: Any,
    test: Any,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: str | os.PathLike | None = None,
    verbose: int | str = "auto",
) -> Transfer:
    """Fine-tunes with every rate of a recipe's grid, chooses, trains on all images, and tests once.

    As in the paper, section 4.1 and appendix B.1.1: a part of the training images is held out; the
    rate with the best accuracy on it, the lower of two equals, trains on all of them. Images of
    the test set that are in the training set have no place in either: see `find_near_duplicates`.

    Args:
        model: A pre-trained model, which stays as it is.
        images: An `ImageSet` to train on.
        test: An `ImageSet` to test on.
        recipe: Such as `find_recipe("finetune_pets")`, with `learning_rates` and `held_out`.
        seed: What the held-out images, shuffling and augmentation follow from.
        folder: Where to keep the states of all runs, to go on after a restart; `None` for none.
        verbose: As for `fit`.

    Returns:
        A `Transfer`.

    Raises:
        ValueError: If the recipe has no rates to choose from or nothing is held out.
    """
    if not recipe.learning_rates or not recipe.held_out:
        raise ValueError(
            "The recipe has nothing to choose: pass one with `learning_rates` and `held_out`, or "
            f"use `fine_tune`. Received: learning_rates={recipe.learning_rates}, "
            f"held_out={recipe.held_out}."
        )

    def run(train: Any, rate: float, name: str) -> Any:
        chosen = dataclasses.replace(recipe, learning_rate=rate)
        place = None if folder is None else pathlib.Path(folder) / name
        return fine_tune(model, train, chosen, seed=seed, folder=place, verbose=verbose)

    rest, held_out = images.split(recipe.held_out, seed)
    found = {}
    for rate in sorted(recipe.learning_rates):
        candidate = run(rest, rate, f"rate-{rate:g}").model
        found[rate] = evaluate_accuracy(candidate, held_out, recipe.batch_size)
    best = max(found, key=lambda rate: found[rate])
    fitted = run(images, best, "all")
    accuracy = evaluate_accuracy(fitted.model, test, recipe.batch_size)
    return Transfer(fitted.model, fitted.history, best, found, accuracy)
