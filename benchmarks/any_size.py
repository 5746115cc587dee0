"""A model for any image size compared with the model of one size, at that size.

    python benchmarks/any_size.py --output docs/benchmarks/any_size.jsonl

Both have the same weights, and run in one process in turns, in TensorFlow's graph and with XLA. The
least processor time of a call counts, which other work on the machine affects least. Also given is
the largest difference of the features, relative to the largest.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from contestants.worker import random_batch, versions
from machine import write_row

import keras_vit


def measure(variant: str, batch: int, calls: int) -> dict:
    """One row: processor milliseconds of a call by compiler, and their ratio."""
    fixed = keras_vit.create_model(variant, include_top=False)  # a new head gives zeros
    flexible = keras_vit.models.resize_model(fixed, None)
    images = tf.constant(random_batch({"batch": batch, "size": 224})[0])
    row = {"model": variant, "batch": batch, "calls": calls}
    for compiler in ("graph", "xla"):
        functions = [tf.function(x, jit_compile=compiler == "xla") for x in (fixed, flexible)]
        features = [function(images).numpy() for function in functions]
        difference = np.abs(features[1] - features[0]).max() / np.abs(features[0]).max()
        row["difference"] = max(row.get("difference", 0.0), float(difference))
        seconds = [[], []]
        for _ in range(calls):
            for function, own in zip(functions, seconds, strict=True):
                begin = time.process_time()
                function(images).numpy()
                own.append(time.process_time() - begin)
        one, any_size = (1e3 * min(own) for own in seconds)
        row[compiler] = {"one_ms": round(one, 2), "any_ms": round(any_size, 2)}
        row[compiler]["ratio"] = round(any_size / one, 3)
    return {**row, "load": os.getloadavg()[0], "versions": versions()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", nargs="+", default=["vit_ti16", "vit_s16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--output", type=pathlib.Path, help="file to add JSON lines to")
    options = parser.parse_args()
    for variant in options.variants:
        for batch in options.batches:
            write_row(measure(variant, batch, options.calls), options.output)


if __name__ == "__main__":
    main()
