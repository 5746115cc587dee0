"""What weight standardisation and group norm cost, and what folding and our group norm gain.

    python benchmarks/resnet.py [--variant bit_r50x1] [--image_size 224] [--repeats 10] [--no-xla]

Prints a JSON line for each comparison, with versions and device. What is compared runs in turns,
after a warm-up that is not counted, so that whatever else a machine does meets all alike. Best and
median of the repeats are given in milliseconds, and the least time that processors spent on it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.models.fold import fold_standardization


def time_in_turns(functions, *arguments, repeats):
    """Milliseconds of each function, run one after the other: best, median, of processors."""
    times = {name: [] for name in functions}
    for turn in range(repeats + 2):
        for name, function in functions.items():
            start, start_processor = time.perf_counter(), time.process_time()
            keras.tree.map_structure(np.asarray, function(*arguments))
            if turn >= 2:  # the first ones trace and allocate
                passed = time.perf_counter() - start, time.process_time() - start_processor
                times[name].append([1000 * seconds for seconds in passed])
    return {name: summary(*zip(*each, strict=True)) for name, each in times.items()}


def summary(passed, of_processors):
    return {
        "best": round(min(passed), 2),
        "median": round(statistics.median(passed), 2),
        "processors": round(min(of_processors), 2),
    }


def report(**measured):
    gpus = [device.name for device in tf.config.list_physical_devices("GPU")]
    line = {
        **measured,
        "device": gpus or f"{os.cpu_count()} x {platform.machine()}",
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    print(json.dumps(line), flush=True)


def inference(model, jit_compile):
    return tf.function(lambda images: model(images, training=False), jit_compile=jit_compile)


def training_step(model, labels):
    weights = [weight.value for weight in model.trainable_weights]

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
        return [tf.reduce_sum(gradient) for gradient in tape.gradient(loss, weights)]

    return step


def compare_kernels(models, images, repeats, steps):
    """Standardised kernels beside folded ones, in inference or in steps of training."""
    images = tf.constant(images)
    labels = np.zeros(len(images), "int32")
    kinds = {
        "inference": lambda model: inference(model, jit_compile=False),
        "inference with XLA": lambda model: inference(model, jit_compile=True),
        "training step": lambda model: training_step(model, labels),
    }
    for kind in steps:
        functions = {name: kinds[kind](model) for name, model in models.items()}
        times = time_in_turns(functions, images, repeats=repeats)
        gains = {
            kind: round(times["standardised"][kind] / times["folded"][kind], 3)
            for kind in ("best", "median", "processors")
        }
        report(what=kind, batch_size=len(images), milliseconds=times, speedup=gains)


def gradient_of(layer):
    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(tf.square(layer(images)))
        return tape.gradient(loss, images)

    return step


def compare_group_norms(shape, repeats):
    images = tf.random.stateless_normal(shape, (0, 1))
    layers = {
        "keras_vit": keras_vit.layers.GroupNorm(1e-5),
        "keras": keras.layers.GroupNormalization(32, epsilon=1e-5),
    }
    for layer in layers.values():
        layer.build(shape)
    for kind, make in (("forward", tf.function), ("forward and backward", gradient_of)):
        functions = {name: make(layer) for name, layer in layers.items()}
        times = time_in_turns(functions, images, repeats=repeats)
        report(what=f"group norm, {kind}", shape=shape, milliseconds=times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="bit_r50x1")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--xla", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    size = (arguments.image_size, arguments.image_size, 3)
    side = -(-arguments.image_size // 4)
    compare_group_norms((8, 2 * side, 2 * side, 64), arguments.repeats)
    compare_group_norms((8, side, side, 256), arguments.repeats)
    compare_group_norms((8, side // 4, side // 4, 1024), arguments.repeats)
    model = keras_vit.create_model(arguments.variant, input_shape=size)
    models = {"standardised": model, "folded": fold_standardization(model)}
    steps = ["inference", "training step", *(["inference with XLA"] if arguments.xla else [])]
    for batch_size in arguments.batch_sizes:
        images = np.random.default_rng(0).uniform(0, 255, (batch_size, *size)).astype("float32")
        compare_kernels(models, images, arguments.repeats, steps)


if __name__ == "__main__":
    main()
