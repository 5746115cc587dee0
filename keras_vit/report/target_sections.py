"""Sections of the result page for several labels and for regression targets."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator

import numpy as np

from keras_vit.evaluate.targets import LabelPredictions, ValuePredictions
from keras_vit.report.charts import draw_scatter
from keras_vit.report.page import Section, render_bar, render_long_table, render_table


def label_tiles(predictions: LabelPredictions) -> Iterator[tuple[str, str]]:
    """Values in large letters, and what they are."""
    shares = {name: _share(value) for name, value in predictions.metrics().items()}
    count = f"{len(predictions.targets):,} images"
    yield "macro average precision, the mean over labels", shares["macro average precision"]
    yield f"95 % bootstrap interval of it, {count}", _interval(*predictions.interval(), ".1%")
    yield "micro average precision, over all decisions", shares["micro average precision"]
    yield "macro F1, the mean over labels", shares["macro F1"]
    yield "micro F1, over all decisions", shares["micro F1"]
    yield f"exact matches, of {count}", shares["exact matches"]


def label_sections(predictions: LabelPredictions) -> Iterator[Section]:
    """Average precision, precision and recall of every label."""
    best = predictions.score(predictions.best_thresholds())
    pairs = sorted(
        zip(predictions.score(), best, strict=True),
        key=lambda pair: (math.isnan(pair[0].average_precision), pair[0].average_precision),
    )
    rows = []
    for at_own, at_best in pairs:
        average = 0.0 if math.isnan(at_own.average_precision) else at_own.average_precision
        cells = [html.escape(at_own.name), f"{at_own.images:,}"]
        cells += [_share(at_own.average_precision), render_bar(average)]
        for each in (at_own, at_best):
            cells += [f"{each.threshold:.3g}", *map(_share, (each.precision, each.recall, each.f1))]
        rows.append(cells)
    head = ("label", "images", "average precision", "", "threshold", "precision", "recall", "F1",
            "best threshold", "precision", "recall", "F1 there")  # fmt: skip
    table = render_long_table(head, rows, " nnbnnnnnnnn")
    yield Section(
        "Scores per label",
        "<p class='soft'>The lowest average precision first: the area below precision against "
        "recall. Then precision, recall and F1 at the threshold of the model, 0.5 where none was "
        "fitted, and at the threshold with the largest F1. That threshold was chosen on these "
        f"images, so its scores are a little too good for new ones.</p>{table}",
    )


def value_tiles(predictions: ValuePredictions) -> Iterator[tuple[str, str]]:
    """Values in large letters, and what they are."""
    scores, count = predictions.score(), f"{len(predictions.targets):,} images"
    for score in scores[:3]:
        yield f"mean absolute error of {score.name}", f"{score.mae:.4g}"
        yield f"95 % interval of it, {count}", _interval(*score.mae_interval)
        if len(scores) == 1:
            yield "R2, the share of the variance that is explained", _known(score.r2)


def value_sections(predictions: ValuePredictions) -> Iterator[Section]:
    """Errors of every target, and predicted against true values."""
    rows = []
    for k, score in enumerate(predictions.score()):
        mean = predictions.targets[:, k].mean()
        plain = np.abs(predictions.targets[:, k] - mean).mean()
        texts = (f"{score.mae:.4g}", _interval(*score.mae_interval), f"{plain:.4g}")
        errors = (f"{score.rmse:.4g}", _known(score.r2), _interval(*score.errors))
        rows.append((html.escape(score.name), *texts, *errors))
    head = ("target", "mean absolute error", "95 % interval", "error of the mean",
            "root mean square", "R2", "95 % of the errors")  # fmt: skip
    yield Section(
        "Errors",
        "<p class='soft'>In the units of each target. “Of the mean” is the error of predicting the "
        "mean for every image. The last column is the range of the middle 95 % of predicted less "
        "true values: what to expect of a single image. The 95 % interval of the mean error is "
        "Student's; it is unknown for one image, or where SciPy is not installed.</p>"
        f"{render_table(head, rows, ' nnnnnn')}",
    )
    charts = "".join(
        f"<div>{draw_scatter(name, predictions.targets[:, k], predictions.outputs[:, k])}</div>"
        for k, name in enumerate(predictions.class_names)
    )
    yield Section(
        "Predicted and true values",
        "<p class='soft'>A point for each image. On the dashed line, both are equal.</p>"
        f'<div class="grid">{charts}</div>',
    )


def describe_image(predictions: LabelPredictions | ValuePredictions, index: int) -> str:
    """HTML about one image: its true and predicted labels or values."""
    true, found = predictions.targets[index], predictions.outputs[index]
    lines = []
    if isinstance(predictions, ValuePredictions):
        for name, value, predicted in zip(predictions.class_names, true, found, strict=True):
            name = html.escape(name)
            lines.append(f"{name}: <b>{predicted:.4g}</b>, but is <b>{value:.4g}</b>")
        return "<br>".join(lines)
    limits = predictions.limits()
    for k in np.argsort(-np.abs(true - found), kind="stable"):
        if (true[k] > 0) != (found[k] >= limits[k]):
            word = "missed" if true[k] > 0 else "wrong"
            name = html.escape(predictions.class_names[k])
            lines.append(f"<b>{name}</b> {found[k]:.1%}, {word}")
    chosen = [name for name, value in zip(predictions.class_names, true, strict=True) if value > 0]
    is_right = "" if lines else "; every label is right"
    listed = html.escape(", ".join(chosen)) or "none of the labels"
    return "<br>".join([f"is <b>{listed}</b>{is_right}", *lines])


def _share(value: float) -> str:
    return _known(value, ".1%")


def _known(value: float, form: str = ".3f") -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def _interval(low: float, high: float, form: str = ".4g") -> str:
    return "unknown" if math.isnan(low) else f"{low:{form}} to {high:{form}}"
