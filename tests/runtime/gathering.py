"""Contrastive training on several replicas, which test_gathering.py runs in other processes."""

from __future__ import annotations

import contextlib
import functools
import pathlib

import keras
import numpy as np
import tensorflow as tf

import keras_vit
import keras_vit.runtime.gathering as gathering
from tests.workers import use_two_cpus

CASES = {
    "pairs": {},
    "labels": {"positives": "labels"},
    "sigmoid": {"kind": "sigmoid"},
    "sigmoid_labels": {"kind": "sigmoid", "positives": "labels"},
    "xla": {"jit_compile": True},
    "microbatches": {"size": 3},
    "microbatches_xla": {"size": 2, "jit_compile": True},
    "sigmoid_xla": {"kind": "sigmoid", "jit_compile": True},
}
RNG = np.random.default_rng(0)
BATCH = 8
IMAGES = RNG.normal(size=(BATCH, 6)).astype("float32")
IDS = RNG.integers(0, 9, (BATCH, 5)).astype("int32")
LABELS = np.array([0, 1, 0, 2, 3, 1, 0, 4])


def build(kind="softmax", positives="pairs", jit_compile=False, size=None):
    """Two small towers, whose step of a learning rate of 1 is the gradient."""
    image, ids = keras.Input((6,), name="images"), keras.Input((5,), dtype="int32", name="ids")
    x = keras.layers.Dense(4)(keras.layers.Dense(7, "gelu")(image))
    y = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(9, 6)(ids))
    y = keras.layers.Dense(4)(y)
    if size is not None:
        x = keras_vit.layers.Microbatches(keras.Model(image, x), size)(image)
        y = keras_vit.layers.Microbatches(keras.Model(ids, y), size)(ids)
    bias = -2.0 if kind == "sigmoid" else None
    pairs = keras_vit.layers.PairFeatures(1.5, bias, name="pairs")(x, y)
    model = keras_vit.Model([image, ids], pairs)
    rng = np.random.default_rng(1)
    scale = model.get_layer("pairs").scale
    for weight in model.weights:
        if weight is not scale:
            weight.assign(rng.normal(-0.1, 0.5, weight.shape))
    loss = keras_vit.train.ContrastiveLoss(kind, positives)
    model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=jit_compile)
    return model


def train(scope=contextlib.nullcontext, rows=BATCH, **case) -> list[np.ndarray]:
    """The loss of a step and of an evaluation, and the gradients of all weights."""
    with scope():
        model = build(**case)
    before = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    parts = tuple(x[:rows] for x in (IMAGES, IDS, LABELS))
    batches = tf.data.Dataset.from_tensors(((parts[0], parts[1]), parts[2]))
    evaluated = model.evaluate(batches, verbose=0)
    loss = model.fit(batches, verbose=0, shuffle=False).history["loss"][0]
    after = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    return [
        np.array(loss), np.array(evaluated), *(x - y for x, y in zip(before, after, strict=True))
    ]  # fmt: skip


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
        assert np.abs(other).max() > 1e-3


@functools.cache
def two_cpus():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def check_replicas(*names):
    """Two replicas have the loss and the gradients of one device, also with unequal parts."""
    use_two_cpus()
    for name in names:
        for rows in (8, 5):
            found = train(two_cpus().scope, rows, **CASES[name])
            assert_same(found, train(rows=rows, **CASES[name]))
            print("passed:", name, rows, flush=True)


def check_without_gradient():
    """Without the gradient of the gather, the loss stays and the gradients are wrong."""
    use_two_cpus()
    expected = train()
    gather = gathering.gather_rows
    keras_vit.train.losses.gather_rows = lambda x: (tf.stop_gradient(gather(x)[0]), gather(x)[1])
    found = train(two_cpus().scope)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    errors = [np.abs(x - y).max() / np.abs(y).max() for x, y in zip(found, expected, strict=True)]
    print("errors:", max(errors), flush=True)


def check_workers(folder):
    """Each worker writes what it found."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    for name, case in CASES.items():
        found = np.array(train(strategy.scope, **case), object)
        np.save(pathlib.Path(folder, f"{name}-{index}.npy"), found)
