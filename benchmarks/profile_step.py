"""Which kernels of XLA a training step, or a call, spends its time in.

    python benchmarks/profile_step.py --variant vit_s16 --depth 4 --batch 8
    python benchmarks/profile_step.py --task infer --variant vit_ti16 --batch 1 --threads 2

Profiles forward and backward pass of a ViT, compiled as `fit` compiles them, or the forward pass
alone, with TensorFlow's profiler. Prints the milliseconds of each kind of kernel, on the wall
clock, and the share of the plain products.
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
WHOLE = "CpuExecutable::ExecuteAsyncOnStream"


def compile_step(task: str, variant: str, depth: int | None, batch: int):
    config = dataclasses.replace(keras_vit.find_config(variant), classes=1000)
    config = dataclasses.replace(config, depth=depth or config.depth)
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
    pixels = tf.constant(images, tf.float32)
    if task == "train":
        return lambda: step(pixels, tf.zeros((batch,), tf.int32))
    call = tf.function(lambda pixels: model(pixels, training=False), jit_compile=True)
    return lambda: call(pixels).numpy()


def profile(run, calls: int) -> collections.Counter:
    """Milliseconds of a call by the name of a kernel, without its number."""
    run(), run()
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(calls):
                run()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    times: collections.Counter = collections.Counter()
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                times[re.sub(r"[._]?\d+(\.clone)?", "", name)] += event.duration_ps / 1e9 / calls
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="train", choices=("train", "infer"))
    parser.add_argument("--variant", default="vit_s16")
    parser.add_argument("--depth", type=int, help="blocks, if not all")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--calls", type=int, default=3)
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    times = profile(compile_step(args.task, args.variant, args.depth, args.batch), args.calls)
    whole = times[WHOLE]
    around = ("BlockUntilReady", "EagerCopyToDevice")
    kernels = [
        (name, time)
        for name, time in times.most_common()
        if time < whole and "::" not in name and name not in around
    ]
    for name, time in kernels[:20]:
        print(f"{time:9.1f} ms  {name}")
    share = sum(times[name] for name in PRODUCTS) / whole
    print(f"{whole:9.1f} ms in all, {share:.0%} of them plain products")


if __name__ == "__main__":
    main()
