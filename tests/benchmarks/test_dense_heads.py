"""benchmarks/dense_heads.py: drawn pictures, the runs that are left, and the table."""

from __future__ import annotations

import types

import numpy as np
import pytest


@pytest.mark.parametrize("is_coloured", [False, True])
def test_pictures_have_one_shape_on_noise(load, is_coloured):
    heads = load("dense_heads")
    images, maps = heads.draw(20, 0, is_coloured)
    assert images.shape == (*maps.shape, 3) and images.dtype == "uint8"
    seen = set()
    for image, class_map in zip(images, maps, strict=True):
        (label,) = set(np.unique(class_map)) - {0}
        seen.add(int(label))
        (colour,) = np.unique(image[class_map == label], axis=0)
        if is_coloured:
            assert tuple(colour) == heads.COLOURS[heads.CLASSES[label]]
        assert 0.05 < np.mean(class_map > 0) < 0.3
        assert len(np.unique(image[class_map == 0], axis=0)) > 1000
    assert seen == {1, 2}


def test_a_run_is_one_cell_and_the_table_has_mean_and_least(load):
    heads = load("dense_heads")
    options = {"tasks": ["frozen"], "heads": ["dpt"], "times": [1, 3], "seeds": [0]}
    options |= {"epochs": 6, "images": 160, "plain": False}
    found = heads.cells(types.SimpleNamespace(**options))
    assert [(row["head"], row["times"]) for row in found] == [
        *(("logistic", 1), ("dpt", 1), ("dpt", 3))
    ]
    rows = [{**row, "mean_iou": 0.8, "steps": 64} for row in found]
    del rows[0]["steps"]
    rows += [{**rows[-1], "seed": 1, "mean_iou": 0.6}]
    assert heads.table(rows, "frozen")[2:] == [
        "| logistic | 80.0 (80.0) |  |  | 1 |",
        "| dpt | 80.0 (80.0) | 70.0 (60.0) | 64 | 2 |",
    ]
