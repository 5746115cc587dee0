"""Labels that are probably wrong, found by a cross-validated probe on features."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from keras_vit.evaluate.probes import cross_validate, held_out_scores
from keras_vit.installation import needing
from keras_vit.models.heads import activate
from keras_vit.trust.pages import paths_of, render_grid, write_pair
from keras_vit.trust.suggestions import image_vectors

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_SHOWN = 200  # images on the page
_METHOD = "logistic"


class CheckedLabel(NamedTuple):
    """An image and its label.

    Args:
        position: Its position among the images.
        label: Its class.
        likely: The class that the probe gives it.
        quality: How well the label fits, in [0, 1]: cleanlab's normalised margin.
        is_suspicious: Whether cleanlab expects the label to be wrong.
        twin: Position of a near-duplicate with another class, or `None`.
    """

    position: int
    label: int
    likely: int
    quality: float
    is_suspicious: bool
    twin: int | None


def check_labels(
    model: keras.Model, images: ImageSet, folder: str | os.PathLike[str], verbose: bool | int = True
) -> list[CheckedLabel]:
    """Finds labels that are probably wrong, by confident learning (https://arxiv.org/abs/1911.00068).

    A logistic regression on features of the model gives each image the class that images of the
    other parts suggest; cleanlab compares it with the label. Near-duplicates with different labels
    come first: one of the two is wrong.

    Args:
        model: A trained model of this package; its head is not used.
        images: Images with one class each, two of every class or more.
        folder: Where features are kept, those of every model and set apart.
        verbose: Whether to print, now and then, how far it is.

    Returns:
        All images: first those with a near-duplicate of another class, then by quality, the lowest
        first.

    Raises:
        ImportError: If cleanlab is not installed.
        ValueError: If images have several labels or numbers, or a class has one image.
    """
    with needing("labels", "The check of labels needs cleanlab"):
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    from keras_vit.data.duplicates import find_near_duplicates

    if images.task != "single_label" or images.labels is None:
        raise ValueError(
            "Labels are checked of images with one class each, in folders, tables or arrays. "
            f"Received: {images.name} with task={images.task!r}."
        )
    values = image_vectors(model, images, folder, verbose)
    labels, classes = np.asarray(images.labels), images.num_classes
    known = cross_validate(_METHOD, values, labels, classes, None, 5, 0, verbose)
    best = max(known, key=known.__getitem__)
    scores = held_out_scores(_METHOD, values, labels, classes, best)
    shares = activate(scores, "single_label")
    suspicious = find_label_issues(labels, shares, n_jobs=1)  # no fork beside TensorFlow's threads
    quality = get_label_quality_scores(labels, shares, method="normalized_margin")
    twins: dict[int, int] = {}
    for pair in find_near_duplicates(images, images):
        if labels[pair.first] != labels[pair.second]:
            twins.setdefault(pair.first, pair.second)
    rows = zip(labels, shares.argmax(axis=1), quality, suspicious, strict=True)
    found = [
        CheckedLabel(i, int(label), int(likely), float(fit), bool(is_wrong), twins.get(i))
        for i, (label, likely, fit, is_wrong) in enumerate(rows)
    ]
    return sorted(found, key=lambda each: (each.twin is None, each.quality))


def write_labels(
    found: Sequence[CheckedLabel], images: ImageSet, folder: str | os.PathLike[str]
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes `labels.csv`, a table to correct, and `labels.html`, the most suspicious images.

    `keras-vit train --data` reads `file` and `label` of the table; columns that begin with `#` are
    for the reader. The page shows 200 images at most.

    Returns:
        Their paths.
    """
    names, files = images.class_names, paths_of(images)
    rows = [("file", "label", "#likely", "#quality", "#near-duplicate")]
    titles = ("Near-duplicates with different labels", "Labels that do not fit")
    parts: dict[str, list[tuple[int, list[str]]]] = {title: [] for title in titles}
    labels = {each.position: names[each.label] for each in found}
    for line, (i, label, likely, quality, is_suspicious, twin) in enumerate(found, 2):
        other, like = "" if likely == label else names[likely], "" if twin is None else files[twin]
        rows.append((files[i], names[label], other, f"{quality:.4f}", like))
        lines = [names[label], f"line {line}, quality {quality:.3f}"]
        lines += [f"likely {other}"] if other else []
        if twin is not None:
            lines.append(f"near-duplicate of {like}, {labels[twin]}")
        if line < _SHOWN and (is_suspicious or twin is not None):
            parts[titles[twin is None]].append((i, lines))
    sections = {title: render_grid(images, part) for title, part in parts.items() if part}
    note = f"{images.name}: {len(found):,} images. Correct “label” in that line of the table."
    return write_pair(folder, "labels", rows, "Suspicious labels", sections, note)
