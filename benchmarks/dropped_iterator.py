"""How long TensorFlow takes to drop an iterator of tf.data before its end.

    python benchmarks/dropped_iterator.py >> docs/benchmarks/dropped_iterator.jsonl

What every `fit`, `evaluate` and `predict` of Keras does at its end. Each time a small pipeline is
made, gives one batch, and is dropped after a second, in which a model would run. Prints two JSON
lines of the seconds that dropping took: with tf.data's tuning on, as it is by default, and off.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from machine import describe_machine


def drop(tuned: bool, seconds: float) -> float:
    """Seconds to drop an iterator that has lived so long."""
    options = tf.data.Options()
    options.autotune.enabled = tuned
    images = np.zeros((8, 4), "float32")
    pipeline = tf.data.Dataset.from_tensor_slices(images).batch(8).prefetch(tf.data.AUTOTUNE)
    iterator = iter(pipeline.with_options(options))
    next(iterator)
    time.sleep(seconds)
    begin = time.perf_counter()
    del iterator
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.8, help="between batch and end")
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    for tuned in (True, False):
        seconds = [round(drop(tuned, options.seconds), 3) for _ in range(options.times)]
        row = {"tuned": tuned, "after_s": options.seconds, "dropping_s": seconds}
        print(json.dumps({**row, "tensorflow": tf.__version__, **describe_machine()}), flush=True)


if __name__ == "__main__":
    main()
