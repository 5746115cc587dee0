"""Trains a segmentation model on one replica and on two, in a process of its own."""

from __future__ import annotations

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from tests.fixtures import fill_random, tiny_config


def masks():
    """Images of three grey values, with their classes and a margin without labels."""
    coarse = np.random.default_rng(0).integers(0, 3, (8, 4, 6))
    labels = np.kron(coarse, np.ones((8, 8), int))
    images = np.repeat(labels[..., None] * 100.0, 3, -1)
    labels[:, :4] = 255
    return keras_vit.segmentation.read_mask_arrays(images, labels, ["a", "b", "c"])


def train(strategy, policy):
    """Losses and mean IoU of three epochs. Each replica has its own batch norm: it is frozen."""
    keras.config.set_dtype_policy(policy)
    with strategy.scope():
        config = tiny_config(depth=1, image_size=(32, 48), classes=None)
        backbone = keras_vit.build_vit(config)
        model = keras_vit.segmentation.build_segmenter(backbone, 3, "mlp", [0], 8, dropout_rate=0.0)
        fill_random(backbone, 0.1)
        for layer in model.layers:
            if layer.name in ("segmentation_block_0", "segmentation_fuse", "segmentation_head"):
                fill_random(layer, 0.1)
        model.get_layer("segmentation_norm").trainable = False
        model.compile(
            keras_vit.train.AdamW(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255),
            metrics=[keras.metrics.MeanIoU(3, ignore_class=255, sparse_y_pred=False, name="miou")],
            jit_compile=False,
        )
        batches = keras_vit.segmentation.mask_batches(masks(), model, 4, class_weights=(1, 2, 0.5))
    return model.fit(batches, epochs=3, shuffle=False, verbose=0).history


if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    print(json.dumps([train(each, sys.argv[1]) for each in (tf.distribute.get_strategy(), two)]))
