"""Predictions of a classifier on labelled images, and what follows from them.

Accuracy with intervals, confusion matrix, calibration, and the images that are most wrong.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from keras_vit.checks import short_repr
from keras_vit.errors import needing_tensorflow
from keras_vit.files import write_csv
from keras_vit.models.heads import class_probabilities
from keras_vit.progress import Progress

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_ALL_CLASSES = 100  # up to which the probabilities of all classes are kept
_KEPT = 5  # most probable classes that are kept of more
_BINS = 10  # of confidence
_SAMPLES = 200  # of the images, for an interval


class Bin(NamedTuple):
    """Images whose confidence lies in a range.

    Args:
        low: Lowest confidence.
        high: Highest confidence.
        images: Number of images.
        confidence: Their mean confidence.
        accuracy: Their accuracy.
    """

    low: float
    high: float
    images: int
    confidence: float
    accuracy: float


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a classifier on labelled images. Made by `predict_set`.

    Args:
        source: Name of the images.
        names: Path of the file of every image, or its position where there are no files.
        class_names: Names of the classes.
        labels: True classes, integers of shape `(B,)`.
        classes: Classes from the most probable on, integers of shape `(B, n)`: all classes, or
            five of more than 100.
        probabilities: Their probabilities, float32 of shape `(B, n)`.
        label_probabilities: Probability of the true class, float32 of shape `(B,)`.
        uncalibrated: Confidence and probability of the true class without `model.calibration`,
            float32 of shape `(B, 2)`; `None` of a model that is not calibrated.
        worst: Positions of the wrong predictions with the lowest probability of the true class,
            lowest first.
        worst_images: Their model inputs, of shape `(len(worst), H, W, C)`.
    """

    source: str
    names: tuple[str, ...]
    class_names: tuple[str, ...]
    labels: np.ndarray
    classes: np.ndarray
    probabilities: np.ndarray
    label_probabilities: np.ndarray
    uncalibrated: np.ndarray | None = None
    worst: tuple[int, ...] = ()
    worst_images: np.ndarray | None = None

    __repr__ = short_repr

    @property
    def is_right(self) -> np.ndarray:
        """Whether the most probable class is the true one, bools of shape `(B,)`."""
        return self.classes[:, 0] == self.labels

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy, in [0, 1]."""
        return float(self.is_right.mean())

    def metrics(self) -> dict[str, float]:
        """The accuracy by its name, as the predictions of other tasks give their metrics."""
        return {"accuracy": self.accuracy}

    def count_by_class(self) -> list[tuple[int, int]]:
        """Counts correct predictions and images of every class."""
        K, right = len(self.class_names), self.labels[self.is_right]
        counts = (np.bincount(labels, minlength=K).tolist() for labels in (right, self.labels))
        return list(zip(*counts, strict=True))

    def lost_classes(self) -> list[tuple[str, int]]:
        """Lists the classes of which no image is recognised, and their number of images."""
        counts = zip(self.class_names, self.count_by_class(), strict=True)
        return [(name, images) for name, (right, images) in counts if images and not right]

    def confusion(self) -> np.ndarray:
        """Confusion matrix `(K, K)`: rows are true classes, columns are predictions."""
        K = len(self.class_names)
        return np.bincount(self.labels * K + self.classes[:, 0], minlength=K * K).reshape(K, K)

    def confused_pairs(self) -> list[tuple[int, int, int]]:
        """True class, predicted class and count of every mistake, the most frequent first."""
        wrong = ~self.is_right
        pairs = zip(self.labels[wrong].tolist(), self.classes[wrong, 0].tolist(), strict=True)
        ranked = sorted(collections.Counter(pairs).items(), key=lambda item: (-item[1], item[0]))
        return [(*pair, count) for pair, count in ranked]

    @property
    def before(self) -> Predictions | None:
        """The predictions without `model.calibration`, or `None`."""
        if self.uncalibrated is None:
            return None
        first, of_label = self.uncalibrated.T
        changes = {"probabilities": first[:, None], "label_probabilities": of_label}
        return dataclasses.replace(self, **changes, uncalibrated=None)

    def calibration(self) -> list[Bin]:
        """Accuracy by confidence, in ten bins of equal width (https://arxiv.org/abs/1706.04599)."""
        confidence, numbers = self._confidences()
        bins = []
        for number in range(_BINS):
            in_bin = numbers == number
            columns = (confidence, self.is_right)
            means = [column[in_bin].mean() if in_bin.any() else 0 for column in columns]
            limits = (number / _BINS, (number + 1) / _BINS)
            bins.append(Bin(*limits, int(in_bin.sum()), *map(float, means)))
        return bins

    def calibration_error(self, sample: Any = slice(None)) -> float:
        """Expected calibration error (ECE): mean distance of confidence and accuracy.

        Args:
            sample: Positions of images.
        """
        confidence, numbers = self._confidences()
        excess = (confidence - self.is_right)[sample]
        return float(np.abs(np.bincount(numbers[sample], excess)).sum() / len(excess))

    def calibration_interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the expected calibration error, of 200 samples."""
        random, count = np.random.default_rng(0), len(self.labels)
        samples = (random.integers(count, size=count) for _ in range(_SAMPLES))
        low, high = np.percentile([*map(self.calibration_error, samples)], (2.5, 97.5)).tolist()
        return low, high

    def log_loss(self) -> float:
        """Mean negative log-likelihood, in nats."""
        smallest = np.finfo("float32").tiny
        return float(-np.log(np.maximum(self.label_probabilities, smallest)).mean())

    def _confidences(self) -> tuple[np.ndarray, np.ndarray]:
        """Probability of the predicted class, and the number of its bin."""
        confidence = self.probabilities[:, 0].astype("float64")
        return confidence, np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes one row for every image: file, true class, predicted class, probabilities.

        Up to 100 classes there is a column for every class; of more classes, the five most
        probable ones follow with their probabilities.
        """
        names = np.array(self.class_names, object)
        top, shares = names[self.classes], self.probabilities
        table: list[tuple[str, Any]]
        table = [("file", self.names), ("true", names[self.labels]), ("predicted", top[:, 0])]
        table.append(("probability", map(short, shares[:, 0])))
        if len(names) == shares.shape[1]:
            shares = np.take_along_axis(shares, np.argsort(self.classes, axis=1), axis=1)
            for name, column in zip(names, shares.T, strict=True):
                table.append((f"probability of {name}", map(short, column)))
        else:
            for i in range(1, shares.shape[1]):
                table.append((f"class_{i + 1}", top[:, i]))
                table.append((f"probability_{i + 1}", map(short, shares[:, i])))
        heads, columns = zip(*table, strict=True)
        write_csv(path, [heads, *zip(*columns, strict=True)])


def short(value: Any) -> str:
    """Formats a number for a CSV file, with six digits."""
    return f"{value:.6g}"


def predict_set(
    model: keras.Model,
    images: ImageSet,
    batch_size: int = 64,
    *,
    class_names: Sequence[str] | None = None,
    num_worst: int = 12,
    verbose: bool | int = True,
) -> Predictions:
    """Predicts the classes of labelled images.

    Args:
        model: A classifier that returns logits or probabilities.
        images: Images with their classes; they are preprocessed as in evaluation.
        batch_size: Images per step.
        class_names: Names of the classes; `None` takes those of the images.
        num_worst: Wrong predictions of which the images are kept. Only these and one batch are in
            memory.
        verbose: Whether to print, now and then, how many images are predicted.

    Returns:
        `Predictions`.

    Raises:
        ValueError: If the classes do not fit the model, or images do not have one class each.

    Example:

    >>> predictions = predict_set(model, validation)  # doctest: +SKIP
    >>> predictions.write_csv("predictions.csv")  # doctest: +SKIP
    """
    with needing_tensorflow("`predict_set`"):
        from keras_vit.data.batches import eval_batches
    if images.task != "single_label":
        raise ValueError(f"{images.name} has task={images.task!r}: use `predict_targets`.")
    batches = eval_batches(images, model, min(batch_size, images.num_images), one_hot=False)

    def look(true: np.ndarray, raw: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        probabilities = class_probabilities(model, raw)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        order = order[:, : None if order.shape[1] <= _ALL_CLASSES else _KEPT]
        shares = np.take_along_axis(probabilities, order, axis=1).astype("float32")
        of_label = probabilities[np.arange(len(true)), true]
        badness = np.where(order[:, 0] == true, -np.inf, -of_label)
        kept: tuple[np.ndarray, ...] = (true, order, shares, of_label.astype("float32"))
        if getattr(model, "calibration", None) is not None:
            plain = class_probabilities(model, raw, calibrated=False)
            before = np.stack([plain.max(axis=1), plain[np.arange(len(true)), true]], axis=1)
            kept += (before.astype("float32"),)
        return kept, badness

    rows, facts = predict_batches(model, images, batches, look, class_names, num_worst, verbose)
    names = ("labels", "classes", "probabilities", "label_probabilities", "uncalibrated")
    return Predictions(**dict[str, Any](zip(names, rows, strict=False)), **facts)


def predict_batches(
    model: keras.Model,
    images: ImageSet,
    batches: Iterable[tuple[Any, Any]],
    look: Callable[[np.ndarray, np.ndarray], tuple[tuple[np.ndarray, ...], np.ndarray]],
    class_names: Sequence[str] | None,
    num_worst: int,
    verbose: bool | int,
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Predicts images batch by batch, and keeps the worst ones.

    Args:
        model: As for `predict_set`.
        images: As for `predict_set`.
        batches: The images and their labels, as the model takes them.
        look: From labels and outputs of a batch to what is kept of each image, and how bad its
            prediction is; `-inf` for an image that is never among the worst.
        class_names: As for `predict_set`.
        num_worst: As for `predict_set`.
        verbose: As for `predict_set`.

    Returns:
        What is kept of all images, and the fields that all predictions have.
    """
    kept: list[tuple[np.ndarray, ...]] = []
    worst: list[tuple[float, int, np.ndarray]] = []
    with Progress(f"predictions of {images.name}", images.num_images, "images", verbose) as bar:
        for x, y in batches:
            rows, badness = look(np.asarray(y), np.asarray(model.predict_on_batch(x)))
            kept.append(rows)
            pixels, done = np.asarray(x), bar.done
            for i in np.flatnonzero(badness != -np.inf):
                worst.append((-float(badness[i]), done + int(i), pixels[i].copy()))
            worst = sorted(worst, key=lambda item: item[:2])[:num_worst]
            bar.update(done + len(pixels))
    return [np.concatenate(column) for column in zip(*kept, strict=True)], {
        "source": images.name,
        "names": images.file_names(),
        "class_names": tuple(images.class_names if class_names is None else class_names),
        "worst": tuple(index for _, index, _ in worst),
        "worst_images": np.stack([pixels for *_, pixels in worst]) if worst else None,
    }
