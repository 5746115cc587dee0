"""`keras-vit calibrate`, `suggest` and `compare`, and the labels of `check`: `keras_vit.trust`."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from keras_vit.cli.evaluation import open_evaluated
from keras_vit.cli.output import print_facts, say
from keras_vit.cli.resolve import open_model, resolve_model
from keras_vit.data.folder import read_files
from keras_vit.data.sources import open_images, open_training_data
from keras_vit.train.keras_files import save_keras_file
from keras_vit.train.runs import load_run
from keras_vit.trust.abstaining import fit_abstention
from keras_vit.trust.calibrating import TooFewImagesError, calibrate, fit_thresholds
from keras_vit.trust.drift import compare_images
from keras_vit.trust.labels import check_labels, write_labels
from keras_vit.trust.suggestions import suggest_images, write_suggestions


def calibrate_model(
    model: str,
    data: str,
    output: str | None = None,
    coverage: float = 0.9,
    false_alarms: float = 0.05,
    precision: float | None = None,
    batch_size: int = 32,
    labels: str | None = None,
    task: str | None = None,
    **reading: Any,
) -> None:
    """Makes probabilities right, and lets a model abstain, by images it was not trained on."""
    built: Any = open_model(model)
    path = resolve_model(model).path if output is None else pathlib.Path(output)
    if path is None or path.suffix != ".keras":
        raise ValueError(f"Pass --output FILE.keras: {model} is no `.keras` file to write to.")
    images = open_evaluated(model, built, data, labels, task, **reading)
    if precision is not None and images.task != "multi_label":
        raise ValueError("--precision is of several labels, and every image has one class.")
    try:
        calibrate(built, images, batch_size)
    except TooFewImagesError as error:
        say(f"Not calibrated. {error}")
    if images.task == "multi_label":
        fit_thresholds(built, images, precision=precision)
    else:
        fit_abstention(built, images, coverage, false_alarms, batch_size)
    save_keras_file(built, path)
    say("\n".join(str(each) for each in (built.calibration, built.abstention, path) if each))


def check_labels_of(
    data: str, model: str, output: str, reading: dict[str, Any], as_json: bool
) -> None:
    """Writes the images whose labels are probably wrong, as a table to correct and as a page."""
    images = open_training_data(data, None, None, 0, reading).training
    found = check_labels(open_model(model), images, pathlib.Path(output, "features"))
    table, page = write_labels(found, images, output)
    suspicious = sum(each.is_suspicious for each in found)
    twins = sum(each.twin is not None for each in found)
    facts = {"images": len(found), "probably wrong": suspicious, "near-duplicates": twins}
    _print({**facts, "page": str(page), "table to correct": str(table)}, as_json)


def suggest(
    model: str,
    folder: str,
    count: int = 100,
    image_size: tuple[int, int] | None = None,
    labelled: str | None = None,
    output: str = "runs/suggestions",
    unreadable: str = "error",
    as_json: bool = False,
) -> None:
    """Chooses images to label next, and writes them as a table to fill in and as a page."""
    _, images = read_files([folder], ["?"], unreadable)
    known = None if labelled is None else open_images(labelled, unreadable=unreadable)
    features = pathlib.Path(output, "features")
    found = suggest_images(open_model(model, image_size), images, count, features, known)
    table, page = write_suggestions(found, images, output)
    _print({"images": len(found), "page": str(page), "table to fill in": str(table)}, as_json)


def compare(
    run: str,
    folder: str,
    output: str = "runs/compare.html",
    most_rejected: float = 0.1,
    most_change: float = 0.1,
    batch_size: int = 32,
    unreadable: str = "skip",
    as_json: bool = False,
) -> None:
    """Compares new images with the held-out ones of a run, and exits with 1 if they differ."""
    loaded = load_run(run)
    _, held_out = loaded.held_out()
    if held_out is False:
        raise ValueError(f"The run in {run} has held out no images to compare with.")
    _, images = read_files([folder], loaded.class_names, unreadable)
    found = compare_images(loaded.model, held_out, images, batch_size)
    found.write_page(output, images)
    shift, beyond = found.shifts[0], found.is_beyond(most_rejected, most_change)
    names = ("images", "rejected", "95 % interval", "confidence", "change", "its 95 % interval")
    values = (shift.images, shift.rejected[0], shift.rejected[1:], shift.confidence)
    facts = dict(zip(names, (*values, shift.change[0], shift.change[1:]), strict=True))
    _print({**facts, "beyond a limit": beyond, "page": output}, as_json)
    if beyond:
        raise SystemExit(1)


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))
    else:
        print_facts([(name, _text(value)) for name, value in facts.items()])


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(_text, value))
    return f"{value:.1%}" if isinstance(value, float) else str(value)
