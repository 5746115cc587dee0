"""One of two workers that train on shards; writes what came of it.

`test_shards.py` runs `main` twice, each time with another task in `TF_CONFIG`.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from tests.fixtures import tiny_vit

EPOCHS = 2
BATCH = 8


def parse(record):
    """An image that is the number of its record, and the number as a label."""
    number = tf.strings.to_number(record, tf.int32)
    image = tf.random.stateless_uniform((16, 16, 3), [number, 0], maxval=255.0)
    return image, number % 10, tf.cast(number + 1, tf.float32)


@keras.saving.register_keras_serializable("tests")
class SumOfSquares(keras.metrics.Metric):
    """The sum over all images of the square of their weight, which is the number of the record."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.total = self.add_weight(initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.square(sample_weight)))

    def result(self):
        return self.total + 0.0  # a tensor, of all replicas


def train(data, later=None):
    model = tiny_vit(image_size=16, depth=1, mlp_dim=32)
    model.compile(
        keras.optimizers.SGD(1e-3, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[SumOfSquares(name="squares")],
        jit_compile=False,
    )
    history = model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False, validation_data=data).history
    results = {**history, **{w.path: w.numpy() for w in model.weights}}
    if later is not None:
        results["later"] = model.evaluate(later, verbose=0, return_dict=True)["squares"]
    return results


def main(pattern, folder):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    shards = keras_vit.data.find_shards(pattern)
    later = keras_vit.data.read_shards(shards, parse, BATCH, shuffle_buffer=100)  # for no strategy
    with strategy.scope():
        data = keras_vit.data.read_shards(shards, parse, BATCH, shuffle_buffer=100)
        results = train(data, later)
    np.savez(f"{folder}/{strategy.cluster_resolver.task_id}.npz", **results)
