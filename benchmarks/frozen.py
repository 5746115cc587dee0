"""TensorFlow's graph of a model: weights as constants, and GELU joined with its product by oneDNN.

    python benchmarks/frozen.py --output docs/benchmarks/frozen.jsonl
    python benchmarks/frozen.py --variants vit_b16 --depth 3       three blocks, to be quicker

`before` has variables and a GELU that oneDNN does not join with its product (a matter of names, see
`keras_vit.layers.mlp.gelu`), `variables` is what `predict` runs without XLA, `half` has variables
in the precision that they are read in, as `export_saved_model` saves them, and `constants` is what
it saves with `constant_weights=True`. With `TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1` in the environment,
oneDNN arranges variables once too. All run in one process in turns. The least processor
time of a call counts, which other work on the machine affects least; the least wall time
is kept too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from contestants.worker import random_batch, versions
from machine import describe_machine

import keras_vit
from keras_vit.export.freeze import constants_of, weights_as_read, with_weights
from keras_vit.export.inference import prepare
from keras_vit.layers import mlp


def measure(variant: str, precision: str, options):
    """Yields a row for every batch size."""
    config = dataclasses.replace(keras_vit.find_config(variant), classes=1000)
    config = dataclasses.replace(config, depth=options.depth or config.depth)
    inference = prepare(keras_vit.build_vit(config), precision)
    spec = tf.TensorSpec((None, *inference.input_shape), tf.float32, "pixels")
    joined = mlp.gelu
    mlp.gelu = lambda x, form, training: keras.activations.gelu(x, approximate=form == "tanh")
    functions = {"before": tf.function(inference).get_concrete_function(spec)}
    mlp.gelu = joined
    functions["variables"] = tf.function(inference).get_concrete_function(spec)
    halves = weights_as_read(inference, functions["variables"])
    weights = {"half": halves} if precision != "float32" else {}
    weights["constants"] = constants_of(halves, "Take a smaller model.")
    for name, held in weights.items():
        functions[name] = tf.function(with_weights(inference, held)).get_concrete_function(spec)
    for batch in options.batches:
        images = tf.constant(random_batch({"batch": batch, "size": 224})[0])
        times: dict[str, list] = {name: [] for name in functions}
        for call in functions.values():
            call(images)["logits"].numpy()  # prepares the graph, packs the weights
        for _ in range(options.calls):
            for name, call in functions.items():
                begin = time.process_time(), time.perf_counter()
                call(images)["logits"].numpy()
                end = time.process_time(), time.perf_counter()
                times[name].append(np.subtract(end, begin))
        least = {name: np.min(values, axis=0) for name, values in times.items()}
        yield {
            "model": variant,
            "blocks": config.depth,
            "precision": precision,
            "batch": batch,
            "speed": {n: round(float(least["before"][0] / x[0]), 2) for n, x in least.items()},
            "processor_ms": {name: round(1e3 * float(x[0]), 1) for name, x in least.items()},
            "wall_ms": {name: round(1e3 * float(x[1]), 1) for name, x in least.items()},
            "calls": options.calls,
            "assumed_frozen": os.environ.get("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS") == "1",
            "load": os.getloadavg()[0],
            "versions": versions(),
            **describe_machine(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=["vit_ti16", "vit_s16", "vit_b16"])
    parser.add_argument("--depth", type=int, help="number of blocks; default: those of the variant")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--calls", type=int, default=12)
    parser.add_argument("--output", type=pathlib.Path, help="file to add JSON lines to")
    options = parser.parse_args()
    for variant in options.variants:
        for precision in options.precisions:
            for row in measure(variant, precision, options):
                print(json.dumps(row), flush=True)
                if options.output:
                    with open(options.output, "a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
