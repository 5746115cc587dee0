"""`keras-vit export`, `find-export`, `verify`, `inspect`, `report` and `push`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit.cli.commands import MAX_IMAGES
from keras_vit.cli.output import complain, say
from keras_vit.cli.resolve import (
    class_names_of,
    gives_class_maps,
    names_in_data,
    open_model,
    resolve_model,
    task_of,
)
from keras_vit.export.formats import FORMATS, RUNTIMES
from keras_vit.train.run_folder import CONFIG, find_saved_model
from keras_vit.train.runs import SEGMENTATION, activation_of, find_exporter, load_run

if TYPE_CHECKING:
    from keras_vit.data.image_set import ImageSet


def export_model(
    model: str,
    to: str,
    output: str,
    precision: str | None = None,
    labels: str | None = None,
    images: Sequence[str] = (),
    unreadable: str = "error",
    task: str | None = None,
    image_size: tuple[int, int] | None = None,
    server: str | None = None,
) -> None:
    """Exports a model as SavedModel, LiteRT, ONNX or OpenVINO file, checked against the model."""
    loaded = open_model(model, image_size, networks=True)
    options: dict[str, Any] = {}
    if gives_class_maps(loaded):
        task = SEGMENTATION
        if precision not in (None, "float32"):
            raise ValueError(
                f"Segmentation models are exported in float32. Received: --precision {precision}. "
                "Leave it out."
            )
    else:
        task = task or task_of(model)
        options = {"precision": precision or "float32", "activation": activation_of(task)}
    if labels is not None or resolve_model(model).path is not None:
        names = class_names_of(model, labels, loaded)
        if names != list(map(str, range(len(names)))):  # which only classes get by default
            options["labels"] = names
    if images:
        options["images"] = _read_some(images, loaded, unreadable)
        if precision in FORMATS[to].calibrated:
            options["calibration"] = options["images"]
    from keras_vit.export.search import describe_plan

    what = f"1 export as {to} in {precision or 'float32'}, and a check against the model"
    complain(f"{describe_plan(loaded, what)}.")
    if server is None:
        say(find_exporter(to, task)(loaded, output, **options))
        return
    if task == SEGMENTATION:
        raise ValueError(f"{model!r} classifies pixels. `--server` takes models of whole images.")
    from keras_vit.export.model_servers import export_for_server

    say(export_for_server(loaded, output, server, to, **options))


def find_export(
    model: str,
    data: str | None = None,
    output: str | None = None,
    goal: str = "latency",
    budget: float = 0.01,
    runtimes: Sequence[str] = RUNTIMES,
    precisions: Sequence[str] | None = None,
    batch: int = 1,
    labels: str | None = None,
    images: Sequence[str] = (),
    unreadable: str = "error",
    image_size: tuple[int, int] | None = None,
) -> None:
    """Finds the fastest or smallest export of a model that loses no more than a budget."""
    from keras_vit.data.sources import open_images
    from keras_vit.export.search import find_export

    loaded = open_model(model, image_size)
    if data is not None and gives_class_maps(loaded):
        raise ValueError(
            f"Labelled images have a class each, and {model!r} classifies pixels. Pass images by "
            "`--images`, without labels."
        )
    pixels = _read_some(images, loaded, unreadable) if images else None
    limits = output, goal, budget, runtimes, precisions, batch
    if data is None:
        names = labels and class_names_of(model, labels, loaded)
        activation = activation_of(task_of(model))
        say(find_export(loaded, pixels, *limits, labels=names, activation=activation))
    else:
        names = None if data.startswith("tfds:") else names_in_data(model, labels, loaded, data)
        labelled = open_images(data, None, names, unreadable, "test")
        say(find_export(loaded, labelled, *limits, pixels))
    if output is None:
        say("The file is not kept: pass --output FOLDER to keep it.")


def verify_file(
    path: str,
    model: str,
    tolerance: float | None = None,
    images: Sequence[str] = (),
    unreadable: str = "error",
    image_size: tuple[int, int] | None = None,
) -> None:
    """Compares the outputs of an exported file with those of its model."""
    from keras_vit.export.runners import litert_kernels
    from keras_vit.export.verify import verify_export

    loaded = open_model(model, image_size, networks=True)
    pixels = _read_some(images, loaded, unreadable) if images else None
    activation = activation_of(task_of(model))
    report = verify_export(path, loaded, pixels, tolerance=tolerance, activation=activation)
    say(report)
    if report.format == "litert":
        say(litert_kernels(path))


def _read_some(paths: Sequence[str], model: keras.Model, unreadable: str) -> list[np.ndarray]:
    """Reads at most `MAX_IMAGES` of the images that a user names."""
    from keras_vit.data.folder import find_readable
    from keras_vit.data.image_files import read_images

    files = find_readable(paths, unreadable)
    return read_images(files, model.input_shape[-1], MAX_IMAGES)


def inspect_model(
    model: str,
    images: Sequence[str],
    output: str = "report.html",
    labels: str | None = None,
    unreadable: str = "error",
    image_size: tuple[int, int] | None = None,
) -> None:
    """Writes an HTML report about a model: configuration, cost, weights, attention."""
    from keras_vit.data.folder import find_readable
    from keras_vit.data.image_files import ImageFiles
    from keras_vit.report.model_page import write_report

    loaded = open_model(model, image_size)
    known = class_names_of(model, labels, loaded)
    names = None if known == list(map(str, range(len(known)))) else known
    files = ImageFiles(find_readable(images, unreadable), loaded) if images else None
    say(write_report(loaded, output, files, names, task_of(model)))


def report_run(
    run: str,
    data: str | None = None,
    output: str | None = None,
    batch_size: int = 32,
    data_dir: str | None = None,
    download: bool = False,
    unreadable: str | None = None,
) -> None:
    """Writes the result page of a run: curves, accuracy per class, mistakes, calibration."""
    from keras_vit.data.sources import open_test_images

    loaded = load_run(run)
    if unreadable is not None:
        loaded.config["unreadable"] = unreadable
    images = None
    if data is not None:
        names = None if data.startswith("tfds:") else loaded.class_names
        options = (unreadable or "error", "test", download, loaded.task)
        images = open_test_images(data, data_dir, names, *options)
    say(loaded.report(images, output, batch_size))


def report_at_end(folder: pathlib.Path, held_out: tuple[str, ImageSet] | None) -> None:
    """Writes the result page of a run that has just ended, or says why there is none.

    Args:
        folder: Folder of the run.
        held_out: What the images are that the run was not trained on, and the images.
    """
    try:
        run = load_run(folder)
        say(run.report(held_out[1], kind=held_out[0]) if held_out else run.report(False))
    except (ValueError, OSError, RuntimeError) as error:  # the run itself is complete
        complain(f"No report.html: {error} The run is complete; try `keras-vit report {folder}`.")


def push_model(
    model: str,
    address: str,
    layout: str | None = None,
    licence: str | None = None,
    private: bool = False,
    dry_run: str | None = None,
) -> None:
    """Publishes the model of a run, or a .keras file, on the Hugging Face hub, with a card."""
    from keras_vit.hub.upload import push

    folder = pathlib.Path(model)
    is_run = (folder / CONFIG).is_file() and find_saved_model(folder) is not None
    source = load_run(folder) if is_run else open_model(model)
    options = {"layout": layout, "licence": licence, "dry_run": dry_run}
    say(push(source, address, private=private or None, **options))
