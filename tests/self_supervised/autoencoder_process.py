"""A masked autoencoder on replicas and workers, which test_masked_autoencoder.py runs."""

from __future__ import annotations

import contextlib
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.self_supervised import build_masked_autoencoder
from scripts.golden.network_formula import noise_of
from tests.fixtures import tiny_config
from tests.workers import use_two_cpus

IMAGES = np.random.default_rng(0).uniform(0, 255, (4, 32, 32, 3)).astype("float32")


def train(scope=contextlib.nullcontext, jit_compile=True) -> list[np.ndarray]:
    """Losses and weights of three steps, in which all images have the same noise."""
    noise = noise_of(1, 16)[0]

    def uniform(shape, **_):
        return tf.broadcast_to(noise, shape)

    keras.utils.set_random_seed(0)
    with scope(), mock.patch.object(keras.random, "uniform", uniform):
        encoder = keras_vit.build_vit(tiny_config(depth=1, classes=None))
        model = build_masked_autoencoder(encoder, 12, 1, 3, seed=0).model
        model.compile(keras.optimizers.SGD(0.1), jit_compile=jit_compile)
        data = tf.data.Dataset.from_tensor_slices(IMAGES).batch(4)
        history = model.fit(data, epochs=3, shuffle=False, verbose=0)
    return [np.array(history.history["loss"]), *model.get_weights()]


def check_replicas() -> None:
    """Two replicas with XLA end as one without."""
    use_two_cpus()
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    compare(train(mirrored.scope), train(jit_compile=False))


def check_workers(folder: str) -> None:
    """Each of two workers writes what it found."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found = np.array(train(strategy.scope), object)
    np.save(f"{folder}/{strategy.cluster_resolver.task_id}.npy", found, allow_pickle=True)


def check_alone(folder: str) -> None:
    """One process ends as the workers did."""
    alone = train(jit_compile=False)
    for index in range(2):
        compare(np.load(f"{folder}/{index}.npy", allow_pickle=True), alone)


def compare(found, expected) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    print("losses", expected[0].tolist(), flush=True)
    assert expected[0][-1] < expected[0][0]
