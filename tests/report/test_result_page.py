"""The page about the result of training: its content, and what a real browser makes of it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from keras_vit.evaluate.class_predictions import Predictions
from keras_vit.report.page import human_seconds
from keras_vit.report.result_page import write_result_page
from tests.analysis.test_outliers import vit_with_outliers
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
    model, images = vit_with_outliers(length=14.0)
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
        "outlier patches are framed",
        "a.jpg is empty",
        "rate 0.1",
    ):
        assert part in page.text, part
    # Two pictures, each beside its map, on which two patches are framed.
    assert page.images.count("image") == 4 and page.images.count("attention") == 2
    assert text.count('<i style="left:') == 4
    # Three curves and no chart of the seconds; two lines where there is validation.
    assert text.count('by epoch"') == 3 and text.count('class="second"') == 1


def test_without_predictions_the_page_says_so(tmp_path):
    model, _ = random_vit()
    page = Page(write_result_page(tmp_path / "page.html", model).read_text())
    assert "accuracy is unknown" in page.text and "Confusion" not in page.text
    assert f"{model.count_params():,}" in page.text


@pytest.mark.parametrize("width", [400, 1280])
def test_a_real_browser_shows_the_page(page_path, width, tmp_path):
    found = browse(
        page_path,
        tmp_path,
        width,
        "{wide: document.documentElement.scrollWidth, window: innerWidth,"
        "images: [...document.images].map(i => [i.naturalWidth, i.clientWidth]),"
        "charts: [...document.querySelectorAll('svg[role]')].map(c => c.clientWidth)}",
    )
    assert found["wide"] <= found["window"]  # nothing pushes the page sideways
    assert len(found["images"]) == 6 and all(n > 3 and w > 80 for n, w in found["images"])
    assert len(found["charts"]) == 5 and min(found["charts"]) > 100, json.dumps(found)
