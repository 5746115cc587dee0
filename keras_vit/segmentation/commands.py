"""`keras-vit segment train`, `evaluate` and `predict`."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.checks import check_positive
from keras_vit.cli.dry_run import describe_memory, parameters_text
from keras_vit.cli.output import print_facts, say
from keras_vit.cli.resolve import class_names_of, open_model, resolve_model
from keras_vit.data.decode import decode
from keras_vit.data.folder import find_readable
from keras_vit.data.image_files import read_image
from keras_vit.data.preview import write_png
from keras_vit.data.sources import read_share
from keras_vit.errors import printable
from keras_vit.models.resizing import resize_model
from keras_vit.reading import read_text
from keras_vit.resume.callback import ResumeTraining
from keras_vit.resume.folder_lock import FolderLock
from keras_vit.segmentation.evaluation import draw_classes, evaluate_masks, predict_masks
from keras_vit.segmentation.mask_pipeline import mask_batches
from keras_vit.segmentation.masks import IGNORED, Colour, MaskSet, read_masks
from keras_vit.segmentation.model import build_segmenter
from keras_vit.train.image_lists import IMAGE_LISTS, describe_lists
from keras_vit.train.keras_files import load_keras_file
from keras_vit.train.optimizers import AdamW, layerwise_decay
from keras_vit.train.run_folder import (
    BEST,
    LOCK,
    STATES,
    callbacks_of,
    open_folder,
    read_config,
    write_results,
)

_DRAWN = 8  # held-out images that `train` draws
_VALIDATION = 0.2
_MASKS = ("first_value", "ignored", "mask_suffix", "colors")  # settings of the masks of a run


def train_segmenter(
    images: str,
    masks: str,
    classes: str,
    model: str,
    head: str = "linear",
    output: str = "runs/segment",
    validation: str | None = None,
    image_size: int | None = None,
    epochs: int = 20,
    batch_size: int = 8,
    learning_rate: float = 1e-3,
    layer_decay: float | None = None,
    freeze: bool = False,
    first_value: int = 0,
    ignored: Sequence[int | Colour] = (IGNORED,),
    mask_suffix: str = "",
    seed: int = 0,
) -> None:
    """Trains a segmentation head on a model, or both, from images and masks."""
    check_positive("epochs", epochs)
    names, colors = read_classes(classes)
    reading = (first_value, list(ignored), mask_suffix, colors)
    settings = {"task": "segmentation", **dict(zip(_MASKS, reading, strict=True))}
    training = _read(images, masks, names, settings)
    share = read_share(validation or str(_VALIDATION))
    if share is None:
        raise ValueError(
            f"`--validation` is a share of the images to hold out, such as 0.2. Received: "
            f"{validation!r}."
        )
    parts = {"training": training}
    held_out = None
    if share:
        training, held_out = training.split(share, seed)
        parts = {"training": training, "validation": held_out}
    backbone = open_model(model)
    keras.utils.set_random_seed(seed)
    if image_size is not None:
        backbone = resize_model(backbone, image_size)
    backbone.trainable = not freeze
    segmenter = build_segmenter(backbone, len(names), head)
    steps = training.num_images // batch_size * epochs
    size = " x ".join(map(str, segmenter.input_shape[1:]))
    try:
        memory = list(describe_memory(segmenter, batch_size, optimizer_slots=2))
        parameters = parameters_text(segmenter)
    except ValueError as error:  # layers of another library
        memory = [("memory", f"not known: {error}")]
        parameters = f"{segmenter.name}, {segmenter.count_params():,} parameters"
    if freeze:
        memory.append(("memory", "with frozen weights less"))
    print_facts(
        [
            ("model", parameters),
            ("images", f"{training.num_images:,} to train on"),
            ("size", size),
            *memory,
        ]
    )
    segmenter.compile(
        AdamW(
            keras.optimizers.schedules.CosineDecay(learning_rate, max(1, steps)),
            weight_decay=1e-4,
            rate_factors=layerwise_decay(segmenter, layer_decay) if layer_decay else None,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED),
        metrics=[
            keras.metrics.MeanIoU(
                len(names), ignore_class=IGNORED, sparse_y_pred=False, name="mean_iou"
            )
        ],
    )
    given = {
        "images": images,
        "masks": masks,
        "model": model,
        "head": head,
        "validation": share,
        "image_size": image_size,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "layer_decay": layer_decay,
        "freeze": freeze,
        "seed": seed,
        "class_names": names,
        **settings,
        IMAGE_LISTS: describe_lists({part: list(each.items[0]) for part, each in parts.items()}),
        "versions": {"keras": keras.__version__, "python": sys.version.split()[0]},
    }
    folder = pathlib.Path(output)
    with FolderLock(folder / LOCK):
        open_folder(folder, given)
        written = callbacks_of(folder, held_out is not None, False, "segmentation")
        history = segmenter.fit(
            mask_batches(training, segmenter, batch_size, training=True, seed=seed),
            epochs=epochs,
            validation_data=None
            if held_out is None
            else mask_batches(held_out, segmenter, batch_size),
            shuffle=False,  # the batches are shuffled
            callbacks=[*written, ResumeTraining(folder / STATES)],
            verbose=2,
        )
        results: dict[str, Any] = {name: values[-1] for name, values in history.history.items()}
        if held_out is not None:
            best = load_keras_file(folder / BEST)
            result = evaluate_masks(best, held_out, batch_size=batch_size)
            results |= {"mean IoU": result.mean_iou, "pixel accuracy": result.pixel_accuracy}
            _draw_held_out(best, held_out, folder / "overlays", colors)
            say(result)
        write_results(folder, segmenter, results, history)
    say(f"{folder}: the model, for `keras-vit segment evaluate`, `predict` and `export`.")


def evaluate_segmenter(
    images: str,
    masks: str,
    model: str,
    mode: str = "whole",
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    batch_size: int = 8,
    classes: str | None = None,
    ignored: Sequence[int | Colour] | None = None,
    as_json: bool = False,
) -> None:
    """Prints the mean IoU of a segmentation model on images with masks."""
    loaded, names, settings = _open(model)
    if classes is not None:
        had_colours = settings.get("colors") is not None
        names, settings["colors"] = read_classes(classes)
        if had_colours != (settings["colors"] is not None):
            settings.pop("ignored", None)  # colours and values do not fit each other's masks
    if ignored is not None:
        settings["ignored"] = ignored
    found = _read(images, masks, names, settings)
    result = evaluate_masks(loaded, found, mode, tuple(scales), flip, batch_size=batch_size)
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
    mode: str = "whole",
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    batch_size: int = 8,
    unreadable: str = "error",
) -> None:
    """Writes the class map of image files as PNG masks, and drawn over the images."""
    paths = find_readable(files, unreadable)
    folder = pathlib.Path(output)
    endings = (".png", "_overlay.png")
    results = {path: [folder / f"{path.stem}{end}" for end in endings] for path in paths}
    written = [file for files in results.values() for file in files]
    counts = collections.Counter(written)
    clashing = [str(path) for path in paths if any(counts[file] > 1 for file in results[path])]
    if clashing:
        raise ValueError(
            "Images NAME.jpg become NAME.png and NAME_overlay.png, and files of these images would "
            f"replace one another: {', '.join(map(printable, clashing[:5]))}. Predict them into "
            "folders of their own with --output."
        )
    own = {path.resolve() for path in paths}
    lost = [str(path) for path in written if path.resolve() in own]
    if lost:
        raise ValueError(
            "Masks would replace images that they are predicted for: "
            f"{', '.join(map(printable, lost[:5]))}. Choose another --output."
        )
    loaded, names, settings = _open(model)
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        pixels = read_image(path, loaded.inputs[0].shape[-1])
        found = predict_masks(loaded, pixels, mode, tuple(scales), flip, batch_size=batch_size)
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


def _open(model: str) -> tuple[keras.Model, list[str], dict[str, Any]]:
    """A segmentation model, its class names, and what its run says about masks."""
    loaded = open_model(model)
    shape = loaded.output_shape
    if not isinstance(shape, tuple) or len(shape) != 4:
        raise ValueError(
            f"{model!r} is no segmentation model: its output has the shape {shape}, and logits of "
            "pixels (B, H, W, K) are needed. Train one: `keras-vit segment train`."
        )
    path = resolve_model(model).path
    config = read_config(path.parent) if path else {}
    names = class_names_of(model, None, loaded)
    return loaded, names, {name: config[name] for name in _MASKS if name in config}


def _draw_held_out(model: keras.Model, masks: MaskSet, folder: pathlib.Path, colors: Any) -> None:
    """Draws true and predicted classes of some images, one above the other."""
    folder.mkdir(exist_ok=True)
    few = dataclasses.replace(masks, items=tuple(item[:_DRAWN] for item in masks.items))
    for index, (image, labels) in enumerate(few.pairs()):
        pixels = decode(image, model.inputs[0].shape[-1]).numpy()
        maps = labels, predict_masks(model, pixels)
        drawn = [draw_classes(pixels, each, colors) for each in maps]
        write_png(folder / f"{index}.png", np.concatenate(drawn))
