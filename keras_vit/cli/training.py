"""`keras-vit train`, `evaluate` and `predict`."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.cli.devices import strategy_scope
from keras_vit.cli.interrupt import saves_when_interrupted
from keras_vit.cli.plan import describe_plan
from keras_vit.cli.run_folder import callbacks_of, finish, open_folder
from keras_vit.cli.sources import class_names_of, open_images, open_model
from keras_vit.create import create_model
from keras_vit.train.adapt import adapt_model
from keras_vit.train.fit import (
    TrainingResult,
    evaluate_accuracy,
    fine_tune,
    pretrain,
    transfer,
)
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.recipes import find_recipe

_NOT_OF_THE_RUN = ("output", "dry_run", "download")


def train_model(
    data: str,
    model: str,
    recipe: str,
    weights: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    output: str = "runs/run",
    image_size: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    data_dir: str | None = None,
    download: bool = False,
    unreadable: str = "error",
    precision: str = "float32",
    strategy: str = "auto",
    dry_run: bool = False,
) -> None:
    """Trains a model on images by a recipe; the same command goes on with a run that stopped."""
    asked = {name: value for name, value in locals().items() if name not in _NOT_OF_THE_RUN}
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(precision)
    chosen = _choose_recipe(recipe, image_size, batch_size, learning_rate, steps)
    options: dict[str, Any] = {"data_dir": data_dir, "download": download, "unreadable": unreadable}
    images, held_out = _open_data(data, validation, seed, options)
    with strategy_scope(strategy):
        start = _build(model, weights, images.num_classes, chosen)
    if dry_run:
        if weights is not None:
            size = chosen.image_size
            start = adapt_model(start, images.num_classes, size, **chosen.model_options)
        count = 0 if held_out is None else held_out.num_images
        _print_facts(list(describe_plan(start, chosen, images.num_images, count)))
        return
    folder = pathlib.Path(output)
    found = {"class_names": list(images.class_names), "skipped": list(images.skipped)}
    versions = {"keras": keras.__version__, "python": sys.version.split()[0]}
    open_folder(folder, {**asked, **found, "plan": chosen.to_dict(), "versions": versions})
    begun = time.perf_counter()
    with saves_when_interrupted(_command(asked, output)):
        if test is not None:
            names = images.class_names
            tested = open_images(test, class_names=names, split="test", **options)
            fitted, results = _transfer(start, images, tested, chosen, seed, folder)
        else:
            fitted = _fit(start, images, held_out, chosen, weights is not None, seed, folder)
            results = {name: values[-1] for name, values in fitted.history.history.items()}
    finish(folder, fitted.model, {**results, "seconds": round(time.perf_counter() - begun, 1)})
    _print_facts([(name, f"{value:.4g}") for name, value in results.items()])
    print(f"The run is in {folder}: model.keras, metrics.csv and more.")


def evaluate_model(
    data: str,
    model: str,
    labels: str | None = None,
    batch_size: int = 32,
    data_dir: str | None = None,
    download: bool = False,
    unreadable: str = "error",
    as_json: bool = False,
) -> None:
    """Prints the accuracy of a model on images."""
    loaded = open_model(model)
    names = None
    if not data.startswith("tfds:"):
        names = class_names_of(model, labels, loaded.output_shape[-1])
    images = open_images(data, data_dir, names, unreadable, "test", download)
    accuracy = evaluate_accuracy(loaded, images, batch_size)
    if as_json:
        print(json.dumps({"accuracy": accuracy, "images": images.num_images}))
        return
    print(f"{accuracy:.2%} of {images.num_images:,} images")


def predict_files(
    files: Sequence[str],
    model: str,
    labels: str | None = None,
    top: int = 3,
    batch_size: int = 32,
    as_json: bool = False,
) -> None:
    """Prints the most probable classes of image files."""
    from keras_vit.data.batches import eval_batches
    from keras_vit.data.folder import list_images, read_files

    loaded = open_model(model)
    names = class_names_of(model, labels, loaded.output_shape[-1])
    images = read_files(files, names)
    outputs = [loaded.predict_on_batch(x) for x, _ in eval_batches(images, loaded, batch_size)]
    for path, scores in zip(list_images(files), np.concatenate(outputs), strict=True):
        shares = _probabilities(loaded, scores)
        best = [(names[i], float(shares[i])) for i in np.argsort(-shares)[:top]]
        if as_json:
            print(json.dumps({"file": path, "classes": dict(best)}))
        else:
            print(f"{path}  " + "  ".join(f"{name} {share:.1%}" for name, share in best))


def _choose_recipe(
    name: str,
    image_size: int | None,
    batch_size: int | None,
    learning_rate: float | None,
    steps: int | None,
) -> Recipe:
    changes: dict[str, Any] = {
        "image_size": image_size,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "steps": steps,
    }
    changes = {field: value for field, value in changes.items() if value is not None}
    if steps is not None:
        changes["epochs"] = None
        warmup = find_recipe(name).warmup_steps
        changes["warmup_steps"] = min(warmup, steps // 5)
    return dataclasses.replace(find_recipe(name), **changes)


def _open_data(
    data: str, validation: str | None, seed: int, options: dict[str, Any]
) -> tuple[Any, Any]:
    """Images to train on, and to evaluate on: another set, or a share of these."""
    images = open_images(data, **options)
    if validation is None:
        return images, None
    try:
        share = float(validation)
    except ValueError:
        names = images.class_names
        return images, open_images(validation, class_names=names, split="test", **options)
    return images.split(share, seed)


def _build(variant: str, weights: str | None, classes: int, recipe: Recipe) -> Any:
    if weights is not None:
        return create_model(variant, weights=weights, classes=classes)
    size = recipe.image_size
    shape = None if size is None else (size, size, 3)
    options: dict[str, Any] = recipe.model_options
    return create_model(variant, classes=classes, input_shape=shape, **options)


def _fit(
    model: Any,
    images: Any,
    validation: Any,
    recipe: Recipe,
    is_pretrained: bool,
    seed: int,
    folder: pathlib.Path,
) -> TrainingResult:
    train = fine_tune if is_pretrained else pretrain
    callbacks = callbacks_of(folder, validation is not None)
    options: dict[str, Any] = {"seed": seed, "folder": folder / "states", "callbacks": callbacks}
    return train(model, images, recipe, validation, **options)


def _transfer(
    model: Any, images: Any, test: Any, recipe: Recipe, seed: int, folder: pathlib.Path
) -> tuple[TrainingResult, dict[str, float]]:
    found = transfer(model, images, test, recipe, seed=seed, folder=folder / "states")
    results = {
        f"held-out accuracy at {rate:g}": accuracy
        for rate, accuracy in found.held_out_accuracy.items()
    }
    results |= {"learning rate": found.learning_rate, "test accuracy": found.test_accuracy}
    return TrainingResult(found.model, found.history), results


def _command(asked: dict[str, Any], output: str) -> str:
    """The command line of a run."""
    words = ["keras-vit", "train"]
    for name, value in {**asked, "output": output}.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _probabilities(model: Any, scores: np.ndarray) -> np.ndarray:
    """Of outputs that may be logits."""
    x = np.asarray(scores, "float64")
    if getattr(getattr(model, "config", None), "classifier_activation", None):
        return x
    shares = np.exp(x - x.max())
    return shares / shares.sum()


def _print_facts(facts: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in facts) + 2
    for name, text in facts:
        print(f"{name + ':':{width}}{text}")
