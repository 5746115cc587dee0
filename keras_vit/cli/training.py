"""`keras-vit train`."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from keras_vit.calibration import ACTIVATIONS
from keras_vit.cli.data_check import describe_data
from keras_vit.cli.dry_run import describe_run
from keras_vit.cli.models import report_at_end
from keras_vit.cli.output import complain, print_facts, say
from keras_vit.cli.plan import RunPlan, build_model, fit_recipe, make_plan
from keras_vit.cli.progress import Progress, save_when_interrupted, show_progress
from keras_vit.cli.settings import SETTINGS, Setting, settings_of, split_settings, write_settings
from keras_vit.cli.size_choice import choose_size
from keras_vit.cli.time_limit import KeepTime, fit_into_time
from keras_vit.data.image_set import ImageSet
from keras_vit.data.strata import HELD_OUT
from keras_vit.distribution.cluster import find_cluster
from keras_vit.errors import listed
from keras_vit.evaluate.class_predictions import Predictions
from keras_vit.models.lora import add_lora
from keras_vit.resume.folder_lock import FolderLock
from keras_vit.resume.state_folder import has_states
from keras_vit.runtime.distributed import is_distributed
from keras_vit.runtime.model import Model
from keras_vit.train.file_predictions import predict_labelled
from keras_vit.train.fit import TrainingResult, adapt_by_recipe, train_as_built, transfer
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.image_lists import IMAGE_LISTS, describe_lists
from keras_vit.train.keras_files import load_keras_file, save_keras_file
from keras_vit.train.rate_search import search_learning_rate
from keras_vit.train.run_folder import (
    LOCK,
    SETTINGS_FILE,
    STATES,
    callbacks_of,
    find_saved_model,
    open_folder,
    write_results,
)
from keras_vit.train.runs import load_run
from keras_vit.train.starting_head import StartingImages, start_head
from keras_vit.trust.calibrating import calibrate

# Settings that do not change what a run computes.
_NOT_COMPARED = ("output", "download", "tensorboard", "report", "minutes")
_LISTED = 10  # classes in a warning


def train_model(
    config: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    preview: str | None = None,
    find_learning_rate: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    **flags: Any,
) -> None:
    """Trains a model on images by a recipe; the same command continues an interrupted run."""
    begin = time.monotonic()
    if dry_run and find_learning_rate:
        raise ValueError("Pass --dry-run or --find-learning-rate, not both: both train the model.")
    settings = split_settings(config or {}, flags)
    scope = strategy_scope(settings.run.strategy)
    keras.utils.set_random_seed(settings.run.seed)
    keras.config.set_dtype_policy(settings.run.precision)
    shown = show_progress(quiet, verbose)
    plan = make_plan(settings)
    run, recipe, images, held_out = plan.run, plan.recipe, plan.data.training, plan.data.validation
    with scope:
        model = build_model(plan)
    recipe = fit_recipe(plan, model, settings)
    recipe = recipe.with_rates_of(getattr(model, "config", None))  # as `config.json` names them
    replicas = model.distribute_strategy.num_replicas_in_sync if is_distributed(model) else 1
    recipe = recipe.for_images(images.num_images, replicas)
    plan = dataclasses.replace(plan, recipe=recipe)
    report = getattr(model, "load_report", None)
    start_from = StartingImages(images, run.seed)
    planned = model
    keeping: list[KeepTime] = []
    if plan.is_pretrained:
        plan, model = choose_size(plan, model, settings, start_from, not quiet)

        def make(recipe: Recipe) -> Model:
            made = adapt_by_recipe(model, recipe, images)
            if recipe.lora_rank:
                add_lora(made, recipe.lora_rank, recipe.lora_targets)
            return made

        recipe, keeping = fit_into_time(plan, make, begin, not quiet)
        plan, planned = dataclasses.replace(plan, recipe=recipe), make(recipe)
    if not quiet:
        tested = plan.data.transfer_test or plan.data.final_test
        facts = [*describe_data(images, held_out, tested), ("held out", plan.held_out)]
        facts = [fact for fact in facts if fact[1]]
        facts += [("weights", line) for line in str(report or "").splitlines()]
        print_facts([*facts, *describe_run(planned, plan, dry_run)])
    if preview is not None:
        from keras_vit.data.preview import write_preview

        write_preview(images, planned, preview, recipe.augmentation, run.seed)
        say(f"{preview}: augmented training images.")
    if find_learning_rate:
        if recipe.initial_head == "probe":
            start_head(planned, start_from, run.seed, not quiet)
        say(search_learning_rate(planned, images, recipe, run.seed))
    if dry_run or find_learning_rate or preview is not None:
        return
    if plan.data.transfer_test is None:  # `transfer` adapts the model itself
        model = adapt_by_recipe(model, recipe, images) if recipe.lora_rank else planned
    del planned
    folder = pathlib.Path(run.output)
    results: dict[str, Any]
    start = time.perf_counter()
    with open_run(folder, *_records_of(plan)):
        if plan.data.transfer_test is not None:
            fitted, results = _transfer(model, plan, shown)
        else:
            fitted = _fit(model, plan, shown, keeping, start_from)
            results = {name: values[-1] for name, values in fitted.history.history.items()}
        predictions = None
        if plan.data.held_out is not None:
            best = find_saved_model(folder) if held_out is not None else None
            chosen = load_keras_file(best) if best is not None else fitted.model
            if best is not None and held_out is not None and run.task in ACTIVATIONS:
                _calibrate(chosen, held_out, best, recipe.batch_size)
            predictions = predict_labelled(chosen, plan.data.held_out[1], recipe.batch_size)
        if predictions is not None and plan.data.final_test is not None:  # never chosen by
            results |= {f"test {name}": x for name, x in predictions.metrics().items()}
        end_run(folder, fitted, results, start)
    if isinstance(predictions, Predictions):
        warn_of_lost_classes(predictions)
    if run.report:
        report_at_end(folder, plan.data.held_out)
    say(load_run(folder))


@contextlib.contextmanager
def open_run(
    folder: pathlib.Path,
    config: dict[str, Any],
    settings: dict[str, Any],
    known: Mapping[str, Setting] = SETTINGS,
    command: str = "train",
) -> Iterator[None]:
    """Locks the folder of a run, and creates it or checks that it is of the same run.

    Args:
        folder: The folder.
        config: What `config.json` holds, and a run that continues must have, without versions.
        settings: The settings of `run.toml`.
        known: As for `write_settings`.
        command: As for `write_settings`.
    """
    for name in _NOT_COMPARED:
        config.pop(name, None)
        settings.pop(name, None)
    with FolderLock(folder / LOCK), save_when_interrupted():
        open_folder(folder, config)
        write_settings(folder / SETTINGS_FILE, settings, known, command)
        yield


def end_run(
    folder: pathlib.Path, fitted: TrainingResult, results: dict[str, Any], start: float
) -> None:
    """Writes model and results of a run that began at `start`, and prints the results."""
    seconds = round(time.perf_counter() - start, 1)
    write_results(folder, fitted.model, {**results, "seconds": seconds}, fitted.history)
    print_facts([(name, f"{value:.4g}") for name, value in results.items()])


def _calibrate(model: Model, held_out: ImageSet, path: pathlib.Path, batch_size: int) -> None:
    """Calibrates the model of a run and saves it again, or says why not."""
    try:
        say(f"Calibrated: {calibrate(model, held_out, batch_size).calibration}.")
    except (ValueError, ImportError) as error:
        say(f"Not calibrated. {error}")
    else:
        save_keras_file(model, path)


def warn_of_lost_classes(predictions: Predictions) -> None:
    """Prints a warning if there are classes of which no image is recognised."""
    lost = [f"{name} (0 of {images:,})" for name, images in predictions.lost_classes()]
    if lost:
        complain(
            f"no image of these classes is recognised: {listed(lost, _LISTED)}. What tells them "
            "apart may be too small for the image size, or outside of the crops: try a larger "
            "--image-size, --area-range 0.5,1, or more --steps; --class-weights where they have "
            "few images.",
            "warning",
        )


def _records_of(plan: RunPlan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a run for `config.json` and `run.toml`."""
    images = plan.data.training
    preprocessing = {f"preprocessing_{name}": value for name, value in plan.preprocessing.items()}
    settings = {**dataclasses.asdict(plan.run), **plan.model_options, **preprocessing}
    found = {"class_names": list(images.class_names), "skipped": list(images.skipped)}
    lists = {IMAGE_LISTS: describe_lists(plan.data.file_names())}
    facts = {**found, **lists, HELD_OUT: plan.held_out or None, "plan": plan.recipe.to_dict()}
    return {**settings, **facts}, {**settings, **settings_of(plan.recipe)}


def _fit(
    model: Model,
    plan: RunPlan,
    shown: Progress,
    keeping: Sequence[keras.callbacks.Callback],
    start_from: StartingImages,
) -> TrainingResult:
    run, images, held_out = plan.run, plan.data.training, plan.data.validation
    folder = pathlib.Path(run.output)
    writing = callbacks_of(folder, held_out is not None, run.tensorboard, run.task)
    callbacks = [*keeping, *shown.callbacks, *writing]
    if plan.recipe.initial_head == "probe" and not has_states(folder / STATES):
        start_head(model, start_from, run.seed, not shown.is_quiet)
    start_from.release()
    fitting = (run.seed, folder / STATES, callbacks, shown.verbose)
    return train_as_built(model, images, plan.recipe, held_out, *fitting)


def _transfer(
    model: Model, plan: RunPlan, shown: Progress
) -> tuple[TrainingResult, dict[str, float]]:
    test, folder = plan.data.transfer_test, pathlib.Path(plan.run.output) / STATES
    assert test is not None
    options: dict[str, Any] = {"callbacks": shown.callbacks, "verbose": shown.verbose}
    options |= {"seed": plan.run.seed, "folder": folder}
    found = transfer(model, plan.data.training, test, plan.recipe, **options)
    results = {
        f"held-out accuracy at {rate:g}": accuracy
        for rate, accuracy in found.held_out_accuracy.items()
    }
    results |= {"learning rate": found.learning_rate, "test accuracy": found.test_accuracy}
    return TrainingResult(found.model, found.history), results


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
