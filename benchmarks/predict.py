"""The compiler that `predict` chooses, and what `predict` costs beside a call of the function.

    python benchmarks/predict.py --output docs/benchmarks/predict.jsonl

For every model, precision and batch, in one process in turns: `predict` with its own choice,
`predict` in the graph, the model called in the graph, and called with XLA. The least processor time
of a call counts, which other work on the machine affects least; the least wall time is kept too.
`block` is the time of the graph over that of XLA for one block, by which `predict` chooses, and
`model` the same of the whole model: where one is above 1.05 and the other below 0.95, the choice is
wrong. A table ends the output; `--table` prints that of a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

VARIANTS = ("vit_ti16", "vit_s16", "vit_b16")
POLICIES = ("float32", "mixed_bfloat16")
BATCHES = (1, 8)


def measure(variant: str, policy: str, options) -> None:
    """Prints a line of JSON for every batch size."""
    import keras
    import numpy as np
    import tensorflow as tf
    from contestants.worker import random_batch, versions
    from machine import describe_machine

    import keras_vit
    from keras_vit.runtime import compilers

    keras.config.set_dtype_policy(policy)
    config = dataclasses.replace(keras_vit.find_config(variant), classes=1000)
    model = keras_vit.build_vit(config)
    head = model.get_layer("head")  # zeros in a new model, which would hide every difference
    head.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in head.get_weights()])
    plain = keras_vit.Model(model.inputs, model.outputs[0])
    plain.compile(jit_compile=False)
    block = model.get_layer("block_0")
    for batch in options.batches:
        images = random_batch({"batch": batch, "size": 224})[0]
        begin = time.process_time()
        timing = compilers.time_block(block, batch, time.process_time)
        cost = time.process_time() - begin
        gain = timing.graph / timing.xla if timing else 0.0  # 0: too large to be timed
        compilers.xla_for_inference = lambda *_, xla=gain >= 1.05: xla
        model.compile()
        graph, xla = (
            tf.function(lambda x: model(x, training=False), jit_compile=jit, autograph=False)
            for jit in (False, True)
        )
        calls = {
            "predict": lambda x=images: model.predict(x, len(x), verbose=0),
            "predict graph": lambda x=images: plain.predict(x, len(x), verbose=0),
            "call graph": lambda x=images, f=graph: f(tf.constant(x)).numpy(),
            "call xla": lambda x=images, f=xla: f(tf.constant(x)).numpy(),
        }
        answers = {name: call() for name, call in calls.items()}
        times: dict[str, list] = {name: [] for name in calls}
        end = time.monotonic() + options.seconds
        while time.monotonic() < end or len(times["predict"]) < options.least:
            for name, call in calls.items():
                clocks = time.process_time(), time.perf_counter()
                call()
                seconds = time.process_time() - clocks[0], time.perf_counter() - clocks[1]
                times[name].append(seconds)
        least = {name: np.min(values, axis=0) for name, values in times.items()}
        chosen = "call xla" if gain >= 1.05 else "call graph"
        busy = {name: float(values[0]) for name, values in least.items()}
        row = {
            "model": variant,
            "precision": policy,
            "batch": batch,
            "block": round(gain, 3),
            "model_gain": round(busy["call graph"] / busy["call xla"], 3),
            "chosen": chosen.removeprefix("call "),
            "choice_processor_s": round(cost, 2),
            "predict_over_call": round(busy["predict"] / busy[chosen], 3),
            "speed_of_old": round(busy["predict graph"] / busy["predict"], 3),
            "difference": float(
                np.abs(answers["predict"] - answers["call graph"]).max()
                / np.abs(answers["call graph"]).max()
            ),
            "processor_ms": {name: round(1e3 * value, 2) for name, value in busy.items()},
            "wall_ms": {name: round(1e3 * float(v[1]), 2) for name, v in least.items()},
            "calls": len(times["predict"]),
            "load": os.getloadavg()[0],
            "versions": versions(),
            **describe_machine(),
        }
        print(json.dumps(row), flush=True)


def table(rows: list[dict]) -> str:
    lines = [
        "| model | precision | batch | XLA's gain, block | whole model | `predict` takes "
        "| `predict` over the call | over `predict` in the graph |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        keys = ("model", "precision", "batch", "block", "model_gain", "chosen")
        keys += ("predict_over_call", "speed_of_old")
        lines.append("| " + " | ".join(str(row[key]) for key in keys) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=VARIANTS)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--seconds", type=float, default=20, help="of a cell, at least")
    parser.add_argument("--least", type=int, default=5, help="calls of each, at least")
    parser.add_argument("--output", type=pathlib.Path, help="file to add JSON lines to")
    parser.add_argument("--table", type=pathlib.Path, metavar="JSONL")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for line in options.table.read_text().splitlines()]))
        return
    if options.measure:
        measure(*options.measure, options)
        return
    rows = []
    for variant in options.variants:
        for policy in options.policies:
            command = [sys.executable, __file__, "--measure", variant, policy]
            command += ["--seconds", str(options.seconds), "--least", str(options.least)]
            command += ["--batches", *map(str, options.batches)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                for line in child.stdout or ():
                    rows.append(json.loads(line))
                    print(table(rows[-1:]).splitlines()[-1], flush=True)
                    if options.output:
                        with open(options.output, "a") as file:
                            file.write(line)
    print(table(rows))


if __name__ == "__main__":
    main()
