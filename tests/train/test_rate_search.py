"""Tests the search for a learning rate."""

from __future__ import annotations

import numpy as np
import pytest

import keras_vit
from keras_vit.train.rate_search import search_learning_rate
from tests.fixtures import tiny_config
from tests.train.test_fit import RECIPE, two_colours


@pytest.mark.slow
def test_the_learning_rate_finder_suggests_a_rate_that_learns():
    model = keras_vit.build_vit(tiny_config(image_size=16, depth=1, classes=2))
    before = [weight.numpy() for weight in model.weights]
    found = search_learning_rate(model, two_colours(), RECIPE, lowest=1e-5, highest=100, steps=60)
    for one, weight in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(one, weight)
    assert 1e-3 < found.suggestion < 10
    assert found.losses[0] == pytest.approx(np.log(2), rel=0.02) and min(found.losses) < 0.5
    assert found.rates[1] / found.rates[0] == pytest.approx((100 / 1e-5) ** (1 / 59))
    assert f"a learning rate of {found.suggestion:.1e}" in str(found)
    with pytest.raises(ValueError, match="at least 3 steps"):
        search_learning_rate(model, two_colours(), RECIPE, steps=1)
    model.layers[-1].bias.assign([np.nan, np.nan])
    with pytest.raises(ValueError, match="not finite in the first step"):
        search_learning_rate(model, two_colours(), RECIPE, steps=3)
