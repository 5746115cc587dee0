"""The head that fine-tuning starts from: a probe on features of some training images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_vit.distribution.cluster import find_cluster
from keras_vit.evaluate.feature_store import store_features
from keras_vit.evaluate.logistic import logistic_path
from keras_vit.evaluate.probes import check_finite, cross_validate, fit_head
from keras_vit.progress import Progress
from keras_vit.runtime.model import Model
from keras_vit.train.probe import pooled

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

STARTING_IMAGES = 1_000  # that a head starts from
NEEDED = (
    "a model with one head, and known labels: classes, of which two have two images or more, "
    "labels, of which one is on two images and missing on two, or numbers of two images or more"
)
_FOLDS = 5
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of `C`: with less, a head would be as good as zeros
_RIDGES = tuple(10.0**power for power in range(6))

_Path = Callable[[np.ndarray, np.ndarray, Sequence[float]], Iterator[tuple[np.ndarray, np.ndarray]]]
_Loss = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of each target


def start_head(model: Model, images: ImageSet, seed: int = 0, verbose: bool | int = True) -> None:
    """Gives a model with a new head that of a probe on its training images.

    Up to 1,000 images are taken; of classes as many of every one, but two at least. Classes take
    multinomial logistic regression, several labels a logistic regression each, numbers a ridge
    regression; cross-validation chooses how strong the penalty is. A class with one image or none
    gets a row of zeros and the smallest bias, a label that fewer than two images have or lack a row
    of zeros and its share as bias.

    Args:
        model: A model with one head, which is changed.
        images: Images whose labels are known.
        seed: Seed of the choice of images and of the cross-validation.
        verbose: As for `fit_probe`.

    Raises:
        ValueError: If the model has two heads, the images are too few, or this is one of several
            workers.
    """
    cluster = find_cluster()
    if cluster is not None and len(cluster.addresses) > 1:
        raise ValueError(
            "Several workers would fit heads that differ in rounding. Pass "
            'initial_head="zeros", or a model that one process fine-tuned or probed.'
        )
    head = model.layers[-1]
    if not isinstance(head, keras.layers.Dense):
        raise ValueError(
            "One dense head can start from a probe. Received: a model that ends in "
            f'{head.name!r}. Pass initial_head="zeros".'
        )
    if not can_start(images):
        raise ValueError(
            f"A head from a probe needs {NEEDED}. Received: {images.name}, "
            f'task={images.task!r}. Pass initial_head="zeros".'
        )
    order = np.random.default_rng(seed).permutation(images.num_images)[:STARTING_IMAGES]
    if images.task == "single_label":
        order = _alike(images, seed)
    sample = images.subset(np.sort(order))
    y, outputs = np.asarray(sample.labels), _startable(sample)
    with tempfile.TemporaryDirectory() as folder:
        x = pooled(store_features(model, sample, folder, verbose=verbose)).astype("float64")
    check_finite(x)
    kernel, bias = np.zeros(head.kernel.shape), np.zeros(head.bias.shape)
    if images.task == "single_label":
        y = np.searchsorted(outputs, y)
        options = (len(outputs), _STRENGTHS, min(_FOLDS, len(x)), seed, verbose)
        found = cross_validate("logistic", x, y, *options)
        setting = max(found, key=lambda value: found[value])
        kernel[:, outputs], values = fit_head("logistic", x, y, len(outputs), setting).get_weights()
        bias[:] = values.min()
        bias[outputs] = values
    elif images.task == "multi_label":
        shares = (np.asarray(images.labels).sum(axis=0) + 0.5) / (images.num_images + 1)
        bias[:] = np.log(shares / (1 - shares))
        if len(outputs):
            fitted = _best_fit(
                _logistic_path, _STRENGTHS, _log_loss, x, y[:, outputs], seed, verbose
            )
            kernel[:, outputs], bias[outputs] = fitted
    else:
        y, mean, stddev = _standardized(y)
        fitted = _best_fit(_ridge_path, _RIDGES, _squares, x, y, seed, verbose)
        kernel, bias = fitted[0] * stddev, fitted[1] * stddev + mean
    head.set_weights([kernel, bias])


def explained_variance(features: np.ndarray, images: ImageSet, seed: int = 0) -> float:
    """How much of the variance of labels or numbers features explain, by cross-validation.

    Args:
        features: Features of the images, of shape `(n, D)`.
        images: Images with several labels or numbers.
        seed: Seed of the parts.

    Returns:
        R2 of ridge regression in [0, 1], the mean over targets, each with its best strength;
        without labels that fewer than two images have or lack.
    """
    y, _, _ = _standardized(np.asarray(images.labels)[:, _startable(images)])
    x = features.astype("float64")
    losses = _losses(_ridge_path, _RIDGES, _squares, x, y, seed, False).min(axis=0)
    return float(np.maximum(0, 1 - losses / len(y)).mean())


def can_start(images: ImageSet) -> bool:
    """Whether `start_head` can fit a head to these images."""
    if images.labels is None or images.num_images < 2:
        return False
    return len(_startable(images)) > (images.task == "single_label")


def _startable(images: ImageSet) -> np.ndarray:
    """Classes with two images or more; labels that two images or more have, and lack; targets."""
    labels = np.asarray(images.labels)
    if images.task == "regression":
        return np.arange(images.num_classes)
    if images.task == "single_label":
        return np.flatnonzero(np.bincount(labels, minlength=images.num_classes) > 1)
    counts = labels.sum(axis=0)
    return np.flatnonzero(np.minimum(counts, len(labels) - counts) > 1)


def _standardized(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean, stddev = y.mean(axis=0), np.maximum(y.std(axis=0), 1e-30)
    return (y - mean) / stddev, mean, stddev


def _alike(images: ImageSet, seed: int) -> np.ndarray:
    """Positions of as many images of every class."""
    labels, most = np.asarray(images.labels), max(2, STARTING_IMAGES // images.num_classes)
    order = np.random.default_rng(seed).permutation(len(labels))
    return np.concatenate([order[labels[order] == label][:most] for label in _startable(images)])


def _best_fit(
    path: _Path,
    strengths: Sequence[float],
    loss: _Loss,
    x: np.ndarray,
    y: np.ndarray,
    seed: int,
    verbose: bool | int,
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias with the strength whose loss is the smallest in cross-validation."""
    losses = _losses(path, strengths, loss, x, y, seed, verbose).sum(axis=1)
    return next(path(x, y, [strengths[int(np.argmin(losses))]]))


def _losses(
    path: _Path,
    strengths: Sequence[float],
    loss: _Loss,
    x: np.ndarray,
    y: np.ndarray,
    seed: int,
    verbose: bool | int,
) -> np.ndarray:
    """The loss of each strength and target, summed over the images that were held out."""
    folds = min(_FOLDS, len(x))
    numbers = np.random.default_rng(seed).permutation(len(x)) % folds
    losses = np.zeros((len(strengths), y.shape[1]))
    with Progress("the head at the beginning", folds, "folds", verbose) as progress:
        for number in range(folds):
            out = numbers == number
            for index, (kernel, bias) in enumerate(path(x[~out], y[~out], strengths)):
                losses[index] += loss(x[out] @ kernel + bias, y[out])
            progress.update(number + 1)
    return losses


def _log_loss(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return (np.logaddexp(0, logits) - labels * logits).sum(axis=0)


def _squares(values: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return ((values - targets) ** 2).sum(axis=0)


def _logistic_path(
    x: np.ndarray, y: np.ndarray, strengths: Sequence[float]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return logistic_path(x, y, y.shape[1], strengths)


def _ridge_path(
    x: np.ndarray, y: np.ndarray, strengths: Sequence[float]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Kernels and biases of ridge regressions on standardised features."""
    mean, stddev = x.mean(axis=0), x.std(axis=0) + 1e-5
    rows, sizes, columns = np.linalg.svd((x - mean) / stddev, full_matrices=False)
    level = y.mean(axis=0)
    projected = rows.T @ (y - level)
    for strength in strengths:
        kernel = (
            columns.T @ (projected * (sizes / (sizes**2 + strength))[:, None]) / stddev[:, None]
        )
        yield kernel, level - mean @ kernel
