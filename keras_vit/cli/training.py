"""`keras-vit train`, `evaluate` and `predict`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.cli.data_check import describe_data, open_training_data
from keras_vit.cli.dry_run import describe_run
from keras_vit.cli.progress import Progress, print_facts, save_when_interrupted, show_progress
from keras_vit.cli.resolve import class_names_of, open_images, open_model, resolve_model
from keras_vit.create import create_model
from keras_vit.distribution.cluster import find_cluster
from keras_vit.resume.folder_lock import FolderLock
from keras_vit.train.adapt import adapt_model
from keras_vit.train.fit import (
    TrainingResult,
    evaluate_accuracy,
    pretrain,
    transfer,
)
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.keras_files import load_keras_file
from keras_vit.train.recipes import find_recipe
from keras_vit.train.run_folder import (
    LOCK,
    callbacks_of,
    find_saved_model,
    open_folder,
    write_results,
)
from keras_vit.train.runs import classify_files, load_run
from keras_vit.trainers.model import Model
from keras_vit.variants import find_variant

if TYPE_CHECKING:
    from keras_vit.data.image_set import ImageSet

# Arguments that do not change a run.
_NOT_SETTINGS = ("output", "dry_run", "download", "quiet", "verbose")


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
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Trains a model on images by a recipe; the same command continues an interrupted run."""
    settings = {name: value for name, value in locals().items() if name not in _NOT_SETTINGS}
    scope = strategy_scope(strategy)
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(precision)
    chosen = _choose_recipe(recipe, image_size, batch_size, learning_rate, steps)
    options: dict[str, Any] = {"data_dir": data_dir, "download": download, "unreadable": unreadable}
    images, held_out, tested, final = open_training_data(data, validation, test, seed, options)
    is_pretrained = weights is not None or resolve_model(model).kind != "variant"
    with scope:
        start = _build(model, weights, images.num_classes, chosen)
    if is_pretrained and (dry_run or tested is None):
        size = chosen.image_size
        start = adapt_model(start, images.num_classes, size, **chosen.model_options)
    if not quiet:
        count = 0 if held_out is None else held_out.num_images
        facts = describe_run(start, chosen, images.num_images, count, dry_run)
        print_facts([*describe_data(images, held_out, tested or final), *facts])
    if dry_run:
        return
    folder = pathlib.Path(output)
    found = {"class_names": list(images.class_names), "skipped": list(images.skipped)}
    versions = {"keras": keras.__version__, "python": sys.version.split()[0]}
    start_time = time.perf_counter()
    shown = show_progress(quiet, verbose)
    with FolderLock(folder / LOCK), save_when_interrupted(_command(settings, output)):
        open_folder(folder, {**settings, **found, "plan": chosen.to_dict(), "versions": versions})
        if tested is not None:
            fitted, results = _transfer(start, images, tested, chosen, seed, folder, shown)
        else:
            fitted = _fit(start, images, held_out, chosen, seed, folder, shown)
            results = {name: values[-1] for name, values in fitted.history.history.items()}
        if final is not None:  # never chosen by
            best = find_saved_model(folder) if held_out is not None else None
            model_to_test = load_keras_file(best) if best is not None else fitted.model
            results["test accuracy"] = evaluate_accuracy(model_to_test, final, chosen.batch_size)
        seconds = round(time.perf_counter() - start_time, 1)
        write_results(folder, fitted.model, {**results, "seconds": seconds}, fitted.history)
    print_facts([(name, f"{value:.4g}") for name, value in results.items()])
    print(load_run(folder))


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
    from keras_vit.data.image_set import check_same_classes

    loaded = open_model(model)
    names = None
    if not data.startswith("tfds:"):
        names = class_names_of(model, labels, loaded.output_shape[-1])
    images = open_images(data, data_dir, names, unreadable, "test", download)
    if labels is None and resolve_model(model).path is not None:
        check_same_classes(class_names_of(model, None, loaded.output_shape[-1]), images)
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
    loaded = open_model(model)
    names = class_names_of(model, labels, loaded.output_shape[-1])
    for path, classes in classify_files(loaded, names, files, batch_size):
        best = list(classes.items())[:top]
        if as_json:
            print(json.dumps({"file": str(path), "classes": dict(best)}))
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


def _build(model: str, weights: str | None, classes: int, recipe: Recipe) -> Model:
    """The model to train, before its head and its image size are adapted."""
    if resolve_model(model).kind != "variant":
        if weights is not None:
            raise ValueError(
                f"--model {model} has weights already. Leave out --weights {weights}, or pass the "
                "name of an architecture as --model."
            )
        return open_model(model)
    if weights is not None:
        return create_model(model, weights=_weights_of(model, weights), classes=classes)
    size = recipe.image_size
    shape = None if size is None else (size, size, 3)
    options: dict[str, Any] = recipe.model_options
    return create_model(model, classes=classes, input_shape=shape, **options)


def _weights_of(variant: str, weights: str) -> str:
    """The argument `weights` of `create_model`, from a tag or any form of a checkpoint."""
    if weights.isidentifier() and not os.path.exists(weights):
        return weights  # a tag
    kind = resolve_model(weights).kind
    if kind == "checkpoint":
        return weights
    named, _, tag = weights.rpartition("/")
    if kind == "published" and find_variant(named) == find_variant(variant):
        return tag
    raise ValueError(
        f"--weights {weights} does not hold weights of --model {variant}. Pass it as --model, "
        "without --weights, to train that model."
    )


def _fit(
    model: Model,
    images: ImageSet,
    validation: ImageSet | None,
    recipe: Recipe,
    seed: int,
    folder: pathlib.Path,
    shown: Progress,
) -> TrainingResult:
    callbacks = [*shown.callbacks, *callbacks_of(folder, validation is not None)]
    options: dict[str, Any] = {"seed": seed, "folder": folder / "states", "callbacks": callbacks}
    return pretrain(model, images, recipe, validation, verbose=shown.verbose, **options)


def _transfer(
    model: Model,
    images: ImageSet,
    test: ImageSet,
    recipe: Recipe,
    seed: int,
    folder: pathlib.Path,
    shown: Progress,
) -> tuple[TrainingResult, dict[str, float]]:
    options: dict[str, Any] = {"seed": seed, "folder": folder / "states"}
    options |= {"callbacks": shown.callbacks, "verbose": shown.verbose}
    found = transfer(model, images, test, recipe, **options)
    results = {
        f"held-out accuracy at {rate:g}": accuracy
        for rate, accuracy in found.held_out_accuracy.items()
    }
    results |= {"learning rate": found.learning_rate, "test accuracy": found.test_accuracy}
    return TrainingResult(found.model, found.history), results


def _command(settings: dict[str, Any], output: str) -> str:
    """The command line that continues a run."""
    words = ["keras-vit", "train"]
    for name, value in {**settings, "output": output}.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def strategy_scope(name: str) -> contextlib.AbstractContextManager[Any]:
    """The scope of the `tf.distribute` strategy to build a model in.

    Args:
        name: `"mirrored"` takes all GPUs of this machine, or without GPUs all CPU devices of
            TensorFlow; `"auto"` does so if there are several GPUs; `"none"` uses one device.

    Raises:
        ValueError: If `TF_CONFIG` names several workers, which only a script can start.
    """
    cluster = find_cluster()
    workers = 1 if cluster is None else len(cluster.addresses)
    if workers > 1:
        raise ValueError(
            f"TF_CONFIG names {workers} workers, and `keras-vit train` trains on one machine. "
            "Unset it, or train with `fit` in a script: see docs/scaling.md."
        )
    if name == "none":
        return contextlib.nullcontext()
    import tensorflow as tf

    gpus = tf.config.list_logical_devices("GPU")
    if name == "auto" and len(gpus) < 2:
        return contextlib.nullcontext()
    devices = gpus or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices]).scope()
