"""The page about the result of training: its content, and what a real browser makes of it."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from keras_vit.evaluate.predictions import Predictions
from keras_vit.evaluate.targets import LabelPredictions, ValuePredictions
from keras_vit.report.charts import draw_confusion, draw_curves, find_ticks
from keras_vit.report.page import human_seconds
from keras_vit.report.result_page import write_result_page
from keras_vit.report.target_sections import label_tiles, value_sections, value_tiles
from tests.models.test_feature_extraction import random_vit
from tests.report.test_model_page import Page, browse

EVIL = "<b>&\"'<script>alert(1)</script>"
HISTORY = {
    "loss": [2.0, math.nan, 1.0],
    "accuracy": [0.1, 0.3, 0.2],
    "val_accuracy": [0.1, 0.4, 0.3],
    "learning_rate": [1e-3, 5e-4, 0.0],
    "seconds": [9.0, 9.0, 9.0],
}


def predictions_of(images, num_classes=3):
    """Ten predictions: the first six are correct, the others take the next class."""
    labels = np.arange(10) % num_classes
    classes = (labels + (np.arange(10) >= 6))[:, None] + np.arange(num_classes)
    shares = np.linspace(0.9, 0.1, num_classes, dtype="float32")
    return Predictions(
        source="photos",
        names=tuple(f"photos/{i}{EVIL}.png" for i in range(10)),
        class_names=tuple(f"{EVIL}{i}" for i in range(num_classes)),
        labels=labels,
        classes=classes % num_classes,
        probabilities=np.tile(shares / shares.sum(), (10, 1)),
        label_probabilities=np.full(10, 0.05, "float32"),
        worst=(7, 9),
        worst_images=images[:2],
    )


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    model, images = random_vit()
    return write_result_page(
        tmp_path_factory.mktemp("page") / "report.html",
        model,
        predictions_of(images),
        HISTORY,
        title=EVIL,
        subtitle=EVIL,
        best_epoch=2,
        cost={"training time": human_seconds(10_000)},
        settings={"data": EVIL, "skipped": ["a.jpg is empty", EVIL], "plan": {"rate": 0.1}},
    )


def test_the_page_shows_the_result_and_needs_no_other_file(page_path):
    text = page_path.read_text(encoding="utf-8")
    page = Page(text)
    assert "script" not in page.tags and "link" not in page.tags and "b" in page.tags
    assert all(each.startswith(("data:image/", "#")) for each in page.addresses)
    assert "default-src 'none'" in text
    for part in (
        "60.0% accuracy (6 of 10 images)",
        "31.3% to 83.2%",
        "2 of 3",
        "2 h 47 min",
        "best: 2",
        "2 of 4 50.0% 15.0% to 85.0%",  # accuracy of class 0
        f"{EVIL}2 60.0%, but is {EVIL}1 5.0%",  # the most wrong image
        f"photos/7{EVIL}.png",
        "a.jpg is empty",
        "rate 0.1",
    ):
        assert part in page.text, part
    assert page.images.count("attention") == 2
    # Three curves and no chart of the seconds; two lines where there is validation.
    assert text.count('by epoch"') == 3 and text.count('class="second"') == 1


def test_without_predictions_the_page_says_so(tmp_path):
    model, _ = random_vit()
    page = Page(write_result_page(tmp_path / "page.html", model).read_text())
    assert "accuracy is unknown" in page.text and "Confusion" not in page.text
    assert f"{model.count_params():,}" in page.text


def test_an_interval_of_one_image_is_unknown():
    one = np.ones((1, 1))
    values = ValuePredictions("photos", ("a.jpg",), ("age",), one, 2 * one)
    labels = LabelPredictions("photos", ("a.jpg",), ("dog",), one, one)
    for tiles in (value_tiles(values), label_tiles(labels)):
        assert [text for name, text in tiles if "interval" in name] == ["unknown"]
    text = next(value_sections(values)).body
    assert "unknown" in text and "nan" not in text


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


@pytest.mark.parametrize("width", [400, 1280])
def test_a_real_browser_shows_the_page(page_path, width, tmp_path):
    seen = browse(
        page_path,
        tmp_path,
        width,
        "{wide: document.documentElement.scrollWidth, window: innerWidth,"
        "images: [...document.images].map(i => [i.naturalWidth, i.clientWidth]),"
        "charts: [...document.querySelectorAll('svg[role]')].map(c => c.clientWidth)}",
    )
    assert seen["wide"] <= seen["window"]  # nothing pushes the page sideways
    assert len(seen["images"]) == 6 and all(n > 3 and w > 80 for n, w in seen["images"])
    assert len(seen["charts"]) == 5 and min(seen["charts"]) > 100, json.dumps(seen)
