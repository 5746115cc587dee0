"""`keras-vit segment train`, `evaluate` and `predict`."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.cli.dry_run import describe_memory, describe_time, optimizer_text, parameters_text
from keras_vit.cli.output import print_facts, say
from keras_vit.cli.progress import show_progress
from keras_vit.cli.resolve import class_names_of, open_model, resolve_model
from keras_vit.cli.result_files import result_files
from keras_vit.cli.training import end_run, open_run
from keras_vit.create import create_model
from keras_vit.data.decode import decode
from keras_vit.data.folder import find_readable
from keras_vit.data.image_files import read_image
from keras_vit.data.labelled_set import describe_held_out
from keras_vit.data.preview import write_png
from keras_vit.errors import printable
from keras_vit.reading import read_text
from keras_vit.resume.callback import ResumeTraining
from keras_vit.runtime.model import Model
from keras_vit.segmentation.evaluation import draw_classes, evaluate_masks, predict_masks
from keras_vit.segmentation.mask_pipeline import mask_batches
from keras_vit.segmentation.masks import IGNORED, Colour, MaskSet, read_masks
from keras_vit.segmentation.missed_classes import WatchClasses
from keras_vit.segmentation.model import build_segmenter
from keras_vit.segmentation.networks import as_segmenter
from keras_vit.segmentation.settings import COMMAND, SETTINGS, SegmentSettings
from keras_vit.train.fit import TrainingResult
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.image_lists import IMAGE_LISTS, describe_lists
from keras_vit.train.keras_files import load_keras_file
from keras_vit.train.optimizers import layerwise_decay
from keras_vit.train.recipes import find_recipe
from keras_vit.train.run_folder import BEST, STATES, callbacks_of, read_config
from keras_vit.train.runs import SEGMENTATION, load_run
from keras_vit.train.sizing import plan_training

_GREY = 64  # from this value on, values of masks are no numbers of classes
_DRAWN = 8  # held-out images that `train` draws
_MASKS = ("first_value", "ignored", "mask_suffix", "colors")  # settings of the masks of a run


def train_segmenter(
    config: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    **flags: Any,
) -> None:
    """Trains a segmentation head on a model, or both, from images and masks."""
    run = SegmentSettings(**{**(config or {}), **flags})
    is_trained = run.model is not None and resolve_model(run.model).kind != "variant"
    run = run.with_learning_rate(is_trained)
    shown = show_progress(quiet, verbose)
    keras.utils.set_random_seed(run.seed)
    names, colors, run = _find_classes(run)
    masks = {"task": SEGMENTATION, **_of_masks(dataclasses.asdict(run)), "colors": colors}
    training = _read(str(run.images), str(run.masks), names, masks)
    parts, held_out = {"training": training}, None
    if run.validation:
        training, held_out = training.split(run.validation, run.seed)
        parts = {"training": training, "validation": held_out}
    run = dataclasses.replace(run, batch_size=min(run.batch_size, training.num_images))
    model = _build(run, len(names), training.num_images)
    recipe = _recipe(run, training.num_images)
    _compile(model, run, recipe)
    options: dict[str, Any] = {"training": True, "seed": run.seed}
    if run.class_weights:
        counts = training.pixel_counts()
        options["class_weights"] = counts.sum() / (len(names) * np.maximum(counts, 1))
    batches = mask_batches(training, model, run.batch_size, **options)
    steps = recipe.count_steps(training.num_images)
    if not quiet:
        print_facts([*_describe(model, run, parts, recipe)])
    if dry_run:
        say(f"time: {describe_time(model, batches, steps)}")
        return
    lists = describe_lists({part: list(each.rows[0]) for part, each in parts.items()})
    settings = dataclasses.asdict(run)
    facts = {**masks, "model": run.model or model.name, "class_names": names, IMAGE_LISTS: lists}
    folder, start = pathlib.Path(run.output), time.perf_counter()
    with open_run(folder, {**settings, **facts}, settings, SETTINGS, COMMAND):
        written = callbacks_of(folder, held_out is not None, False, SEGMENTATION)
        watch = WatchClasses(training, _advice(run, recipe), quiet)
        evaluation = None if held_out is None else mask_batches(held_out, model, run.batch_size)
        history = model.fit(
            batches,
            epochs=run.epochs,
            validation_data=evaluation,
            shuffle=False,  # the batches are shuffled
            callbacks=[*shown.callbacks, watch, *written, ResumeTraining(folder / STATES)],
            verbose=shown.verbose,
        )
        results: dict[str, Any] = {name: values[-1] for name, values in history.history.items()}
        if held_out is not None:
            best = load_keras_file(folder / BEST)
            result = evaluate_masks(best, held_out, batch_size=run.batch_size, verbose=not quiet)
            results |= {"mean IoU": result.mean_iou, "pixel accuracy": result.pixel_accuracy}
            _draw_held_out(best, held_out, folder / "overlays", colors)
            say(result)
        end_run(folder, TrainingResult(model, history), results, start)
    say(load_run(folder))


def _find_classes(run: SegmentSettings) -> tuple[list[str], list[Colour] | None, SegmentSettings]:
    """Names of the classes, their colours if masks need them, and the settings of the masks.

    Without a file of classes they are the values of the masks. Values of 64 and more, as of masks
    of black and white, are taken as colours of grey, because most numbers below them are no class.
    """
    if run.classes is not None:
        return *read_classes(run.classes), run
    numbers = list(map(str, range(IGNORED)))
    found = read_masks(str(run.images), str(run.masks), numbers, mask_suffix=run.mask_suffix)
    values = sorted({int(x) for _, labels in found.pairs() for x in np.unique(labels)})
    classes = [value for value in values if value not in run.ignored]
    if len(classes) < 2:  # 255 is a class of masks of 0 and 255
        classes = values
    if len(classes) < 2:
        raise ValueError(f"The masks in {run.masks} hold one value, {values[0]}: nothing to learn.")
    say(f"classes: {', '.join(map(str, classes))}, the values of the masks; --classes names them")
    if classes[-1] < _GREY:
        names = list(map(str, range(classes[0], classes[-1] + 1)))
        return names, None, dataclasses.replace(run, first_value=classes[0])
    ignored = tuple((x, x, x) for x in values if x not in classes)
    colors = [(x, x, x) for x in classes]
    return list(map(str, classes)), colors, dataclasses.replace(run, ignored=ignored)


def _build(run: SegmentSettings, classes: int, num_images: int) -> Model:
    """The model to train: a head on the model that the settings name, or on a small one."""
    size = None if run.image_size is None else (run.image_size, run.image_size)
    if run.model is None:
        small = plan_training(num_images)
        pixels = run.image_size or small.recipe.image_size
        say(f"model: {small.model}, random weights, for {num_images:,} images; --model names one")
        shape = (pixels, pixels, 3)
        backbone = create_model(small.model, input_shape=shape, **small.model_options)
    else:
        backbone = open_model(run.model, size)
    keras.utils.set_random_seed(run.seed)
    backbone.trainable = not run.freeze
    return build_segmenter(backbone, classes, run.head)


def _recipe(run: SegmentSettings, num_images: int) -> Recipe:
    """The hyperparameters of a run, for as many steps as its batches have."""
    changes: dict[str, Any] = {"steps": max(1, num_images // run.batch_size * run.epochs)}
    if run.warmup_steps is not None:
        changes["warmup_steps"] = run.warmup_steps
    kept = {name: getattr(run, name) for name in ("learning_rate", "batch_size", "clip_norm")}
    return find_recipe("dense").replace(**changes, **kept)


def _advice(run: SegmentSettings, recipe: Recipe) -> str:
    """What to do if classes are not found."""
    weights = "" if run.class_weights else " Classes of few pixels need --class-weights."
    return (
        f"Train for more than these {recipe.steps:,} steps (--epochs {4 * run.epochs}), or with a "
        f"lower learning rate (--learning-rate {recipe.learning_rate / 3:.2g}).{weights}"
    )


def _compile(model: Model, run: SegmentSettings, recipe: Recipe) -> None:
    factors = layerwise_decay(model, run.layer_decay) if run.layer_decay else None
    classes = model.output_shape[-1]
    options = {"ignore_class": IGNORED, "sparse_y_pred": False, "name": "mean_iou"}
    model.compile(
        recipe.build_optimizer(0, factors),  # of the steps of the recipe
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED),
        metrics=[keras.metrics.MeanIoU(classes, **options)],
    )


def _describe(
    model: Model, run: SegmentSettings, parts: dict[str, MaskSet], recipe: Recipe
) -> Iterator[tuple[str, str]]:
    """Model, images, steps and memory of a run, as pairs of a name and a text."""
    try:
        memory = list(describe_memory(model, run.batch_size, optimizer_slots=2))
        yield "model", parameters_text(model)
    except ValueError as error:  # layers of another library
        memory = [("memory", f"not known: {error}")]
        yield "model", f"{model.name}, {model.count_params():,} parameters"
    held_out = parts["validation"].num_images if "validation" in parts else 0
    yield "images", f"{parts['training'].num_images:,} to train on, {held_out:,} to evaluate on"
    if "validation" in parts:
        yield "held out", describe_held_out(parts["training"], parts["validation"])
    yield "size", " x ".join(map(str, model.input_shape[1:]))
    steps = recipe.count_steps(parts["training"].num_images)
    yield "steps", f"{steps:,} of {run.batch_size:,} images: {run.epochs:,} epochs"
    yield "optimizer", optimizer_text(recipe, steps)
    yield from memory
    if run.freeze:
        yield "memory", "with frozen weights less"


def evaluate_segmenter(
    images: str,
    masks: str,
    model: str,
    classes: str | None = None,
    ignored: Sequence[int | Colour] | None = None,
    as_json: bool = False,
    image_size: tuple[int, int] | None = None,
    **windows: Any,
) -> None:
    """Prints the mean IoU of a segmentation model on images with masks."""
    loaded, names, settings = _open(model, image_size)
    if classes is not None:
        had_colours = settings.get("colors") is not None
        names, settings["colors"] = read_classes(classes)
        if had_colours != (settings["colors"] is not None):
            settings.pop("ignored", None)  # colours and values do not fit each other's masks
    if ignored is not None:
        settings["ignored"] = ignored
    found = _read(images, masks, names, settings)
    result = evaluate_masks(loaded, found, **windows)
    if as_json:
        iou = dict(zip(result.class_names, result.iou.tolist(), strict=True))
        measures = {"mean_iou": result.mean_iou, "pixel_accuracy": result.pixel_accuracy}
        known = {name: value for name, value in iou.items() if value == value}  # JSON has no NaN
        print(json.dumps({**measures, "iou": known, "images": result.num_images}))
    else:
        say(result)


def predict_segments(
    files: Sequence[str],
    model: str,
    output: str = "segments",
    unreadable: str = "error",
    image_size: tuple[int, int] | None = None,
    **windows: Any,
) -> None:
    """Writes the class map of image files as PNG masks, and drawn over the images."""
    paths = find_readable(files, unreadable)
    results = result_files(paths, output, (".png", "_overlay.png"))
    loaded, names, settings = _open(model, image_size)
    for path in paths:
        pixels = read_image(path, loaded.inputs[0].shape[-1])
        found = predict_masks(loaded, pixels, **windows)
        mask, overlay = results[path]
        write_png(mask, found[..., None])
        write_png(overlay, draw_classes(pixels, found, settings.get("colors")))
        shares = [(names[label], float((found == label).mean())) for label in range(len(names))]
        shown = sorted((item for item in shares if item[1]), key=lambda item: -item[1])
        texts = [str(path), *(f"{name} {share:.1%}" for name, share in shown)]
        say("  ".join(map(printable, texts)))


def read_classes(path: str) -> tuple[list[str], list[tuple[int, int, int]] | None]:
    """Reads class names, one per line, each with a colour where masks have colours.

    Args:
        path: Text file of lines such as `road` or `road 128 64 128`.

    Returns:
        The names, and their colours or `None`.

    Raises:
        ValueError: If some lines have a colour and others have none, or there is no line.
    """
    text = read_text(path)
    lines = [line.split() for line in text.splitlines() if line.strip()]
    coloured = [line for line in lines if len(line) > 3 and all(map(str.isdigit, line[-3:]))]
    if not lines or 0 < len(coloured) < len(lines):
        raise ValueError(
            f"{path} must name a class in each line, and the colour of every class or of none: "
            f"`road` or `road 128 64 128`. Received: {len(lines)} lines, {len(coloured)} of them "
            "with a colour."
        )
    if not coloured:
        return [" ".join(line) for line in lines], None
    colors = [(int(line[-3]), int(line[-2]), int(line[-1])) for line in lines]
    return [" ".join(line[:-3]) for line in lines], colors


def _read(images: str, masks: str, names: Sequence[str], settings: dict[str, Any]) -> MaskSet:
    """The images and masks, checked to the last pixel."""
    colors = settings.get("colors")
    return read_masks(
        images,
        masks,
        names,
        first_value=settings.get("first_value", 0),
        ignored=[x if isinstance(x, int) else tuple(x) for x in settings.get("ignored", [IGNORED])],
        colors=colors and [tuple(color) for color in colors],
        mask_suffix=settings.get("mask_suffix", ""),
        check="pixels",
    )


def _open(
    model: str, image_size: tuple[int, int] | None
) -> tuple[keras.Model, list[str], dict[str, Any]]:
    """A segmentation model, its class names, and what its run says about masks."""
    loaded = open_model(model, image_size, networks=True)
    shape = as_segmenter(loaded).output_shape
    if not isinstance(shape, tuple) or len(shape) != 4:
        raise ValueError(
            f"{model!r} is no segmentation model: its output has the shape {shape}, and logits of "
            "pixels (B, H, W, K) are needed. Train one: `keras-vit segment train`."
        )
    path = resolve_model(model).path
    config = read_config(path.parent) if path else {}
    return loaded, class_names_of(model, None, as_segmenter(loaded)), _of_masks(config)


def _of_masks(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in _MASKS if name in settings}


def _draw_held_out(model: keras.Model, masks: MaskSet, folder: pathlib.Path, colors: Any) -> None:
    """Draws true and predicted classes of some images, one above the other."""
    folder.mkdir(exist_ok=True)
    few = masks.subset(np.arange(min(_DRAWN, masks.num_images)))
    for index, (image, labels) in enumerate(few.pairs()):
        pixels = decode(image, model.inputs[0].shape[-1]).numpy()
        maps = labels, predict_masks(model, pixels)
        drawn = [draw_classes(pixels, each, colors) for each in maps]
        write_png(folder / f"{index}.png", np.concatenate(drawn))
