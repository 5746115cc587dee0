"""`keras-vit evaluate` and `predict`: of models and of exported files."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.cli.output import print_facts, print_table, say
from keras_vit.cli.resolve import (
    class_names_of,
    names_in_data,
    open_predictor,
    resolve_model,
    task_of,
)
from keras_vit.data.image_set import ImageSet, check_same_classes
from keras_vit.data.input_transform import transform_of
from keras_vit.data.shard_files import find_format
from keras_vit.data.sources import CSV_ENDING, find_test_part, open_test_images
from keras_vit.errors import printable
from keras_vit.evaluate.class_predictions import Predictions
from keras_vit.evaluate.targets import AnyPredictions
from keras_vit.export.exported_model import ExportedModel
from keras_vit.export.verify import measure_latency, size_of, synthetic_images
from keras_vit.files import write_text
from keras_vit.report.page import Section, render_page, render_table
from keras_vit.train.file_predictions import classify_files, predict_labelled


def evaluate_model(
    model: Sequence[str],
    data: str,
    labels: str | None = None,
    batch_size: int = 32,
    as_json: bool = False,
    task: str | None = None,
    image_size: tuple[int, int] | None = None,
    output: str | None = None,
    **reading: Any,
) -> None:
    """Prints the accuracy of models and exported files on images, or the metrics of their task."""
    rows: list[dict[str, Any]] = []
    first: AnyPredictions | None = None
    for name in model:
        loaded = open_predictor(name, image_size)
        images = open_evaluated(name, loaded, data, labels, task, **reading)
        predicted = predict_labelled(loaded, images, batch_size)
        first = first or predicted
        row: dict[str, Any] = {**predicted.metrics(), "images": images.num_images}
        if len(model) > 1 or output is not None:
            row |= {"agreement": _agreement(first, predicted), **_costs(name, loaded, batch_size)}
            row = {"model": name, **row}
        rows.append(row)
    cells = [{key: _text(key, value) for key, value in row.items()} for row in rows]
    heads, table = list(rows[0]), [list(row.values()) for row in cells]
    if as_json:
        print("\n".join(map(json.dumps, rows)))
    elif len(model) > 1:
        print_table([heads, *table])
    elif images.task == "single_label":
        say("{accuracy} of {images} images".format(**cells[0]))
    else:
        print_facts(list(cells[0].items()))
    if output is not None:
        escaped = [list(map(html.escape, row)) for row in table]
        section = Section("Models", render_table(heads, escaped, " ".ljust(len(heads), "n")))
        note = f"On {data}. Agreement is with {model[0]}; images a second without reading them."
        write_text(output, render_page("Evaluation", [section], note), errors="backslashreplace")


def open_evaluated(
    name: str, model: keras.Model, data: str, labels: str | None, task: str | None, **reading: Any
) -> ImageSet:
    """The images to evaluate a model on, which have its classes."""
    names: list[str] | None = names_in_data(name, labels, model, find_test_part(data))
    are_known = names != [str(number) for number in range(model.output_shape[-1])]
    is_csv, is_exported = data.lower().endswith(CSV_ENDING), isinstance(model, ExportedModel)
    holds_names = is_csv or find_format(find_test_part(data)) is not None
    if data.startswith("tfds:") or (holds_names and not are_known):
        names = None
    if task is None and (are_known or not is_csv) and (is_csv or not is_exported):
        task = task_of(name, model)  # a sigmoid of an exported file may be that of single classes
    images = open_test_images(data, class_names=names, split="test", task=task, **reading)
    if labels is None and (is_exported or resolve_model(name).path is not None):
        check_same_classes(class_names_of(name, None, model), images, images.task)
    return images


def _agreement(first: AnyPredictions, other: AnyPredictions) -> float | None:
    """Share of the images with the same most probable class; `None` of other tasks."""
    if not isinstance(first, Predictions) or not isinstance(other, Predictions):
        return None
    return float(np.mean(first.classes[:, 0] == other.classes[:, 0]))


def _costs(name: str, model: keras.Model, batch_size: int) -> dict[str, Any]:
    """Bytes of the file of a model, and the images a second of its prediction alone."""
    path = model.path if isinstance(model, ExportedModel) else resolve_model(name).path
    transform = transform_of(model)
    pixels = synthetic_images((*transform.image_size, transform.channels), batch_size)
    milliseconds, _ = measure_latency(model.predict_on_batch, pixels)
    size = None if path is None else size_of(path)
    return {"bytes": size, "images a second": 1e3 * batch_size / milliseconds}


def _text(name: str, value: Any) -> str:
    if name in ("accuracy", "agreement") and value is not None:
        return f"{value:.2%}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value or "")


def predict_files(
    files: Sequence[str],
    model: str,
    labels: str | None = None,
    top: int = 3,
    batch_size: int = 32,
    unreadable: str = "error",
    as_json: bool = False,
    threshold: float = 0.5,
    task: str | None = None,
    image_size: tuple[int, int] | None = None,
) -> None:
    """Prints the most probable classes of image files, their labels, or values of targets."""
    loaded = open_predictor(model, image_size)
    names = class_names_of(model, labels, loaded)
    task = task or task_of(model, loaded)
    for path, found in classify_files(loaded, names, files, batch_size, unreadable, task):
        shown = list(found.items())
        if task == "single_label":
            shown = shown[:top]
        elif task == "multi_label" and not as_json:
            shown = [item for item in shown if item[1] >= threshold]
        if as_json:
            key = "values" if task == "regression" else "classes"
            print(json.dumps({"file": str(path), key: dict(shown)}))
            continue
        form = "{} {:.4g}" if task == "regression" else "{} {:.1%}"
        texts = [form.format(*item) for item in shown] or [f"no label from {threshold:g} on"]
        say("  ".join(map(printable, [path, *texts])))
