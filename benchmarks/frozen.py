"""A SavedModel's graph in half precision: weights as constants, and as float32 variables before.

    python benchmarks/frozen.py --variants vit_b16 --output docs/benchmarks/frozen.jsonl

Both functions are those that `export_saved_model` saves or used to save, and run in one process in
turns. The least processor time of a call counts, which other work on the machine affects least; the
least wall time is kept too.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from contestants.worker import random_batch, versions
from machine import describe_machine

import keras_vit
from keras_vit.export.freeze import freeze
from keras_vit.export.inference import prepare


def measure(variant: str, precision: str, batches: list[int], calls: int):
    """Yields a row for every batch size."""
    inference = prepare(keras_vit.create_model(variant, classes=1000), precision)
    spec = tf.TensorSpec((None, *inference.input_shape), tf.float32, "pixels")
    function = tf.function(inference).get_concrete_function(spec)
    functions = {"variables": function, "constants": freeze(inference, function)}
    for batch in batches:
        images = tf.constant(random_batch({"batch": batch, "size": 224})[0])
        times: dict[str, list] = {name: [] for name in functions}
        for call in functions.values():
            call(images)["logits"].numpy()  # prepares the graph, packs the weights
        for _ in range(calls):
            for name, call in functions.items():
                begin = time.process_time(), time.perf_counter()
                call(images)["logits"].numpy()
                end = time.process_time(), time.perf_counter()
                times[name].append(np.subtract(end, begin))
        least = {name: np.min(values, axis=0) for name, values in times.items()}
        busy, wall = np.divide(least["variables"], least["constants"])
        yield {
            "model": variant,
            "precision": precision,
            "batch": batch,
            "speed_by_processor_time": round(float(busy), 2),
            "speed_by_wall_time": round(float(wall), 2),
            "processor_ms": {name: round(1e3 * float(x[0]), 1) for name, x in least.items()},
            "wall_ms": {name: round(1e3 * float(x[1]), 1) for name, x in least.items()},
            "calls": calls,
            "load": os.getloadavg()[0],
            "versions": versions(),
            **describe_machine(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=["vit_ti16", "vit_s16", "vit_b16"])
    parser.add_argument("--precisions", nargs="+", default=["bfloat16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--calls", type=int, default=12)
    parser.add_argument("--output", type=pathlib.Path, help="file to add JSON lines to")
    options = parser.parse_args()
    for variant in options.variants:
        for precision in options.precisions:
            for row in measure(variant, precision, options.batches, options.calls):
                print(json.dumps(row), flush=True)
                if options.output:
                    with open(options.output, "a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
