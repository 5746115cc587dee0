"""Training on two replicas, which test_group_prediction.py runs in another process."""

from __future__ import annotations

import contextlib
import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.models.test_group_prediction import fine_tuned
from tests.workers import use_two_cpus


def check(folder: str) -> None:
    """Every image has one box, so that both replicas divide by the same number."""
    use_two_cpus()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = []
    for scope in (strategy.scope(), contextlib.nullcontext()):
        with scope:
            optimizer = keras.optimizers.SGD(1e-4, 0.9)
            model, losses = fine_tuned(pathlib.Path(folder), 2, (), optimizer)
        results.append((losses, *model.get_weights()))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    print("passed", flush=True)
