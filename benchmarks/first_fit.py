"""Seconds until the first step of `fit` has ended: `keras_vit.Model` beside `keras.Model`.

    python benchmarks/first_fit.py vit_ti16 vit_b16 --output docs/benchmarks/first_fit.jsonl

The same layers in both classes, batches of 8 random images, Keras's AdamW and one metric; the third
row has our AdamW. Each `fit` of one step has a process of its own, in turns. Not counted: imports,
and building the model. `later_s` is the step of a second `fit`, which finds its function traced.
`system_s` is the part of the processor time in the kernel, which makes new memory usable.
Prints one JSON line a model and class with medians.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from machine import write_row

CLASSES = "keras.Model", "keras_vit.Model", "keras_vit.Model, train.AdamW"


def fit_once(variant: str, name: str) -> dict:
    """Two `fit`s of one step, with wall and processor seconds of each."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit

    model = keras_vit.create_model(variant, classes=10)
    if name == "keras.Model":
        model = keras.Model(model.inputs, model.outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rule = (keras_vit.train if name.endswith("AdamW") else keras.optimizers).AdamW(1e-3)
    model.compile(rule, loss, metrics=["accuracy"], jit_compile=False)
    images = np.random.default_rng(0).uniform(-1, 1, (8, *model.input_shape[1:]))
    data = images.astype("float32"), np.arange(8)
    facts = {"tensorflow": tf.__version__, "keras": keras.__version__}
    for when in ("first", "later"):
        start = time.perf_counter(), time.process_time(), os.times().system
        losses = model.fit(*data, batch_size=8, verbose=0).history["loss"]
        facts[f"{when}_s"] = time.perf_counter() - start[0]
        facts[f"{when}_processor_s"] = time.process_time() - start[1]
        facts[f"{when}_system_s"] = os.times().system - start[2]
        facts[f"{when}_loss"] = losses[0]
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path, help="JSON lines to append to")
    parser.add_argument("--once", choices=CLASSES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(fit_once(options.variants[0], options.once)))
        return
    for variant in options.variants:
        rounds = []
        for _ in range(options.repeats):
            command = [sys.executable, __file__, variant, "--once"]
            rounds.append(
                [
                    json.loads(subprocess.check_output([*command, name]).splitlines()[-1])
                    for name in CLASSES
                ]
            )
        for name, runs in zip(CLASSES, zip(*rounds, strict=True), strict=True):
            row = {"variant": variant, "class": name, "repeats": options.repeats}
            for key, value in runs[0].items():
                number = key.endswith("_s")
                row[key] = round(statistics.median(r[key] for r in runs), 2) if number else value
            write_row(row, options.output)


if __name__ == "__main__":
    main()
