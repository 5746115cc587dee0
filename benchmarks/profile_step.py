"""Which kernels of XLA a training step spends its time in, on one thread.

    python benchmarks/profile_step.py --variant vit_s16 --depth 4 --batch 8

Profiles forward and backward pass of a ViT, compiled as `fit` compiles them, with TensorFlow's
profiler. Prints the milliseconds of each kind of kernel and the share of the plain products.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import pathlib
import re
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import keras_vit

PRODUCTS = ("MatMul", "dot", "convolution", "convolution-window-dilated")
WHOLE = "ThunkExecutor::Execute"


def compile_step(variant: str, depth: int, batch: int):
    config = dataclasses.replace(keras_vit.find_config(variant), depth=depth, classes=1000)
    model = keras_vit.build_vit(config)
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function(jit_compile=True)
    def step(images, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, model(images, training=True)
            )
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, variables)

    images = np.random.default_rng(0).uniform(0, 255, (batch, *config.image_size, 3))
    return lambda: step(tf.constant(images, tf.float32), tf.zeros((batch,), tf.int32))


def profile(run) -> collections.Counter:
    """Milliseconds by the name of a kernel, without its number."""
    run()
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            run()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    times: collections.Counter = collections.Counter()
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                times[re.sub(r"[._]?\d+(\.clone)?", "", name)] += event.duration_ps / 1e9
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="vit_s16")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    times = profile(compile_step(args.variant, args.depth, args.batch))
    whole = times[WHOLE]
    kernels = [(name, time) for name, time in times.most_common() if time < whole]
    for name, time in kernels[:20]:
        print(f"{time:9.1f} ms  {name}")
    share = sum(times[name] for name in PRODUCTS) / whole
    print(f"{whole:9.1f} ms in all, {share:.0%} of them plain products")


if __name__ == "__main__":
    main()
