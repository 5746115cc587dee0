"""benchmarks/regression.py: the numbers of drawn pictures, and the table."""

from __future__ import annotations

import types

import numpy as np


def test_numbers_are_those_of_the_pictures(load):
    regression = load("regression")
    for target in regression.TARGETS:
        images, numbers = regression.draw(target, 20, 0)
        assert images.shape == (20, 32, 32, 3) and images.dtype == "uint8"
        assert numbers.shape == (20, 1) and len(np.unique(numbers)) > 5
    level = np.median(images.mean(-1), axis=(1, 2))
    assert np.corrcoef(level, numbers[:, 0])[0, 1] > 0.9


def test_the_table_has_mean_and_range(load):
    regression = load("regression")
    cells = regression.cells(types.SimpleNamespace(seeds=[0, 1], targets=["count"], images=160))
    assert [cell["seed"] for cell in cells] == [0, 0, 1, 1]
    rows = [{**cell, "error": error} for cell, error in zip(cells, (2, 1, 4, 2), strict=True)]
    assert regression.table(rows)[2:] == ["| count | 3 (2 to 4) | 1.5 (1 to 2) | 2 |"]
