"""YOLOS and EoMT on two replicas and on one, which test_set_prediction.py runs in a process."""

from __future__ import annotations

import contextlib
import pathlib
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.segmentation.mask_training import build_mask_trainer
from keras_vit.train.mask_loss import MaskLoss
from scripts.golden.network_formula import points_of
from tests.networks.cases import network_folder
from tests.workers import use_two_cpus


def train(name: str, folder: pathlib.Path) -> tuple[float, list[np.ndarray]]:
    """How far weights moved in two steps, losses and weights; images have an object each."""
    model = keras_vit.from_pretrained(folder, include_preprocessing=False, input_shape=(64, 64, 3))
    images = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype("float32")
    y = {"boxes": np.array([[[4, 8, 40, 50]], [[20, 2, 60, 33]]], "float32")}
    if name == "eomt":
        model = build_mask_trainer(model, 1000, MaskLoss(train_num_points=100))
        y = {"masks": np.zeros((2, 1, 64, 64), "float32")}
        y["masks"][0, 0, 8:50, 4:40] = y["masks"][1, 0, 2:33, 20:60] = 1
    y["labels"] = np.array([[1], [3]])
    start = model.get_weights()
    model.compile(keras.optimizers.SGD(1e-3))
    found = model.fit(images, y, batch_size=2, epochs=2, shuffle=False, verbose=0).history["loss"]
    moved = max(np.abs(a - b).max() for a, b in zip(model.get_weights(), start, strict=True))
    return float(moved), [np.array(found), *model.get_weights()]


def check(folder: str) -> None:
    """The same points on both replicas: else masks have random ones."""
    use_two_cpus()
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def uniform(shape: tuple) -> tf.Tensor:
        return tf.broadcast_to(points_of((1, shape[-2], 2)), shape)

    points = mock.patch.object(tf.random, "uniform", uniform)
    for name in ("yolos", "eomt"):
        path = network_folder(name, pathlib.Path(folder, name))
        results = []
        for scope in (mirrored.scope(), contextlib.nullcontext()):
            with scope, points:
                results.append(train(name, path))
        (_, two), (moved, one) = results
        for own, other in zip(one, two, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-3 * moved)
        print(name, "moved" if moved > 1e-4 else "did not move", flush=True)
