"""95 % intervals, against SciPy and the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from keras_vit.intervals import drop_interval, wilson_interval


@pytest.mark.parametrize(("right", "total"), [(0, 5), (5, 5), (8, 10), (930, 1000)])
def test_wilsons_interval_is_that_of_scipy(right, total):
    expected = scipy.stats.binomtest(right, total).proportion_ci(method="wilson")
    assert wilson_interval(right, total) == pytest.approx(tuple(expected), abs=1e-6)
    assert wilson_interval(0, 0) == (0, 1)


def test_intervals_of_matched_pairs():
    # Agresti and Min's formula in whole numbers: (4.5 - 1.5) / 102, and its standard error.
    low, high = drop_interval(4, 1, 100)
    half = 1.959964 * np.sqrt(6 - 9 / 102) / 102
    np.testing.assert_allclose([low, high], [3 / 102 - half, 3 / 102 + half], rtol=1e-12)
    low, high = drop_interval(0, 0, 10)
    assert low == -high and high > 0.1  # ten images that agree do not show much
