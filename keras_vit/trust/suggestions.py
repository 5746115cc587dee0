"""Which images to label next: typical ones first, then those that a probe is least sure of."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_vit.checks import check_positive
from keras_vit.evaluate.feature_store import digest_model, store_features
from keras_vit.installation import needing
from keras_vit.trust.pages import paths_of, render_grid, write_pair

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_NEAREST = 20  # images of a cluster that a typical one is close to
_POOL = 3  # uncertain images for each that is chosen


def suggest_images(
    model: keras.Model,
    images: ImageSet,
    count: int,
    folder: str | os.PathLike[str],
    labelled: ImageSet | None = None,
) -> dict[int, str]:
    """Chooses images to label, from features of a trained model.

    Without labelled images of two classes, the most typical image of each cluster
    (https://arxiv.org/abs/2202.02794); with them, those where the two most probable classes of a
    logistic regression on the labelled images are closest, one of each cluster.

    Args:
        model: A trained model; its head is not used.
        images: Images without labels, as of `keras_vit.data.read_files`.
        count: How many to choose.
        folder: Where features are kept, those of every model and set apart.
        labelled: Images with one class each.

    Returns:
        Positions of the images, each with the reason: `"typical"`, or `"uncertain"` with the two
        classes that the probe hesitates between. The largest clusters, or the least certain
        images, are first.

    Raises:
        ImportError: If scikit-learn is not installed.
        ValueError: If there are fewer images than `count`, or labelled ones have no class each.
    """
    check_positive("count", count)
    with needing("probe", "The choice of images needs scikit-learn"):
        import sklearn  # noqa: F401
    if labelled is not None and (labelled.task != "single_label" or labelled.labels is None):
        raise ValueError(f"Labelled images have one class each. Received: {labelled.name}.")
    known = set(paths_of(labelled)) if labelled is not None and images.are_files else set()
    rest = np.array([i for i, file in enumerate(paths_of(images)) if file not in known])
    if count > len(rest):
        raise ValueError(f"There are {len(rest)} images to label. Received: count={count}.")
    x = image_vectors(model, images, folder)[rest].astype("float64")
    labels = np.asarray([] if labelled is None else labelled.labels)
    if labelled is None or len(np.unique(labels)) < 2:
        return dict.fromkeys(rest[choose_typical(x, count)].tolist(), "typical")
    vectors = image_vectors(model, labelled, folder).astype("float64")
    chosen, pairs = choose_uncertain(x, vectors, labels, count)
    names = labelled.class_names
    reasons = (f"uncertain: {names[first]} or {names[second]}" for first, second in pairs)
    return dict(zip(rest[chosen].tolist(), reasons, strict=True))


def image_vectors(
    model: keras.Model, images: ImageSet, folder: str | os.PathLike[str], verbose: bool | int = True
) -> np.ndarray:
    """Features of images, of shape `(n, D)`: every model and set has a folder of its own in one."""
    from keras_vit.data.digests import digest_images

    key = f"{digest_model(model)} {digest_images(images)}".encode()
    place = pathlib.Path(folder, hashlib.sha256(key).hexdigest()[:12])
    values = store_features(model, images, place, verbose=verbose).values
    return values.reshape(len(values), -1)


def choose_typical(x: np.ndarray, count: int) -> list[int]:
    """The row of each of `count` clusters that is closest to its nearest ones, and the rest."""
    x = x / np.sqrt(np.square(x).sum(axis=1, keepdims=True) + 1e-12)
    clusters, chosen = _cluster(x, count), []
    for number in np.argsort(-np.bincount(clusters)).tolist():
        members = np.flatnonzero(clusters == number)
        if len(members):
            nearest = np.sort(x[members] @ x[members].T, axis=1)[:, -_NEAREST:]
            chosen.append(int(members[nearest.mean(axis=1).argmax()]))
    rest = np.setdiff1d(np.random.default_rng(0).permutation(len(x)), chosen, True)
    return [*chosen, *rest.tolist()][:count]


def choose_uncertain(
    x: np.ndarray, known: np.ndarray, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `x` between two classes of a logistic regression, and these, `(count, 2)`.

    Of three times as many rows, the least certain of each of `count` clusters.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)
    probe = LogisticRegression(max_iter=300).fit(scaler.transform(known), labels)
    shares = probe.predict_proba(scaler.transform(x))
    order = np.argsort(-shares, axis=1)[:, :2]
    first, second = np.take_along_axis(shares, order, axis=1).T
    pool = np.argsort(first - second, kind="stable")[: _POOL * count]
    _, firsts = np.unique(_cluster(x[pool], count), return_index=True)
    chosen = pool[np.concatenate([np.sort(firsts), np.delete(np.arange(len(pool)), firsts)])]
    return chosen[:count], probe.classes_[order[chosen[:count]]]


def _cluster(x: np.ndarray, count: int) -> np.ndarray:
    from sklearn.cluster import MiniBatchKMeans

    unit = x / np.sqrt(np.square(x).sum(axis=1, keepdims=True) + 1e-12)
    found: np.ndarray = MiniBatchKMeans(count, n_init=3, random_state=0).fit_predict(unit)
    return found


def write_suggestions(
    found: Mapping[int, str], images: ImageSet, folder: str | os.PathLike[str]
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes `suggestions.csv`, whose column `label` is empty, and `suggestions.html`.

    Returns:
        Their paths.
    """
    files = paths_of(images)
    rows = [(files[i], "", reason) for i, reason in found.items()]
    lines = ((i, [reason, f"line {n}"]) for n, (i, reason) in enumerate(found.items(), 2))
    sections = {"Images to label": render_grid(images, lines)}
    note = f"{len(found):,} of {images.num_images:,} images. Fill in the column “label”."
    head = ("file", "label", "#reason")
    return write_pair(folder, "suggestions", [head, *rows], "What to label next", sections, note)
