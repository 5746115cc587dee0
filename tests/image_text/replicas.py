"""Training of two towers on two replicas, which test_contrastive.py runs in another process."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.image_text import Towers, class_captions, contrastive_model, pair_batches
from tests.fixtures import fill_random, images_for, tiny_vit
from tests.workers import use_two_cpus

NAMES = ["cat", "dogs", "red bird"]


def train(scope) -> list[np.ndarray]:
    """Losses, and the weights after two epochs."""
    config = keras_vit.image_text.TextConfig(40, 16, 1, 2, 32, 6, 32)
    with scope:
        text = keras_vit.image_text.build_text_tower(config)
        fill_random(text)
        towers = Towers(tiny_vit(depth=1, classes=None), text, config, 2.0, -2.0)
        towers.tokenizer = lambda texts: np.array(
            [[len(text), ord(text[0]) % 38, ord(text[-1]) % 38, 39, 0, 0] for text in texts]
        )
        images = keras_vit.read_arrays(images_for(towers.image, 9), np.arange(9) % 3, NAMES)
        pairs = class_captions(images, ["{}", "a {}", "{}!"])
        batches = pair_batches(pairs, towers, 4, seed=1)
        model = contrastive_model(towers)
        loss = keras_vit.train.ContrastiveLoss("sigmoid", "labels")
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    history = model.fit(batches, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [np.array(history), *model.get_weights()]


def check():
    use_two_cpus()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for one, other in zip(train(strategy.scope()), train(contextlib.nullcontext()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    print("passed", flush=True)
