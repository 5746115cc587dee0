"""Learning rate schedules against the official code's."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_vit.train.schedules import Paced, WarmUp, decay_after_warmup
from tests.train.test_optimizers import official, rates


def decaying(kind, steps, warmup=0, rate=0.03, end=0.0):
    return decay_after_warmup(kind, rate, steps, warmup, end, drops=(0.4, 0.6, 0.8))


def test_schedules_match_the_official_ones():
    for steps, warmup in ((40, 10), (100, 1)):
        np.testing.assert_allclose(
            rates(decaying("cosine", steps, warmup), steps),
            official(0.03, steps, warmup, "cosine"),
            rtol=1e-5,
            atol=1e-8,
        )
        np.testing.assert_allclose(
            rates(decaying("linear", steps, warmup, end=1e-5), steps),
            official(0.03, steps, warmup, "linear"),
            rtol=1e-5,
        )
    for kind in ("cosine", "linear"):
        schedule = decaying(kind, 40, 10, end=1e-3)
        assert float(schedule(0)) == 0 and float(schedule(40)) == pytest.approx(1e-3)
        assert float(decaying(kind, 40)(0)) == pytest.approx(0.03)


def test_the_staircase_matches_bit():
    found = rates(decaying("staircase", 500, 100, rate=0.003), 501)
    t = np.arange(501)
    expected = 0.003 * np.minimum(1, t / 100) / 10.0 ** sum(t > drop for drop in (200, 300, 400))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_schedule_can_be_saved_and_needs_steps_after_warm_up():
    schedule = decaying("linear", 20, 5)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert isinstance(again, WarmUp)
    np.testing.assert_array_equal(rates(schedule, 20), rates(again, 20))
    with pytest.raises(ValueError, match=r"more steps than its warm-up.* steps=5, warmup_steps=5"):
        decaying("linear", 5, 5)


def test_a_paced_schedule_is_ahead_of_the_steps_until_they_catch_up():
    paced = Paced(decaying("linear", 20, 5))
    paced.pace.assign(10.0)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(paced))
    plain = decaying("linear", 20, 5)
    np.testing.assert_allclose(rates(paced, 20), [float(plain(max(t, 10))) for t in range(20)])
    np.testing.assert_allclose(rates(again, 20), rates(plain, 20))  # the pace is not saved
