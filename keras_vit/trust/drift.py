"""How far new images are from those that a model was validated with."""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from keras_vit.abstention import typicality_of
from keras_vit.files import write_text
from keras_vit.intervals import mean_change, wilson_interval
from keras_vit.report.page import Section, render_page, render_table
from keras_vit.trust.abstaining import fit_typicality, predict_features
from keras_vit.trust.pages import render_grid

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_FALSE_ALARMS = 0.05  # of a model without abstention
_SHOWN = 24  # images on the page


class Shift(NamedTuple):
    """Images of one predicted class, or all images. Shares are in [0, 1].

    Args:
        name: The class, or `"all"`.
        images: New images with this prediction.
        held_out: Held-out images with this prediction.
        rejected: Share of the new images that are not accepted, and its 95 % interval.
        confidence: Mean probability of the predicted class of the new images.
        change: How much higher this is than that of the held-out images, and its 95 % interval; not
            a number where there are fewer than two of either.
    """

    name: str
    images: int
    held_out: int
    rejected: tuple[float, float, float]
    confidence: float
    change: tuple[float, float, float]


class Drift(NamedTuple):
    """What `compare_images` found.

    Args:
        shifts: All images, then those of each predicted class, with the most rejected ones first.
        false_alarms: Share of images like the held-out ones that are not accepted.
        typicality: Typicality of every new image.
    """

    shifts: list[Shift]
    false_alarms: float
    typicality: np.ndarray

    def is_beyond(self, most_rejected: float = 0.1, most_change: float = 0.1) -> bool:
        """Whether a whole 95 % interval of all images is beyond its limit.

        Args:
            most_rejected: Share of images that may be rejected.
            most_change: How much lower or higher mean confidence may be.
        """
        _, low, high = self.shifts[0].change
        far = low > most_change or high < -most_change
        return far or self.shifts[0].rejected[1] > most_rejected

    def write_page(self, path: str | os.PathLike[str], images: ImageSet) -> None:
        """Writes an HTML page: a table by predicted class, and the least typical images."""
        rows = []
        for row in self.shifts:
            change = "" if np.isnan(row.change[0]) else "{:+.1%}, {:+.1%} to {:+.1%}"
            cells = [html.escape(row.name), f"{row.images:,}", f"{row.held_out:,}"]
            cells += ["{:.1%}, {:.1%} to {:.1%}".format(*row.rejected), f"{row.confidence:.1%}"]
            rows.append([*cells, change.format(*row.change)])
        head = ("predicted", "images", "held out", "rejected", "confidence", "its change")
        order = np.argsort(self.typicality)[:_SHOWN].tolist()
        lines = ((i, [f"typicality {self.typicality[i]:.3f}"]) for i in order)
        sections = [
            Section("By predicted class", render_table(head, rows, " nnnnn")),
            Section("Least typical images", render_grid(images, lines)),
        ]
        note = (
            f"{self.shifts[0].images:,} new images beside {self.shifts[0].held_out:,} held-out "
            f"ones, of which {self.false_alarms:.0%} would be rejected. Confidence is the "
            "probability of the predicted class; ranges are 95 % intervals."
        )
        write_text(path, render_page("New images", sections, note), errors="backslashreplace")


def compare_images(
    model: keras.Model, held_out: ImageSet, images: ImageSet, batch_size: int = 64
) -> Drift:
    """Says how far new images, without labels, are from those a model was validated with.

    Args:
        model: A classifier with one class for each image. Without `model.abstention`, a limit that
            5 % of the held-out images fall below is fitted.
        held_out: Images that the model was not trained on.
        images: New images; their labels are not read.
        batch_size: Images per step.

    Raises:
        TooFewImagesError: If there are too few held-out images for a limit.
        ValueError: If a set has other classes than the model.
    """
    known, known_shares, _ = predict_features(model, held_out, 1 - _FALSE_ALARMS, batch_size, True)
    features, shares, _ = predict_features(model, images, None, batch_size, True)
    false_alarms, fitted = _FALSE_ALARMS, getattr(model, "abstention", None)
    if fitted is None:
        least, gaussian = fit_typicality(known, false_alarms)
    else:
        false_alarms, least, gaussian = fitted.false_alarms, fitted.least_typical, fitted.gaussian
    typicality = keras.ops.convert_to_numpy(typicality_of(features, gaussian))
    rejected = typicality < least
    before, after = known_shares.max(axis=1), shares.max(axis=1)
    old, new = known_shares.argmax(axis=1), shares.argmax(axis=1)

    def shift(name: str, old: np.ndarray, new: np.ndarray) -> Shift:
        wrong, count = int(rejected[new].sum()), int(new.sum())
        share = (wrong / count, *wilson_interval(wrong, count))
        change = mean_change(before[old], after[new])
        return Shift(name, count, int(old.sum()), share, float(after[new].mean()), change)

    names = enumerate(images.class_names)
    classes = [shift(name, old == k, new == k) for k, name in names if (new == k).any()]
    classes.sort(key=lambda row: row.rejected, reverse=True)
    return Drift([shift("all", old >= 0, new >= 0), *classes], false_alarms, typicality)
