"""Writes an HTML page about the result of training: curves, accuracy, mistakes, calibration."""

from __future__ import annotations

import html
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.analysis.attention import attention_rollout
from keras_vit.analysis.image_batches import displayed
from keras_vit.analysis.outliers import outlier_patches
from keras_vit.analysis.plots import relative_map
from keras_vit.errors import listed, needing_tensorflow
from keras_vit.evaluate.class_predictions import Predictions
from keras_vit.evaluate.counting import count_parameters, count_stages, describe_macs
from keras_vit.evaluate.targets import AnyPredictions, LabelPredictions, ValuePredictions
from keras_vit.files import write_text
from keras_vit.intervals import wilson_interval
from keras_vit.report.charts import draw_calibration, draw_confusion, draw_curves, draw_interval
from keras_vit.report.page import (
    Section,
    data_address,
    human,
    render_long_table,
    render_page,
    render_table,
    render_tiles,
)
from keras_vit.report.target_sections import (
    describe_image,
    label_sections,
    label_tiles,
    value_sections,
    value_tiles,
)

_MOST_CELLS = 1000  # classes of a confusion matrix that is drawn
_MOST_PAIRS = 10
_SMALL = 64  # pixels along the longer side, below which images are enlarged without smoothing
_MOST_LINES = 50  # of a list


def write_result_page(
    path: str | os.PathLike[str],
    model: keras.Model,
    predictions: AnyPredictions | None = None,
    history: keras.callbacks.History | Mapping[str, Sequence[float]] | None = None,
    *,
    title: str = "Result of training",
    subtitle: str = "",
    best_epoch: int | None = None,
    cost: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> pathlib.Path:
    """Writes one HTML page about the result of training, which needs no other file.

    The page shows accuracy, learning curves, accuracy per class with 95 % intervals, the confusion
    matrix, the images that are most wrong with attention rollout, calibration, cost and settings;
    for several labels average precision, precision and recall of each; for a regression errors with
    intervals, and predicted against true values.
    What is not known is left out. `Run.report` and `keras-vit train` write it for a run.

    Args:
        path: The file to write, `.html`. A file that exists is replaced.
        model: The trained model.
        predictions: Its predictions on images that it was not trained on, from `predict_set` or
            `predict_targets`.
        history: What `fit` returns, or a dict of lists with one value per epoch.
        title: Heading, such as the name of the run.
        subtitle: What was trained on what, in a sentence.
        best_epoch: The epoch that the model is from, counted from 1.
        cost: Further facts about the cost of training, as pairs of a name and a text.
        settings: What was chosen: values by name; dicts are shown as tables of their own.

    Returns:
        The path.

    Example:

    >>> predictions = keras_vit.evaluate.predict_set(model, validation)  # doctest: +SKIP
    >>> keras_vit.report.write_result_page(
    ...     "report.html", model, predictions, history
    ... )  # doctest: +SKIP
    """
    curves: Mapping[str, Sequence[float]] = getattr(history, "history", history) or {}
    sections = list(_sections(model, predictions, curves, best_epoch, cost or {}, settings or {}))
    write_text(path, render_page(title, sections, subtitle), errors="backslashreplace")
    return pathlib.Path(path)


def _sections(
    model: keras.Model,
    predictions: AnyPredictions | None,
    curves: Mapping[str, Sequence[float]],
    best_epoch: int | None,
    cost: Mapping[str, str],
    settings: Mapping[str, Any],
) -> Iterator[Section]:
    epochs = max(map(len, curves.values()), default=0)
    tiles: list[tuple[str, str]] = []
    if isinstance(predictions, Predictions):
        tiles += _accuracy_tiles(predictions)
    elif isinstance(predictions, LabelPredictions):
        tiles += label_tiles(predictions)
    elif predictions is not None:
        tiles += value_tiles(predictions)
    if best_epoch is not None:
        tiles.append(("epoch of this model, counted from 1", f"{best_epoch} of {epochs}"))
    tiles += [(name, cost[name]) for name in ("training time", "images a second") if name in cost]
    note = "<p>No images were held out, so accuracy is unknown.</p>" if predictions is None else ""
    yield Section("Result", note + render_tiles(tiles))
    charts = "".join(_charts(curves, best_epoch))
    if charts:
        yield Section("Learning curves", f'<div class="grid">{charts}</div>')
    if isinstance(predictions, LabelPredictions):
        yield from label_sections(predictions)
    elif isinstance(predictions, ValuePredictions):
        yield from value_sections(predictions)
    if isinstance(predictions, LabelPredictions | ValuePredictions):
        yield Section("Largest errors", _mistakes(model, predictions))
    elif predictions is not None:
        yield Section("Accuracy per class", _classes(predictions))
        yield Section("Confusion matrix", _confusion(predictions))
        yield Section("Most wrong images", _mistakes(model, predictions))
        yield Section("Calibration", _calibration(predictions))
    facts = [*_model_cost(model), *cost.items()]
    yield Section("Cost", render_table((), [tuple(map(html.escape, fact)) for fact in facts]))
    if settings:
        yield Section("Settings", _settings(settings))


def _accuracy_tiles(predictions: Predictions) -> Iterator[tuple[str, str]]:
    right, total = int(predictions.is_right.sum()), len(predictions.labels)
    low, high = wilson_interval(right, total)
    yield f"accuracy ({right:,} of {total:,} images)", f"{right / total:.1%}"
    yield "95 % interval of the accuracy", f"{low:.1%} to {high:.1%}"
    yield "expected calibration error", f"{predictions.calibration_error():.1%}"


def _charts(curves: Mapping[str, Sequence[float]], best_epoch: int | None) -> Iterator[str]:
    order = {"loss": 0, "accuracy": 1, "learning_rate": 3}
    for name in sorted(curves, key=lambda name: order.get(name, 2)):
        if name == "seconds" or (name.startswith("val_") and name[4:] in curves):
            continue
        lines = {"training": curves[name]}
        if f"val_{name}" in curves:
            lines["validation"] = curves[f"val_{name}"]
        chart = draw_curves(name.replace("_", " "), lines, best_epoch)
        yield f"<div>{chart}</div>" if chart else ""


def _classes(predictions: Predictions) -> str:
    counts = predictions.count_by_class()
    pairs = [(name, *each) for name, each in zip(predictions.class_names, counts, strict=True)]
    pairs.sort(key=lambda item: (item[1] / item[2] if item[2] else 2, item[0]))
    rows = []
    for name, right, total in pairs:
        low, high = wilson_interval(right, total)
        texts = (f"{right / total:.1%}", f"{low:.1%} to {high:.1%}") if total else ("", "no images")
        bar = draw_interval(right / total, low, high) if total else ""
        rows.append((html.escape(name), f"{right:,} of {total:,}", *texts, bar))
    head = ("class", "correct", "accuracy", "95 % interval", "0 to 100 %")
    table = render_long_table(head, rows, " nnn ")
    return f"<p class='soft'>The lowest accuracy first. Intervals are Wilson's.</p>{table}"


def _confusion(predictions: Predictions) -> str:
    names = predictions.class_names
    pairs = predictions.confused_pairs()[:_MOST_PAIRS]
    counts = predictions.count_by_class()
    rows = [
        (html.escape(names[t]), html.escape(names[p]), f"{count:,} of {counts[t][1]:,}")
        for t, p, count in pairs
    ]
    head = ("true class", "predicted as", "images")
    mistakes = "<p>Every prediction is correct.</p>"
    if rows:
        mistakes = f"<h3>Most frequent mistakes</h3>{render_table(head, rows, '  n')}"
    if len(names) > _MOST_CELLS:
        return mistakes
    chart = draw_confusion(predictions.confusion(), names)
    return (
        "<p class='soft'>Rows are true classes, columns are predictions. Blue is correct, red is "
        f"wrong; the strength is the share of the row.</p><div class='scroll'>{chart}</div>"
        f"{mistakes}"
    )


def _mistakes(model: keras.Model, predictions: AnyPredictions) -> str:
    if predictions.worst_images is None:
        return "<p>Every prediction is correct.</p>"
    images = predictions.worst_images
    shown = displayed(model, images)
    note, maps = "right: darkened where attention rollout is low", None
    try:
        maps, outliers = attention_rollout(model, images), outlier_patches(model, images)
    except ValueError:
        note = "this model has no attention to show"
    else:
        note += "; outlier patches are framed" if outliers.any() else ""
    cards = []
    for i, index in enumerate(predictions.worst):
        file = html.escape(predictions.names[index])
        caption = f"{_caption(predictions, index)}<br><span class='soft'>{file}</span>"
        view = _view(shown[i])
        if maps is not None:
            view += _view(shown[i], maps[i], outliers[i])
        cards.append(f'<figure class="mistake"><div class="pair">{view}</div>{caption}</figure>')
    what = "Wrong predictions with the lowest probability of the true class"
    if not isinstance(predictions, Predictions):
        what = "The images with the largest errors"
    return (
        f"<p class='soft'>{what}, as the model sees them; {note}.</p>"
        f"<div class='grid'>{''.join(cards)}</div>"
    )


def _caption(predictions: AnyPredictions, index: int) -> str:
    if not isinstance(predictions, Predictions):
        return describe_image(predictions, index)
    names = predictions.class_names
    predicted, label = predictions.classes[index, 0], predictions.labels[index]
    return (
        f"<b>{html.escape(names[predicted])}</b> {predictions.probabilities[index, 0]:.1%}, but is "
        f"<b>{html.escape(names[label])}</b> {predictions.label_probabilities[index]:.1%}"
    )


def _view(
    image: np.ndarray, attention: np.ndarray | None = None, outliers: np.ndarray | None = None
) -> str:
    """An image, darkened where attention is low: the page multiplies it with the map."""
    with needing_tensorflow("A page with images"):
        import tensorflow as tf

    is_small = max(image.shape[:2]) < _SMALL
    pixels = np.round(image).astype("uint8")
    if is_small:
        address = data_address(tf.io.encode_png(pixels).numpy(), "png")
    else:
        address = data_address(tf.io.encode_jpeg(pixels, quality=90).numpy(), "jpeg")
    style = " style='image-rendering: pixelated'" if is_small else ""
    mask = ""
    if attention is not None:
        levels = np.round(255 * relative_map(attention)).astype("uint8")
        encoded = tf.io.encode_png(levels[..., None]).numpy()
        mask = f'<img class="mask" alt="attention" src="{data_address(encoded, "png")}">'
    if outliers is not None:
        height, width = 100 / np.array(outliers.shape)
        mask += "".join(
            f'<i style="left:{x * width:.2f}%;top:{y * height:.2f}%;width:{width:.2f}%;'
            f'height:{height:.2f}%"></i>'
            for y, x in np.argwhere(outliers)
        )
    return f'<div class="view"><img alt="image"{style} src="{address}">{mask}</div>'


def _calibration(predictions: Predictions) -> str:
    mean = float(predictions.probabilities[:, 0].mean())
    word = "overconfident" if mean > predictions.accuracy else "underconfident"
    stages = {"of this model": predictions}
    if predictions.before is not None:
        stages = {"before calibration": predictions.before, "calibrated": predictions}
    rows, charts = [], []
    for name, stage in stages.items():
        error, loss = f"{stage.calibration_error():.1%}", f"{stage.log_loss():.3f}"
        rows.append((name, error, "{:.1%} to {:.1%}".format(*stage.calibration_interval()), loss))
        charts.append(f"<div>{draw_calibration(stage.calibration(), f'accuracy, {name}')}</div>")
    head = ("probabilities", "calibration error", "95 % interval", "negative log-likelihood")
    return (
        "<p>The expected calibration error is the mean distance between confidence "
        f"(probability of the predicted class) and accuracy. Mean confidence is {mean:.1%}, "
        f"accuracy {predictions.accuracy:.1%}: the model is {word}. Bars of a calibrated model "
        "end at the dashed line; the small bars count images. Few images have an error of their "
        "own: the interval is that of 200 samples of these images. Where a model was calibrated "
        "with these images, as <code>keras-vit train</code> does, others do a little worse.</p>"
        f"{render_table(head, rows, ' nnn')}"
        f'<div class="grid">{"".join(charts)}</div>'
    )


def _model_cost(model: keras.Model) -> Iterator[tuple[str, str]]:
    yield "model", model.name
    try:
        yield "parameters", f"{human(count_parameters(model))} ({count_parameters(model):,})"
        yield "cost", f"{describe_macs(count_stages(model))}; FLOPs are twice as many"
    except ValueError:  # a layer that cannot be counted
        yield "parameters", f"{model.count_params():,}"


def _settings(settings: Mapping[str, Any]) -> str:
    """Tables of settings: single values first, then one table for every dict."""
    single = {k: v for k, v in settings.items() if not isinstance(v, Mapping)}
    parts = [_values(single)] if single else []
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            parts.append(f"<h3>{html.escape(name)}</h3>{_values(value)}")
    return "".join(parts)


def _values(values: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, list | tuple) and any(isinstance(each, str) for each in value):
            return html.escape(listed(value, _MOST_LINES, "\n")).replace("\n", "<br>")
        return html.escape(value if isinstance(value, str) else json.dumps(value, default=str))

    return render_table((), [(html.escape(name), text(value)) for name, value in values.items()])
