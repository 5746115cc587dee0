"""Classifiers on features of a frozen model: regressions, nearest neighbours, attention.

Each has one setting, which cross-validation chooses: `C` of the logistic regression (the inverse
of the regularisation, as in scikit-learn), the strength of the ridge regression, the number of
neighbours, the learning rate of the attentive probe, which takes tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.checks import check_choice
from keras_vit.evaluate.attentive import attentive_head, attentive_scores
from keras_vit.evaluate.few_shot import few_shot_scores
from keras_vit.evaluate.logistic import logistic_path
from keras_vit.layers.float32 import Float32Policy, float32_dense
from keras_vit.layers.neighbors import NearestNeighbors
from keras_vit.progress import Progress

_CHUNK = 1024  # rows of similarities at a time


class Probe(NamedTuple):
    """A kind of classifier on features.

    Args:
        settings: Settings to choose from, in ascending order.
        scores: Scores of test features, `(M, K)` for each setting in turn. Arguments: features
            `(n, D)`, labels `(n,)`, test features `(M, D)`, classes `K`, settings.
        head: Makes the layer from features to scores. Arguments: features, labels, classes,
            setting.
        name: Name of the setting.
        takes_tokens: Whether features are sequences of tokens, of shape `(n, T, D)`.
    """

    settings: tuple[float, ...]
    scores: Callable[
        [np.ndarray, np.ndarray, np.ndarray, int, Sequence[float]], Iterable[np.ndarray]
    ]
    head: Callable[[np.ndarray, np.ndarray, int, float], keras.Layer]
    name: str
    takes_tokens: bool = False


def cross_validate(
    method: str,
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    settings: Sequence[float] | None = None,
    folds: int = 5,
    seed: int = 0,
    verbose: bool | int = True,
    class_vectors: np.ndarray | None = None,
) -> dict[float, float]:
    """Computes the accuracy of a probe for each setting, by cross-validation.

    Args:
        method: `"logistic"`, `"ridge"`, `"knn"` or `"attentive"`.
        features: Features of shape `(n, D)`; for `"attentive"` tokens of shape `(n, T, D)`.
        labels: Classes of the images, integers of shape `(n,)` in [0, classes).
        classes: Number of classes.
        settings: Settings to compare; `None` takes those of the method.
        folds: Parts of the images; each is held out once. Every class is spread over them evenly.
        seed: Seed of the choice of the parts.
        verbose: Whether to print, now and then, which fit runs and how long the rest will take.
        class_vectors: Of `"ridge"`, vectors of shape `(K, D)` that the regularisation pulls toward,
            as in `few_shot_scores`.

    Returns:
        Accuracy in [0, 1] over all images by setting, in ascending order.

    Raises:
        ValueError: If there are fewer than two images of a class, or features are not finite.
    """
    probe = find_probe(method, class_vectors)
    features, labels = check_features(features, labels, classes, probe.takes_tokens)
    numbers = _fold_numbers(labels, classes, folds, seed)
    fewest = len(labels) - int(np.bincount(numbers).max())  # images of the smallest training part
    chosen = _usable(probe, method, settings, fewest)
    right = np.zeros(len(chosen))
    with Progress(f"{method} probe", folds * len(chosen), "fits", verbose) as progress:
        for number in range(folds):
            out = numbers == number
            now = f"fold {number + 1} of {folds}"
            progress.update(number * len(chosen), f"{now}, {probe.name}={chosen[0]:g}")
            if not out.any():
                continue
            found = probe.scores(features[~out], labels[~out], features[out], classes, chosen)
            for index, scores in enumerate(found):
                right[index] += (scores.argmax(axis=-1) == labels[out]).sum()
                following = f"{now}, {probe.name}={chosen[min(index + 1, len(chosen) - 1)]:g}"
                progress.update(progress.done + 1, following)
    return dict(zip(chosen, (right / len(labels)).tolist(), strict=True))


def held_out_scores(
    method: str, features: np.ndarray, labels: np.ndarray, classes: int, setting: float
) -> np.ndarray:
    """Scores of every image by a probe that was fitted to the other four parts, `(n, K)`.

    Args:
        method: As for `cross_validate`, which chooses the setting.
        features: As for `cross_validate`.
        labels: As for `cross_validate`.
        classes: As for `cross_validate`.
        setting: One setting.
    """
    probe = find_probe(method)
    features, labels = check_features(features, labels, classes, probe.takes_tokens)
    numbers, scores = _fold_numbers(labels, classes, 5, 0), np.zeros((len(labels), classes))
    for number in np.unique(numbers):
        out = numbers == number
        (found,) = probe.scores(features[~out], labels[~out], features[out], classes, [setting])
        scores[out] = found
    return scores


def fit_head(
    method: str,
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    setting: float,
    class_vectors: np.ndarray | None = None,
) -> keras.Layer:
    """Fits a probe to features.

    Args:
        method: `"logistic"`, `"ridge"`, `"knn"` or `"attentive"`.
        features: Features of shape `(n, D)`; for `"attentive"` tokens of shape `(n, T, D)`.
        labels: Classes of the images, integers of shape `(n,)` in [0, classes).
        classes: Number of classes.
        setting: As chosen by `cross_validate`.
        class_vectors: As for `cross_validate`.

    Returns:
        A layer called `head`, from features to scores of shape `(B, K)`: a `keras.layers.Dense`,
        or `NearestNeighbors`; for `"attentive"` a `keras.Sequential` of `AttentionPooling` and
        the head. Scores of the ridge regression are no logits.

    Raises:
        ValueError: As for `cross_validate`.
    """
    probe = find_probe(method, class_vectors)
    features, labels = check_features(features, labels, classes, probe.takes_tokens)
    return probe.head(features, labels, classes, setting)


def find_probe(method: str, class_vectors: np.ndarray | None = None) -> Probe:
    """Returns the kind of a probe by its name; a ridge regression may be toward class vectors."""
    check_choice("method", method, tuple(PROBES))
    if class_vectors is None:
        return PROBES[method]
    if method != "ridge":
        raise ValueError(f"`class_vectors` need method='ridge'. Received: {method!r}.")
    scores, head = (
        functools.partial(function, class_vectors=class_vectors)
        for function in (few_shot_scores, _ridge_head)
    )
    return PROBES[method]._replace(scores=scores, head=head)


def check_features(
    features: np.ndarray, labels: np.ndarray, classes: int, takes_tokens: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Checks features and labels of a probe. Returns them as float64, tokens float32; integers."""
    shape = "(n, T, D)" if takes_tokens else "(n, D)"
    features = np.asarray(features, "float32" if takes_tokens else "float64")
    labels = np.asarray(labels)
    if (
        features.ndim != 2 + takes_tokens
        or labels.shape != features.shape[:1]
        or labels.dtype.kind not in "iu"
    ):
        raise ValueError(
            f"The probe takes features of shape {shape} and integer labels (n,). Received: "
            f"{features.shape} and {labels.dtype} {labels.shape}."
        )
    few = np.flatnonzero(np.bincount(labels, minlength=classes)[:classes] < 2)
    if len(few) or labels.max() >= classes:
        raise ValueError(
            f"A probe needs two images of each of {classes} classes at least. Classes with fewer: "
            f"{', '.join(map(str, few[:10])) or f'labels go up to {labels.max()}'}."
        )
    check_finite(features)
    return features, labels


def check_finite(features: np.ndarray) -> None:
    """Refuses features with NaN or infinity among them, by the number of the image."""
    broken = np.flatnonzero(~np.isfinite(features).reshape(len(features), -1).all(axis=1))
    if len(broken):
        raise ValueError(
            f"Features must be finite. {len(broken)} of {len(features)} images have NaN or "
            f"infinity among them, the first is image {broken[0]}."
        )


def _usable(
    probe: Probe, method: str, settings: Sequence[float] | None, images: int
) -> list[float]:
    """The settings in ascending order; by default only as many neighbours as there are images."""
    chosen = sorted(set(probe.settings if settings is None else settings))
    if method == "knn" and settings is None:
        chosen = [count for count in chosen if count <= images]
    is_wrong = method == "knn" and any(n != int(n) or n > images for n in chosen)
    if not chosen or min(chosen) <= 0 or is_wrong:
        kind = f"whole numbers up to {images}" if method == "knn" else "positive"
        raise ValueError(
            f"`settings` of method {method!r} are values of {probe.name} and must be {kind}. "
            f"Received: {settings!r}."
        )
    return chosen


def check_possible(folds: int, num_images: int) -> None:
    """Checks the number of folds before features are computed.

    Raises:
        ValueError: If there are not as many images as folds.
    """
    if not 2 <= folds <= num_images:
        raise ValueError(f"`folds` must be 2 to {num_images}, the images. Received: {folds}.")


def _fold_numbers(labels: np.ndarray, classes: int, folds: int, seed: int) -> np.ndarray:
    """A fold for each image; every class is spread over all folds."""
    check_possible(folds, len(labels))
    random = np.random.default_rng(seed)
    numbers = np.zeros(len(labels), int)
    begin = 0
    for label in range(classes):
        members = random.permutation(np.flatnonzero(labels == label))
        numbers[members] = (begin + np.arange(len(members))) % folds
        begin += len(members)
    return numbers


def _logistic_scores(
    features: np.ndarray,
    labels: np.ndarray,
    test_features: np.ndarray,
    classes: int,
    strengths: Sequence[float],
) -> Iterator[np.ndarray]:
    for kernel, bias in logistic_path(features, labels, classes, strengths):
        yield test_features @ kernel + bias


def _logistic_head(
    features: np.ndarray, labels: np.ndarray, classes: int, strength: float
) -> keras.Layer:
    return _dense(*next(logistic_path(features, labels, classes, [strength])))


def _ridge_head(
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    strength: float,
    class_vectors: np.ndarray | None = None,
) -> keras.Layer:
    """The scores are affine in the features: those of the origin and of the axes tell them."""
    points = np.concatenate([np.zeros((1, features.shape[1])), np.eye(features.shape[1])])
    scores = few_shot_scores(features, labels, points, classes, [strength], class_vectors)[0]
    return _dense(scores[1:] - scores[0], scores[0])


def _neighbor_scores(
    features: np.ndarray,
    labels: np.ndarray,
    test_features: np.ndarray,
    classes: int,
    counts: Sequence[float],
) -> np.ndarray:
    head = NearestNeighbors(classes, len(features), int(max(counts)))
    examples, test = _unit(features), _unit(test_features)
    scores = np.zeros((len(counts), len(test), classes))
    for begin in range(0, len(test), _CHUNK):
        similarity = test[begin : begin + _CHUNK] @ examples.T
        order = np.argsort(-similarity, axis=1, kind="stable")[:, : head.num_neighbors]
        nearest = np.take_along_axis(similarity, order, axis=1)
        votes = np.exp((nearest - 1) / head.temperature)[..., None] * np.eye(classes)[labels[order]]
        for row, count in enumerate(counts):
            scores[row, begin : begin + _CHUNK] = votes[:, : int(count)].sum(axis=1)
    return scores


def _neighbor_head(
    features: np.ndarray, labels: np.ndarray, classes: int, count: float
) -> keras.Layer:
    head = NearestNeighbors(classes, len(features), int(count), dtype=Float32Policy(), name="head")
    head.build((None, features.shape[1]))
    head.examples.assign(_unit(features).astype("float32"))
    head.labels.assign(labels)
    return head


def _unit(x: np.ndarray) -> Any:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _dense(kernel: np.ndarray, bias: np.ndarray) -> keras.layers.Dense:
    head = float32_dense(kernel.shape[1], "head")
    head.build((None, len(kernel)))
    head.set_weights([kernel.astype("float32"), bias.astype("float32")])
    return head


PROBES = {
    "logistic": Probe(
        tuple(10.0**power for power in range(-5, 2)), _logistic_scores, _logistic_head, "C"
    ),
    "ridge": Probe(
        tuple(2.0**power for power in range(-10, 20)), few_shot_scores, _ridge_head, "lambda"
    ),
    "knn": Probe((1, 3, 5, 10, 20, 50), _neighbor_scores, _neighbor_head, "neighbours"),
    "attentive": Probe(
        (3e-4, 1e-3, 3e-3), attentive_scores, attentive_head, "rate", takes_tokens=True
    ),
}
