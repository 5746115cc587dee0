"""Sections of a result page about labels and numbers."""

from __future__ import annotations

import numpy as np

from keras_vit.evaluate.targets import LabelPredictions, ValuePredictions
from keras_vit.report.target_sections import label_tiles, value_sections, value_tiles


def test_an_interval_of_one_image_is_unknown():
    one = np.ones((1, 1))
    values = ValuePredictions("photos", ("a.jpg",), ("age",), one, 2 * one)
    labels = LabelPredictions("photos", ("a.jpg",), ("dog",), one, one)
    for tiles in (value_tiles(values), label_tiles(labels)):
        assert [text for name, text in tiles if "interval" in name] == ["unknown"]
    text = next(value_sections(values)).body
    assert "unknown" in text and "nan" not in text
