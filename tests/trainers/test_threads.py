"""Models that train in several threads at once, and the classes of other packages meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.trainers.distributed import _without_merge_call
from tests.fixtures import tiny_config
from tests.trainers.other_packages import changes, snapshot

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.uniform(0, 255, (12, 16, 16, 3)), RNG.integers(0, 10, 12)


class Sample(keras.callbacks.Callback):
    """Waits in the first epoch until the other thread trains too, and looks at the classes."""

    def __init__(self, barrier, before):
        super().__init__()
        self.barrier, self.before, self.found = barrier, before, []

    def on_epoch_begin(self, epoch, logs=None):
        if self.barrier is not None and epoch < 2:
            self.barrier.wait(60)

    def on_train_batch_end(self, batch, logs=None):
        self.found += changes(self.before) if batch == 0 else []


def make(kind, seed):
    if kind == "plain":
        inputs = keras.Input((16, 16, 3))
        x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
        start = keras.initializers.RandomNormal(stddev=0.02, seed=seed)
        model = keras.Model(inputs, keras.layers.Dense(10, kernel_initializer=start)(x))
    else:
        model = keras_vit.build_vit(tiny_config(image_size=16, patch_size=8, depth=1))
        rng = np.random.default_rng(seed)
        model.set_weights([rng.normal(0, 0.1, w.shape) for w in model.get_weights()])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    return model


def train(model, sample):
    options = {"validation_data": (IMAGES, LABELS), "shuffle": False, "verbose": 0}
    history = model.fit(IMAGES, LABELS, 4, epochs=3, callbacks=[sample], **options).history
    return history, model.evaluate(IMAGES, LABELS, 5, verbose=0), model.predict(IMAGES, verbose=0)


@pytest.mark.parametrize("kinds", [("ours", "plain"), ("ours", "ours")])
def test_two_fits_at_once_do_not_disturb_each_other(kinds):
    before = snapshot()
    alone = [train(make(kind, seed), Sample(None, before)) for seed, kind in enumerate(kinds)]
    models = [make(kind, seed) for seed, kind in enumerate(kinds)]
    barrier = threading.Barrier(2)
    samples = [Sample(barrier, before) for _ in kinds]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(train, models, samples))
    keras.tree.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), alone, together
    )
    assert [name for sample in samples for name in sample.found] == []
    assert changes(before) == []


def test_updates_without_merge_call_are_those_of_one_thread():
    """Threads whose models share a strategy enter and leave in turns."""
    extended = tf.distribute.MirroredStrategy(["CPU:0"]).extended
    expected = extended._use_merge_call()
    inside, leave = threading.Barrier(2), threading.Barrier(2)
    seen = {}

    def work(name, first):
        if not first:
            inside.wait(10)
        with _without_merge_call(extended):
            if first:
                inside.wait(10)
            leave.wait(10)
            if not first:
                leave.wait(10)
            seen[name] = extended._use_merge_call()
        if first:
            seen["left"] = extended._use_merge_call()
            leave.wait(10)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ("first", "second"), (True, False)))
    assert seen == {"first": False, "second": False, "left": expected}
    assert "_use_merge_call" not in vars(extended)
