"""`keras-vit pretrain`."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.cli.dry_run import describe_time, optimizer_text, parameters_text
from keras_vit.cli.output import print_facts, say
from keras_vit.cli.progress import show_progress
from keras_vit.cli.resolve import open_model
from keras_vit.cli.training import end_run, open_run, strategy_scope
from keras_vit.config import replace_fields
from keras_vit.create import build
from keras_vit.data.batches import eval_batches, train_batches
from keras_vit.data.folder import read_files
from keras_vit.data.preview import write_png
from keras_vit.models.resizing import copy_weights
from keras_vit.resume.callback import ResumeTraining
from keras_vit.self_supervised.masked_autoencoder import MaskedAutoencoder, build_masked_autoencoder
from keras_vit.self_supervised.reconstructions import draw_reconstructions
from keras_vit.self_supervised.settings import COMMAND, SETTINGS, PretrainSettings
from keras_vit.train.fit import TrainingResult
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.image_lists import IMAGE_LISTS, describe_lists
from keras_vit.train.new_head import HEADS
from keras_vit.train.recipes import find_recipe
from keras_vit.train.run_folder import STATES, callbacks_of

_DRAWN = 8  # images of the sheet


def pretrain_model(
    config: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    **flags: Any,
) -> None:
    """Trains a ViT on images without labels, for `train` to start from."""
    run = PretrainSettings(**{**(config or {}), **flags})
    scope = strategy_scope(run.strategy)
    shown = show_progress(quiet, verbose)
    keras.utils.set_random_seed(run.seed)
    keras.config.set_dtype_policy(run.precision)
    files, images = read_files([str(run.images)], ["image"], run.unreadable)
    count = images.num_images
    size = None if run.image_size is None else (run.image_size, run.image_size)
    if count < run.batch_size:
        raise ValueError(
            f"{run.images} must hold a batch of images or more. Received: {count} images, "
            f"--batch-size {run.batch_size}. Pass a smaller one."
        )
    recipe = _recipe(run)
    with scope:
        decoder = {x: getattr(run, f"decoder_{x}") for x in ("width", "depth", "heads")}
        autoencoder = build_masked_autoencoder(
            _without_head(open_model(run.model, size)),
            **{f"decoder_{name}": value for name, value in decoder.items()},
            mask_rate=run.mask_rate,
            normalize_pixels=run.normalize_pixels,
            seed=run.seed,
        )
        model = autoencoder.model
        model.compile(recipe.build_optimizer(count))
        options: dict[str, Any] = {"one_hot": False, "image_size": size}
        batches = train_batches(
            images, autoencoder.encoder, run.batch_size, recipe.augmentation, run.seed, **options
        )
    if not quiet:
        print_facts([*_describe(autoencoder, run, recipe, count)])
    if dry_run:
        say(f"time: {describe_time(model, batches, recipe.count_steps(count))}")
        return
    settings = dataclasses.asdict(run)
    lists = describe_lists({"training": [str(path) for path in files]})
    facts = {**settings, "class_names": [], IMAGE_LISTS: lists}
    folder, start = pathlib.Path(run.output), time.perf_counter()
    with open_run(folder, facts, settings, SETTINGS, COMMAND):
        few = images.subset(np.linspace(0, count - 1, min(count, _DRAWN)).astype(int))
        drawn = next(iter(eval_batches(few, autoencoder.encoder, _DRAWN)))[0]
        callbacks = [*shown.callbacks, *callbacks_of(folder, False, False)]
        callbacks += [DrawSheet(autoencoder, drawn, folder), ResumeTraining(folder / STATES)]
        history = model.fit(
            batches, epochs=run.epochs, callbacks=callbacks, verbose=shown.verbose, shuffle=False
        )
        results = {name: values[-1] for name, values in history.history.items()}
        end_run(folder, TrainingResult(autoencoder.encoder, history), results, start)
        _write_for_transformers(autoencoder, folder / "autoencoder")
    say(f"{folder}: the encoder. keras-vit train DATA --model {folder} fine-tunes it.")


def _write_for_transformers(autoencoder: MaskedAutoencoder, folder: pathlib.Path) -> None:
    """Writes encoder and decoder, or says why transformers has no such model."""
    try:
        autoencoder.save_pretrained(folder)
    except ValueError as error:
        say(f"Without its decoder. {error}")


class DrawSheet(keras.callbacks.Callback):
    """Draws images, what is seen of them, and what the decoder makes of that, after every epoch."""

    def __init__(self, autoencoder: MaskedAutoencoder, images: np.ndarray, folder: pathlib.Path):
        super().__init__()
        self.autoencoder = autoencoder
        self.images = images
        self.folder = folder / "reconstructions"

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        sheet = draw_reconstructions(self.autoencoder, self.images)
        write_png(self.folder / f"epoch_{epoch + 1:04}.png", sheet)


def _without_head(model: Any) -> Any:
    """A model with the weights of another, and features in place of its head."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "classes", None) is None:
        return model
    found = build(replace_fields(config, classes=None, pre_logits=None), name=model.name)
    copy_weights(model, found, leave=(*HEADS, "pre_logits"))
    return found


def _recipe(run: PretrainSettings) -> Recipe:
    """The paper's recipe with the values of a run."""
    return find_recipe("mae").replace(
        epochs=run.epochs,
        batch_size=run.batch_size,
        learning_rate=run.base_rate * run.batch_size / 256,
        warmup_epochs=run.warmup_epochs,
        weight_decay=run.weight_decay,
    )


def _describe(
    autoencoder: MaskedAutoencoder, run: PretrainSettings, recipe: Recipe, num_images: int
) -> Iterator[tuple[str, str]]:
    model = autoencoder.model
    yield "model", parameters_text(autoencoder.encoder)
    yield "decoder", f"{model.count_params() - autoencoder.encoder.count_params():,} parameters"
    yield "images", f"{num_images:,}"
    yield "size", " x ".join(map(str, model.input_shape[1:]))
    steps = recipe.count_steps(num_images)
    yield "steps", f"{steps:,} of {run.batch_size:,} images: {run.epochs:,} epochs"
    yield "optimizer", optimizer_text(recipe, num_images)
    yield "recipe", recipe.source
