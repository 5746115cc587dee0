"""Linear heads for several labels and for numbers, fitted to features with cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.data.strata import divide_labels
from keras_vit.evaluate.logistic import LinearHead, logistic_path
from keras_vit.progress import Progress

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of `C`: with less, a head would be as good as zeros
_PENALTIES = tuple(10.0**power for power in range(6))  # of ridge regression
_FOLDS = 5
_STDDEV_FLOOR = 1e-5  # as in few-shot evaluation


class _Fit(NamedTuple):
    """A kind of regression: kernels and biases by strength, and the loss of each target."""

    path: Callable[[np.ndarray, np.ndarray, Sequence[float]], Iterator[LinearHead]]
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray]
    strengths: tuple[float, ...]


def fit_labels(
    features: np.ndarray, labels: np.ndarray, seed: int = 0, verbose: bool | int = True
) -> LinearHead:
    """Fits a logistic regression to each label; cross-validation chooses one `C` for all.

    Args:
        features: Features of shape `(n, D)`.
        labels: Labels of 0 and 1, of shape `(n, K)`, each 0 and 1 at least once.
        seed: Seed of the parts of the cross-validation.
        verbose: Whether to print how far it is.

    Returns:
        Kernel `(D, K)` and bias `(K,)` of the logits.
    """
    return _best_fit(_LOGISTIC, features.astype("float64"), labels.astype("float64"), seed, verbose)


def fit_numbers(
    features: np.ndarray, targets: np.ndarray, seed: int = 0, verbose: bool | int = True
) -> LinearHead:
    """Fits a ridge regression to numbers; cross-validation chooses one penalty for all.

    Args:
        features: Features of shape `(n, D)`.
        targets: Numbers of shape `(n, K)`.
        seed: As for `fit_labels`.
        verbose: As for `fit_labels`.

    Returns:
        Kernel `(D, K)` and bias `(K,)` for targets in their units; of a constant target 0 and its
        value.
    """
    y, mean, stddev = _standardize_targets(targets)
    kernel, bias = _best_fit(_RIDGE, features.astype("float64"), y, seed, verbose)
    return kernel * stddev, bias * stddev + mean


def explained_variance(features: np.ndarray, targets: np.ndarray, seed: int = 0) -> float:
    """How much of the variance of labels or numbers ridge regression explains.

    Args:
        features: Features of shape `(n, D)`.
        targets: Labels or numbers of shape `(n, K)`.
        seed: As for `fit_labels`.

    Returns:
        R2 in cross-validation, in [0, 1]: the mean over the targets that vary, each with its best
        penalty.
    """
    y, _, stddev = _standardize_targets(targets)
    y = y[:, stddev > 0]
    if not y.shape[1]:
        return 0.0
    losses = _cross_validate(_RIDGE, features.astype("float64"), y, seed).min(axis=0)
    return float(np.maximum(0, 1 - losses / len(y)).mean())


def _best_fit(
    fit: _Fit, x: np.ndarray, y: np.ndarray, seed: int, verbose: bool | int
) -> LinearHead:
    with Progress("the head at the beginning", 2, "steps", verbose) as progress:
        progress.step("cross-validation")
        losses = _cross_validate(fit, x, y, seed).sum(axis=1)
        progress.update(1, "all images")
        return next(fit.path(x, y, [fit.strengths[int(np.argmin(losses))]]))


def _cross_validate(fit: _Fit, x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    """The loss of each strength and target, summed over the images that were held out."""
    folds = min(_FOLDS, len(x))
    # Of numbers, those above the mean are spread evenly.
    _, fold_of = divide_labels(y, [1 / folds] * folds, np.random.default_rng(seed))
    losses = np.zeros((len(fit.strengths), y.shape[1]))
    for fold in range(fold_of.max() + 1):
        out = fold_of == fold
        for index, (kernel, bias) in enumerate(fit.path(x[~out], y[~out], fit.strengths)):
            losses[index] += fit.loss(x[out] @ kernel + bias, y[out])
    return losses


def _standardize_targets(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets, mean and deviation; a constant target becomes 0, and its deviation is 0."""
    y = targets.astype("float64")
    mean, stddev = y.mean(axis=0), y.std(axis=0)
    stddev = np.where(np.ptp(y, axis=0) > 0, stddev, 0)
    return (y - mean) / np.where(stddev > 0, stddev, np.inf), mean, stddev


def _ridge_path(x: np.ndarray, y: np.ndarray, penalties: Sequence[float]) -> Iterator[LinearHead]:
    """Kernels and biases of ridge regressions on standardised features."""
    mean, stddev = x.mean(axis=0), x.std(axis=0) + _STDDEV_FLOOR
    rows, sizes, columns = np.linalg.svd((x - mean) / stddev, full_matrices=False)
    level = y.mean(axis=0)
    projected = rows.T @ (y - level)
    for penalty in penalties:
        shrunk = projected * (sizes / (sizes**2 + penalty))[:, None]
        kernel = columns.T @ shrunk / stddev[:, None]
        yield kernel, level - mean @ kernel


def _log_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return (np.logaddexp(0, logits) - labels * logits).sum(axis=0)


def _squared_errors(values: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return ((values - targets) ** 2).sum(axis=0)


_LOGISTIC = _Fit(
    lambda x, y, strengths: logistic_path(x, y, y.shape[1], strengths), _log_losses, STRENGTHS
)
_RIDGE = _Fit(_ridge_path, _squared_errors, _PENALTIES)
