"""Predictions of several labels or of regression targets, and what follows from them.

Average precision, precision and recall at thresholds; mean absolute error with intervals.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from keras_vit.checks import short_repr
from keras_vit.errors import needing_tensorflow
from keras_vit.evaluate.class_predictions import Predictions, predict_batches, short
from keras_vit.evaluate.thresholds import calibrate_thresholds
from keras_vit.files import write_csv
from keras_vit.models.heads import class_probabilities

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_RESAMPLES, _MOST_WORK = (100, 500), 1e8  # of the images for an interval, times images and labels
_INTERVAL = (2.5, 97.5)  # percentiles


class LabelScore(NamedTuple):
    """Quality of the predictions of one label at a threshold.

    Args:
        name: The label.
        images: Images that have it.
        average_precision: Area below precision against recall, over all thresholds; NaN if no image
            has the label.
        threshold: Score from which the label is predicted.
        precision: Share of the predictions that are right; NaN without any.
        recall: Share of the images with the label that are predicted; NaN without any.
        f1: Harmonic mean of both.
    """

    name: str
    images: int
    average_precision: float
    threshold: float
    precision: float
    recall: float
    f1: float


@dataclasses.dataclass(frozen=True, eq=False)
class TargetPredictions:
    """Predictions of several labels or targets for each image. Made by `predict_targets`.

    Args:
        source: Name of the images.
        names: Path of the file of every image, or its position where there are no files.
        class_names: Names of the labels or targets.
        targets: True labels, 0 or 1, or true values, of shape `(B, K)`.
        outputs: Probabilities of each label by itself, or predicted values, of shape `(B, K)`.
        worst: Positions of the images with the largest cross-entropy, or with the largest error in
            standard deviations of each target, largest first.
        worst_images: Their model inputs, of shape `(len(worst), H, W, C)`.
        thresholds: Probability from which each label is predicted; empty for 0.5.
    """

    source: str
    names: tuple[str, ...]
    class_names: tuple[str, ...]
    targets: np.ndarray
    outputs: np.ndarray
    worst: tuple[int, ...] = ()
    worst_images: np.ndarray | None = None
    thresholds: tuple[float, ...] = ()

    __repr__ = short_repr


class LabelPredictions(TargetPredictions):
    """Predictions of several labels for each image."""

    def average_precision(self) -> np.ndarray:
        """Average precision of every label, `(K,)`; NaN for a label that no image has."""
        return _average_precision(self.targets, self.outputs)

    def metrics(self, threshold: float | None = None) -> dict[str, float]:
        """Average precision and F1, macro and micro, and exact matches.

        Args:
            threshold: One for all labels; `None` takes `thresholds`.
        """
        chosen, true = self.outputs >= self.limits(threshold), self.targets > 0
        right = float((chosen & true).sum())
        columns = self.targets.reshape(-1, 1), self.outputs.reshape(-1, 1)
        return {
            "macro average precision": float(_mean(self.average_precision())),
            "micro average precision": float(_average_precision(*columns)[0]),
            "macro F1": float(_mean(np.array([each.f1 for each in self.score(threshold)]))),
            "micro F1": _f1(right, float(chosen.sum()), float(true.sum())),
            "exact matches": float((chosen == true).all(axis=1).mean()),
        }

    def interval(self, seed: int = 0) -> tuple[float, float]:
        """95 % bootstrap interval of the macro average precision; NaN for one image."""
        if len(self.targets) == 1:
            return float("nan"), float("nan")
        random = np.random.default_rng(seed)
        values = []
        for _ in range(int(np.clip(_MOST_WORK / self.targets.size, *_RESAMPLES))):
            sample = random.integers(len(self.targets), size=len(self.targets))
            values.append(_mean(_average_precision(self.targets[sample], self.outputs[sample])))
        known = [value for value in values if not np.isnan(value)] or [float("nan")]
        low, high = np.percentile(known, _INTERVAL)
        return float(low), float(high)

    def score(self, threshold: float | Sequence[float] | None = None) -> list[LabelScore]:
        """Scores of every label at a threshold: one for all, one for each, or `thresholds`."""
        limits = self.limits(threshold)
        scores = []
        for k, average in enumerate(self.average_precision()):
            chosen, true = self.outputs[:, k] >= limits[k], self.targets[:, k] > 0
            right, predicted, count = (chosen & true).sum(), chosen.sum(), true.sum()
            precision = float(right / predicted) if predicted else float("nan")
            recall = float(right / count) if count else float("nan")
            f1 = _f1(right, predicted, count)
            row = (int(count), float(average), float(limits[k]), precision, recall, f1)
            scores.append(LabelScore(self.class_names[k], *row))
        return scores

    def best_thresholds(self, metric: str = "f1", precision: float | None = None) -> list[float]:
        """The best threshold of every label on these images; 0.5 where none or all have it.

        Args:
            metric: As for `calibrate_thresholds`.
            precision: As for `calibrate_thresholds`.
        """
        shares = (self.targets > 0).mean(axis=0)
        known, best = (shares > 0) & (shares < 1), np.full(len(shares), 0.5)
        if known.any():
            columns = self.outputs[:, known], self.targets[:, known].astype("int64")
            best[known] = calibrate_thresholds(*columns, metric, precision)
        return list(map(float, best))

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes one row for every image: file, true and predicted labels, scores."""
        heads = ["file", "true", "predicted", *(f"score of {name}" for name in self.class_names)]
        rows = (
            [name, *map(self._listed, (true > 0, scores >= self.limits())), *map(short, scores)]
            for name, true, scores in zip(self.names, self.targets, self.outputs, strict=True)
        )
        write_csv(path, [heads, *rows])

    def limits(self, threshold: float | Sequence[float] | None = None) -> np.ndarray:
        """Thresholds of all labels: one for all, one for each, or `thresholds`."""
        if threshold is None:
            threshold = self.thresholds or 0.5
        return np.broadcast_to(np.asarray(threshold, "float64"), len(self.class_names))

    def _listed(self, chosen: np.ndarray) -> str:
        return "|".join(name for name, is_in in zip(self.class_names, chosen, strict=True) if is_in)


class TargetScore(NamedTuple):
    """Error of the predictions of one regression target, in its units.

    Args:
        name: The target.
        mae: Mean absolute error.
        mae_interval: Its 95 % interval by Student's t distribution; NaN for one image, or without
            SciPy, which `pip install "keras-vision-transformer[probe]"` installs.
        rmse: Root of the mean squared error.
        r2: Share of the variance that is explained: 1 is perfect, 0 as good as the mean.
        errors: Range that holds the middle 95 % of the errors, predicted less true.
    """

    name: str
    mae: float
    mae_interval: tuple[float, float]
    rmse: float
    r2: float
    errors: tuple[float, float]


class ValuePredictions(TargetPredictions):
    """Predictions of regression targets."""

    def metrics(self) -> dict[str, float]:
        """Mean absolute error and R2 of every target."""
        found = {}
        for k, name in enumerate(self.class_names):
            error = self.outputs[:, k] - self.targets[:, k]
            found[f"MAE of {name}"] = float(np.abs(error).mean())
            found[f"R2 of {name}"] = _r2(self.targets[:, k], error)
        return found

    def score(self) -> list[TargetScore]:
        """Scores of every target, with intervals."""
        scores = []
        for k, name in enumerate(self.class_names):
            error = self.outputs[:, k] - self.targets[:, k]
            mae, half = np.abs(error).mean(), _half_width(np.abs(error))
            low, high = np.percentile(error, _INTERVAL)
            rmse, r2 = np.sqrt(np.square(error).mean()), _r2(self.targets[:, k], error)
            interval = (float(np.maximum(0, mae - half)), float(mae + half))  # also of NaN
            limits = (float(low), float(high))
            scores.append(TargetScore(name, float(mae), interval, float(rmse), r2, limits))
        return scores

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes one row for every image: file; true value, prediction and error of each target."""
        kinds = ("true", "predicted", "error")
        heads = ["file", *(f"{kind} {name}" for name in self.class_names for kind in kinds)]
        rows = (
            [name, *map(short, np.stack([true, found, found - true], axis=1).ravel())]
            for name, true, found in zip(self.names, self.targets, self.outputs, strict=True)
        )
        write_csv(path, [heads, *rows])


AnyPredictions = Predictions | LabelPredictions | ValuePredictions


def predict_targets(
    model: keras.Model,
    images: ImageSet,
    batch_size: int = 64,
    *,
    class_names: Sequence[str] | None = None,
    num_worst: int = 12,
    verbose: bool | int = True,
) -> LabelPredictions | ValuePredictions:
    """Predicts the labels or the regression targets of images.

    Args:
        model: A model that returns a logit for each label, or the value of each target.
        images: Images with task `"multi_label"` or `"regression"`, as of `read_csv`.
        batch_size: Images per step.
        class_names: Names of labels or targets; `None` takes those of the images.
        num_worst: Images with the largest errors that are kept.
        verbose: Whether to print, now and then, how many images are predicted.

    Returns:
        `LabelPredictions` or `ValuePredictions`.

    Raises:
        ValueError: If the images have one class each, or do not fit the model.
    """
    with needing_tensorflow("`predict_targets`"):
        from keras_vit.data.batches import eval_batches
    if images.task == "single_label":
        raise ValueError(f"{images.name} has one class for each image: use `predict_set`.")
    batches = eval_batches(images, model, min(batch_size, images.num_images), one_hot=False)
    scale = np.maximum(np.std(np.asarray(images.all_labels, "float64"), axis=0), 1e-12)

    def look(y: np.ndarray, raw: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        found = class_probabilities(model, raw.astype("float64"), images.task)
        true = y.astype("float64")
        if images.task == "regression":
            return (true, found), np.abs((found - true) / scale).max(axis=1)
        chosen = np.clip(np.where(true > 0, found, 1 - found), 1e-12, 1)
        return (true, found), -np.log(chosen).sum(axis=1)

    columns, facts = predict_batches(model, images, batches, look, class_names, num_worst, verbose)
    make = LabelPredictions if images.task == "multi_label" else ValuePredictions
    fitted = getattr(model, "calibration", None)
    thresholds = () if fitted is None else fitted.thresholds
    return make(targets=columns[0], outputs=columns[1], thresholds=thresholds, **facts)


def _average_precision(targets: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Sum of precision times step of recall over all thresholds, for every column.

    As `sklearn.metrics.average_precision_score`: equal scores are one threshold.
    """
    values = np.full(scores.shape[1], np.nan)
    for k in range(scores.shape[1]):
        order = np.argsort(-scores[:, k], kind="stable")
        right = np.cumsum(targets[order, k] > 0)
        if not right[-1]:
            continue
        ends = np.flatnonzero(np.diff(scores[order, k], append=-np.inf))  # of equal scores
        precision = right[ends] / (ends + 1)
        steps = np.diff(right[ends], prepend=0) / right[-1]
        values[k] = (precision * steps).sum()
    return values


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _f1(right: Any, predicted: Any, true: Any) -> float:
    return float(2 * right / (predicted + true)) if predicted + true else float("nan")


def _half_width(values: np.ndarray) -> float:
    """Half the 95 % interval of the mean of values; NaN for one value, or without SciPy."""
    count = len(values)
    if count == 1 or importlib.util.find_spec("scipy") is None:
        return float("nan")
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975) * values.std(ddof=1) / np.sqrt(count))


def _r2(true: np.ndarray, error: np.ndarray) -> float:
    variance = np.square(true - true.mean()).mean()
    return float(1 - np.square(error).mean() / variance) if variance else float("nan")
