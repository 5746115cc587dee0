"""Faults of Keras under `tf.distribute`, shown by `distributed.py` in a process with two CPUs.

Each function raises an error as long as Keras has the fault. `CorrectedError` is good news: remove
our correction for that version of Keras, or raise the lower bound in setup.cfg and remove it
altogether.
"""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tests.runtime.distributed import replicas, two_cpus


class CorrectedError(Exception):
    """Keras does right what we correct."""


def fit(scope, optimizer, images=12, batch=4, layers=(), data=None, **options):
    with scope:
        keras.utils.set_random_seed(0)
        start = keras.initializers.RandomNormal(seed=1)
        dense = keras.layers.Dense(2, kernel_initializer=start)
        model = keras.Sequential([keras.Input((3,)), *layers, dense])
        model.compile(optimizer, "mse", **options)
    rng = np.random.default_rng(0)
    if data is None:
        arrays = rng.normal(size=(images, 3)), rng.normal(size=(images, 2))
        data = tf.data.Dataset.from_tensor_slices(arrays).batch(batch)
    model.fit(data, verbose=0)
    return model


def equal(make, **options):
    """Whether two replicas train as one device."""
    one = fit(contextlib.nullcontext(), make(), **options).get_weights()
    two = fit(replicas(), make(), **options).get_weights()
    return all(np.allclose(x, y, atol=1e-5) for x, y in zip(one, two, strict=True))


def xla_on_replicas():
    fit(replicas(), "sgd", jit_compile=True)


def accumulation():
    fit(replicas(), keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))


def clipping():
    assert not equal(lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1)), "clipped correctly"
    raise ValueError


def unequal_shares():
    assert not equal(lambda: keras.optimizers.SGD(0.5), images=7), "weighted correctly"
    raise ValueError


def random_numbers():
    strategy = two_cpus()
    with strategy.scope():
        dropout = keras.layers.Dropout(0.5, seed=1)
    ones = tf.ones((1, 100))
    first, second = strategy.run(lambda: dropout(ones, training=True)).values
    assert np.array_equal(first, second), "replicas differ"
    raise ValueError


def end_of_data():
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(12, 3)), rng.normal(size=(12, 2))
    data = tf.data.Dataset.from_tensor_slices(arrays)
    data = data.filter(lambda x, y: True).batch(4, drop_remainder=True)  # of unknown length
    model = fit(contextlib.nullcontext(), "sgd", data=data, jit_compile=False)
    assert int(model.optimizer.iterations) == 4, "counted correctly"
    raise ValueError


def rematerialization():
    with keras.RematScope("full"):
        dense = keras.layers.Dense(3)
        fit(contextlib.nullcontext(), "sgd", layers=[dense], jit_compile=False)


def several_workers(strategy):
    fit(strategy.scope(), "sgd")


FAULTS = (
    xla_on_replicas,
    accumulation,
    clipping,
    unequal_shares,
    random_numbers,
    end_of_data,
    rematerialization,
)


def show_all():
    for fault in FAULTS:
        show(fault)


def show(fault, *arguments):
    try:
        fault(*arguments)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        print(fault.__name__, type(error).__name__, str(error)[:300])
        return
    raise CorrectedError(f"Keras {keras.__version__} is corrected: {fault.__name__} works.")
