"""Models that train in several threads at once, and the classes of other packages meanwhile."""

from __future__ import annotations

import os
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export.inference import Inference
from keras_vit.runtime.distributed import _without_merge_call
from tests.fixtures import tiny_config
from tests.runtime.other_packages import changes, snapshot

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.uniform(0, 255, (12, 16, 16, 3)), RNG.integers(0, 10, 12)


class Sample(keras.callbacks.Callback):
    """Waits in each epoch until all threads train, and looks at the classes."""

    def __init__(self, barrier, before):
        super().__init__()
        self.barrier, self.before, self.found = barrier, before, []

    def on_epoch_begin(self, epoch, logs=None):
        if self.barrier is not None:
            self.barrier.wait(300)

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
    history = model.fit(IMAGES, LABELS, 4, epochs=2, callbacks=[sample], **options).history
    return history, model.predict(IMAGES, verbose=0)


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_fits_at_once_do_not_disturb_each_other(times):
    """Models of this package and plain ones: all give what one alone gives."""
    before = snapshot()
    kinds = [("ours", 1), ("plain", 2)]
    alone = [train(make(*kind), Sample(None, before)) for kind in kinds] * times
    barrier = threading.Barrier(len(alone))
    samples = [Sample(barrier, before) for _ in alone]
    with ThreadPoolExecutor(len(alone)) as pool:
        together = list(pool.map(train, [make(*kind) for kind in kinds * times], samples))
    keras.tree.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), alone, together
    )
    assert not np.allclose(alone[0][1], alone[1][1])
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


@pytest.mark.slow
def test_eight_threads_are_served_while_another_model_trains():
    """And the ninth trains: what every thread gets is what one thread gets alone."""
    served, trained = make("ours", 1), make("ours", 2)
    expected = served.predict(IMAGES, batch_size=5, verbose=0)
    stop = threading.Event()

    def keep_training():
        while not stop.is_set():
            trained.fit(IMAGES, LABELS, 4, epochs=1, verbose=0)

    def serve(number):
        images = np.roll(IMAGES, number, axis=0)
        return [np.roll(served.predict(images, 5, verbose=0), -number, axis=0) for _ in range(5)]

    with ThreadPoolExecutor(9) as pool:
        training = pool.submit(keep_training)
        try:
            answers = list(pool.map(serve, range(8)))
        finally:
            stop.set()
        training.result()
    for answer in np.reshape(answers, (40, *expected.shape)):
        np.testing.assert_allclose(answer, expected, rtol=1e-6, atol=1e-6)


class TrainOnce:
    """Trains a model in another thread while it is exported: at the first call of `run`."""

    def __init__(self, model):
        self.model = model

    def __call__(self, inference, pixels, batch_size=8):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.model.fit, IMAGES, LABELS, 4, verbose=0).result()
        return RUN(inference, pixels, batch_size)


RUN = Inference.run


@pytest.mark.slow
def test_a_model_that_trains_is_not_exported(tmp_path, monkeypatch):
    model = make("ours", 3)
    train_once = TrainOnce(model)
    monkeypatch.setattr(Inference, "run", lambda *args: train_once(*args))
    with pytest.raises(RuntimeError, match="was trained during the export, from step 0 to "):
        keras_vit.export_saved_model(model, tmp_path, warmup_batch_sizes=())
    assert list(tmp_path.iterdir()) == []


CALLS = ("predict", "predict_on_batch", "__call__", "evaluate", "fit", "train_on_batch")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")  # JAX's, if imported
def test_a_forked_child_is_told():
    """Without the check `predict` waits forever."""
    model = make("ours", 4)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        for call in CALLS:
            try:
                getattr(model, call)(IMAGES)
            except RuntimeError as error:
                os.write(write, b"." if "is a fork of it" in str(error) else b"x")
        os._exit(0)
    os.close(write)
    answers = b""
    while len(answers) < len(CALLS) and select.select([read], [], [], 60)[0]:
        answers += os.read(read, 100) or b"ended"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    assert answers == b"......"
