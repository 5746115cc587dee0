"""Tests the metrics of several labels."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.train.metrics import AveragePrecision
from tests.evaluate.test_targets import average_precision


def test_average_precision_of_training_is_near_the_exact_one():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, (80, 3)).astype("float32")
    true[:, 2] = 0
    logits = (true + rng.normal(size=true.shape) - 4).astype("float32")
    metric = AveragePrecision(3)
    for part in (slice(0, 30), slice(30, 80)):
        metric.update_state(true[part], logits[part])
    expected = np.mean([average_precision(true[:, k], logits[:, k]) for k in range(2)])
    assert float(metric.result()) == pytest.approx(expected, abs=0.01)
    again = AveragePrecision.from_config(metric.get_config())
    again.update_state(true, logits, np.arange(80) < 30)
    metric.reset_state()
    metric.update_state(true[:30], logits[:30])
    assert float(again.result()) == pytest.approx(float(metric.result()))
