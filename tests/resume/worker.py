"""One process of a run, as a user's script would be.

`worker.py OUTCOME FOLDER [KILL_AFTER HOW [OUTCOME FOLDER ...]]`: further runs follow the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from tests.resume.runs import BATCH, EPOCHS, KillAfter, build, outcome, shuffled


def main(target, folder, kill_after=0, how="SIGKILL", *more):
    keras.utils.set_random_seed(1)
    strategy = None
    if keras_vit.distribution.check_cluster(timeout_seconds=120):
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif "REPLICAS" in os.environ:
        strategy = mirrored(int(os.environ["REPLICAS"]))
    with strategy.scope() if strategy else contextlib.nullcontext():
        data = read(os.environ["SHARDS"]) if "SHARDS" in os.environ else shuffled()
    model = build(strategy=strategy)
    number = getattr(signal, how)
    callbacks = [
        KillAfter(int(kill_after), lambda: os.kill(os.getpid(), number)),
        keras_vit.ResumeTraining(folder, every_n_steps=2),
    ]
    history = model.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=0, shuffle=False)
    arrays, *facts = outcome(model, history)
    np.savez(target, facts=json.dumps(facts), **{str(i): array for i, array in arrays.items()})
    if more:
        main(*more)


def read(folder):
    """Images that a worker reads its own part of."""

    def parse(record):
        pixels = tf.io.decode_raw(
            tf.strings.substr(record, 0, tf.strings.length(record) - 1), "float32"
        )
        label = tf.io.decode_raw(tf.strings.substr(record, -1, 1), "uint8")[0]
        return tf.reshape(pixels, (16, 16, 3)), tf.cast(label, "int32")

    shards = keras_vit.data.find_shards(f"{folder}/*.tfrecord")
    return keras_vit.data.read_shards(shards, parse, BATCH, shuffle_buffer=16)


def mirrored(replicas):
    """Replicas in this process, on parts of its processor."""
    (device,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)]
    tf.config.set_logical_device_configuration(device, parts)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def read_outcome(path: pathlib.Path) -> dict:
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files}


if __name__ == "__main__":
    main(*sys.argv[1:])
