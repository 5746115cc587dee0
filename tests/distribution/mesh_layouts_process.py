"""Trains a small ViT on eight virtual devices in several layouts and writes the results.

`test_mesh_layouts.py` runs this on the JAX backend in a separate process, because the backend and
the number of devices cannot change while a process runs. TensorFlow is hidden there.
"""

from __future__ import annotations

import sys

import keras
import numpy as np

import keras_vit
from tests.fixtures import fill_random, tiny_config

# A model with every kind of weight: also those of the pooling head and of the normed queries.
CONFIG = tiny_config(depth=1, qk_norm=True, layer_scale=0.5, pooling="map")


def distribution(shape):
    if shape is None:
        return None
    devices = keras.distribution.list_devices()[: int(np.prod(shape))]
    if len(shape) == 1:
        return keras.distribution.DataParallel(devices=devices)
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], devices)
    layouts = keras_vit.distribution.vit_layout_map(CONFIG, mesh)
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def train(shape, results):
    keras.distribution.set_distribution(distribution(shape))
    model = keras_vit.build_vit(CONFIG)
    fill_random(model)
    rng = np.random.default_rng(1)
    images = rng.uniform(0, 255, (40, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, 40)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Not Adam: the gradient of the keys' bias is zero (softmax is shift invariant), and Adam would
    # divide rounding by rounding.
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=0.1, global_clipnorm=1.0)
    model.compile(optimizer, loss, metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    key = str(shape)
    results[f"{key}/losses"] = np.array(history["loss"])
    results[f"{key}/accuracies"] = np.array(history["accuracy"])
    for weight in model.trainable_weights:
        results[f"{key}/weights/{weight.path}"] = np.asarray(weight)
        results[f"{key}/shards/{weight.path}"] = shard_shape(weight)
    momentum = next(v for v in optimizer.variables if v.path.endswith("qkv_kernel_momentum"))
    results[f"{key}/shards/momentum"] = shard_shape(momentum)


def predict():
    """Logits of three images."""
    model = keras_vit.build_vit(CONFIG)
    fill_random(model)
    images = np.random.default_rng(1).uniform(0, 255, (3, 32, 32, 3)).astype("float32")
    return model.predict(images, batch_size=3, verbose=0)


def shard_shape(variable):
    """The shape of the part of a variable that one device holds."""
    return np.array(variable.value.addressable_shards[0].data.shape)


def main(output, *shapes):
    """Trains in each of the shapes; `None` is one device."""
    assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
    results = {}
    for shape in shapes:
        train(shape, results)
    keras.distribution.set_distribution(None)
    results["predict"] = predict()
    np.savez(output, **results)
