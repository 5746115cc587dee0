"""Peak memory and time of a training step with and without `rematerialize=True`.

    python benchmarks/rematerialization.py --variant vit_l16 --batch 16 \
        --output docs/benchmarks/rematerialization.jsonl

Each way runs two steps of `fit` (SGD, TensorFlow) in a process of its own. `peak` is the largest
resident memory of the process, `base` what it had before the first step, with the model built;
seconds are of the second step. Prints one JSON line each, then the ratios. L/16 with 16 images
takes 12 GB and some minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import subprocess
import sys
import time

import numpy as np


def measure(variant: str, batch: int, rematerialize: bool, jit_compile: bool) -> dict:
    import keras
    import tensorflow as tf

    import keras_vit

    model = keras_vit.create_model(variant, classes=1000, rematerialize=rematerialize)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss, jit_compile=jit_compile)
    images = np.random.default_rng(0).uniform(0, 255, (batch, *model.input_shape[1:]))
    images, labels = images.astype("float32"), np.arange(batch)
    base = peak()
    seconds = []
    for _ in range(2):
        start = time.perf_counter(), time.process_time()
        model.train_on_batch(images, labels)
        seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return {
        "variant": variant,
        "batch": batch,
        "rematerialize": rematerialize,
        "jit_compile": jit_compile,
        "base": base,
        "peak": peak(),
        "seconds": round(seconds[1][0], 2),
        "processor_seconds": round(seconds[1][1], 2),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def peak() -> int:
    """Bytes; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="vit_l16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--jit-compile", action="store_true")
    parser.add_argument("--output", help="a file that the JSON lines are added to")
    parser.add_argument("--way", choices=("keep", "recompute"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        options = arguments.batch, arguments.way == "recompute", arguments.jit_compile
        print(json.dumps(measure(arguments.variant, *options)))
        return
    rows = []
    for way in ("keep", "recompute"):
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        lines = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
        rows.append(json.loads(lines.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.output:
        with open(arguments.output, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    keep, recompute = rows
    for name in ("peak", "seconds", "processor_seconds"):
        print(f"{name}: recomputed {recompute[name] / keep[name]:.2f} of kept")


if __name__ == "__main__":
    main()
