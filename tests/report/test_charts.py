"""Charts with gaps, single points and any number of classes."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from keras_vit.report.charts import draw_confusion, draw_curves, find_ticks


def test_curves_have_gaps_and_dots_where_values_are_not_finite():
    drawn = draw_curves("loss", {"training": [1.0, math.nan, 2.0, 1.5]})
    assert drawn.count("<circle") == 1 and drawn.count("<polyline") == 1 and "nan" not in drawn
    assert draw_curves("loss", {"training": [math.inf]}) == ""
    assert "<circle" in draw_curves("loss", {"training": [0.0]})


def test_the_label_of_the_best_epoch_is_above_the_curves():
    for epoch in (1, 2, 5):
        drawn = draw_curves("Loss", {"loss": [2.0, 0.1, 1.0, 0.2, 0.0]}, epoch)
        (height,) = re.findall(rf'y="([\d.]+)"[^>]*>best: {epoch}<', drawn)
        (points,) = re.findall(r'points="([^"]+)"', drawn)
        top = min(map(float, re.findall(r"[ ,]\d[\d.]*,([\d.]+)", f" {points}")))
        assert 22 < float(height) < top + 1


@pytest.mark.parametrize(("count", "last", "anchor"), [(1, "1", "middle"), (1000, "1000", "end")])
def test_epochs_below_the_curves_are_those_there_are(count, last, anchor):
    drawn = draw_curves("Loss", {"loss": np.linspace(1, 0.5, count).tolist()}, count)
    ticks = re.findall(r'y="189.0" text-anchor="(\w+)">(\d+)<', drawn)
    assert ticks[-1] == (anchor, last)


def test_ticks_are_round_and_enclose_the_values():
    assert find_ticks(0, 1) == pytest.approx([0, 0.5, 1])
    assert find_ticks(0.11, 0.24) == pytest.approx([0.1, 0.15, 0.2, 0.25])
    for low, high in ((3, 3), (0, 0), (-1e-9, 1e-9), (1, 1e6)):
        ticks = find_ticks(low, high)
        assert ticks[0] <= low and ticks[-1] >= high and 2 <= len(ticks) <= 8


@pytest.mark.parametrize(("classes", "numbers", "labels"), [(2, 2, 4), (40, 0, 80), (150, 0, 0)])
def test_a_confusion_matrix_fits_any_number_of_classes(classes, numbers, labels):
    drawn = draw_confusion(np.eye(classes, dtype=int), [f"class {i}" for i in range(classes)])
    assert drawn.count("<text") == numbers + labels
    width = int(drawn.split('width="')[1].split('"')[0])
    assert width < 1100 and len(drawn) < 30_000
