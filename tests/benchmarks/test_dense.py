"""benchmarks/dense.py: masks and boxes of the composed images agree, for training and test."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("test", [False, True])
def test_boxes_are_those_of_the_masks(load, test):
    for library in ("keras_hub", "skimage"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    images, maps, boxes, labels = load("dense").compose(4, 0, test)
    assert images.shape == (*maps.shape, 3) and images.dtype == "uint8"
    for class_map, own, digits in zip(maps, boxes, labels, strict=True):
        outside = class_map.copy()
        for (left, top, right, bottom), digit in zip(own.astype(int), digits, strict=True):
            window = class_map[top:bottom, left:right]
            edges = window[0], window[-1], window[:, 0], window[:, -1]
            assert set(np.unique(window)) == {0, digit + 1} and all(edge.any() for edge in edges)
            outside[top:bottom, left:right] = 0
        assert len(own) and not outside.any()
