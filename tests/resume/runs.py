"""A small training run with everything in it that a restart has to bring back."""

from __future__ import annotations

import contextlib
import inspect
import signal

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from tests.fixtures import tiny_config

EPOCHS, BATCHES, BATCH = 3, 5, 4
CONFIG = tiny_config(image_size=16, depth=1, dropout_rate=0.2)


class KilledError(Exception):
    """Stands for what ends a process."""


def deliver(number):
    """Does what `signal.raise_signal` does where Python handles the signal, and no more.

    A worker of pytest-xdist died of signals that were raised in it although a handler of Python was
    set; tests that send real signals do it in a process of their own.
    """
    handler = signal.getsignal(number)
    assert callable(handler), f"signal {number} would end this process: {handler!r}"
    handler(number, inspect.currentframe())


class KillAfter(keras.callbacks.Callback):
    """Ends training after so many steps, counted over all processes."""

    def __init__(self, step, how):
        super().__init__()
        self.step, self.how = step, how

    def on_train_batch_begin(self, batch, logs=None):
        self.before = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        if self.before < self.step <= int(self.model.optimizer.iterations.numpy()):
            self.how()


def images():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 255, (BATCHES * BATCH, 16, 16, 3)).astype("float32")
    return x, rng.integers(0, 10, BATCHES * BATCH)


def shuffled():
    """The usual pipeline."""
    dataset = tf.data.Dataset.from_tensor_slices(images()).cache()
    return dataset.shuffle(8, seed=5).batch(BATCH).prefetch(2)


def build(small=False, strategy=None, units=8, **compile_arguments):
    """A model with dropout, averages of weights, and metrics: a ViT, or a small one of users."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = small_model(units) if small else keras_vit.build_vit(CONFIG)
        model.compile(
            **{
                "optimizer": keras.optimizers.AdamW(1e-2, use_ema=True, ema_momentum=0.9),
                "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "metrics": ["accuracy"],
                "jit_compile": False,
                **compile_arguments,
            }
        )
    return model


def small_model(units):
    x = inputs = keras.Input((16, 16, 3))
    x = keras.layers.Rescaling(1 / 255)(keras.layers.GlobalAveragePooling2D()(x))
    x = keras.layers.Dropout(0.2)(keras.layers.Dense(units, name="hidden")(x))
    return keras_vit.Model(inputs, keras.layers.Dense(10, name="head")(x))


def outcome(model, history):
    """All that must be the same: variables in order, and the logs of every epoch."""
    variables = [*model.variables, *model.optimizer.variables]
    arrays = {i: v.numpy() for i, v in enumerate(variables)}
    return arrays, history.epoch, history.history, int(model.optimizer.iterations.numpy())


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    assert [k for k in one[0] if one[0][k].tobytes() != other[0][k].tobytes()] == []
    assert one[1:] == other[1:]
