"""Measures what it saves to compute the last block for the class token alone.

    python benchmarks/last_block.py --output docs/benchmarks/last_block.jsonl

Times a model, which does so, and a `keras.Model` of the same layers, which computes all tokens, in
turns in one process: inference and a forward and backward pass, with XLA and as a graph. Prints a
JSON line for each case: medians in milliseconds, their ratio, and the largest difference of logits
over the largest logit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from machine import describe_machine

import keras_vit
from keras_vit.runtime import keep_buffers


def compile_step(model: keras.Model, task: str, jit_compile: bool):
    """A function of images: logits, or the gradients of their sum."""

    def infer(images):
        return model(images, training=False)

    def train(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=True))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    function = {"infer": infer, "train": train}[task]
    return tf.function(function, jit_compile=jit_compile, autograph=False)


def measure(models: dict[str, keras.Model], images: tf.Tensor, case: tuple, args) -> dict:
    steps = {name: compile_step(model, *case) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(args.turns + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            np.asarray(tf.nest.flatten(step(images))[0])
            if turn:
                times[name].append(1000 * (time.perf_counter() - start))
    medians = {name: round(statistics.median(values), 2) for name, values in times.items()}
    return {**medians, "ratio": round(medians["all_tokens"] / medians["class_token"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=["vit_ti16", "vit_s16", "vit_b16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--output", help="a file that the JSON lines are added to")
    args = parser.parse_args()
    keep_buffers()
    for variant in args.variants:
        model = keras_vit.create_model(variant, weights=None)
        random = np.random.default_rng(0)
        model.get_layer("head").set_weights(
            [random.normal(0, 0.05, weight.shape) for weight in model.get_layer("head").weights]
        )
        models = {
            "class_token": model,
            "all_tokens": keras.Model(model.inputs[0], model.outputs[0]),
        }
        for batch in args.batches:
            shape = (batch, *model.input_shape[1:])
            images = tf.constant(random.uniform(0, 255, shape), tf.float32)
            ours, whole = (np.asarray(each(images)) for each in models.values())
            error = float(np.abs(ours - whole).max() / np.abs(whole).max())
            for task in ("infer", "train"):
                for jit_compile in (True, False):
                    line = {"variant": variant, "batch": batch, "task": task, "xla": jit_compile}
                    line |= measure(models, images, (task, jit_compile), args)
                    line |= {"difference": float(f"{error:.1e}"), "turns": args.turns}
                    text = json.dumps({**line, **describe_machine()})
                    print(text, flush=True)
                    if args.output:
                        with open(args.output, "a") as file:
                            file.write(text + "\n")


if __name__ == "__main__":
    main()
