r"""Measures training steps of a whole model, of low-rank updates here, and of Keras's own.

    python benchmarks/lora.py --output docs/benchmarks/lora.jsonl

Each way trains in processes of its own, in turns. Prints a JSON line for each: seconds of a step by
the clock and of the processor (least of the rounds' medians), trained parameters, megabytes of the
optimizer and of the process at its peak.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
from machine import describe_machine

WAYS = ("whole", "keras_vit", "keras")


def work(way: str, variant: str, batch: int, rank: int, steps: int) -> dict:
    """Trains some steps in this process."""
    import keras

    import keras_vit

    keras_vit.trainers.keep_buffers()
    keras.utils.set_random_seed(0)
    model = keras_vit.create_model(variant, classes=10)
    if way == "keras_vit":
        keras_vit.models.add_lora(model, rank)
    if way == "keras":
        head = {id(v) for v in model.get_layer("head").variables}
        for variable in model.variables:
            if id(variable) not in head and variable.trainable:
                variable.trainable = False
        for i in range(model.config.depth):
            layer = model.get_layer(f"block_{i}").attention.qkv
            layer.enable_lora(rank)
            layer.__class__ = keras.layers.Dense  # its `call` adds the update to the kernel
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss)
    images = np.random.default_rng(0).uniform(0, 255, (batch, *model.input_shape[1:]))
    images, labels = images.astype("float32"), np.arange(batch) % 10
    notes = []
    for _ in range(steps + 2):
        begin = time.perf_counter(), time.process_time()
        model.train_on_batch(images, labels)
        notes.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    return {
        "wall_s": statistics.median(x for x, _ in notes[2:]),
        "processor_s": statistics.median(x for _, x in notes[2:]),
        "trained": int(sum(np.prod(w.shape) for w in model.trainable_weights)),
        "optimizer_mb": sum(4 * int(np.prod(v.shape)) for v in model.optimizer.variables) / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--variant", default="vit_s16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", help="JSON lines")
    args = parser.parse_args()
    if args.work:
        print(json.dumps(work(args.work, args.variant, args.batch, args.rank, args.steps)))
        return
    notes: dict[str, list[dict]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, "--work", way, "--variant", args.variant]
            command += ["--batch", args.batch, "--rank", args.rank, "--steps", args.steps]
            done = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, check=True
            )
            notes[way].append(json.loads(done.stdout.splitlines()[-1]))
    cell = {"variant": args.variant, "batch": args.batch, "rank": args.rank}
    for way, found in notes.items():
        least = {key: min(note[key] for note in found) for key in found[0]}
        line = json.dumps(
            {"way": way, **cell, **least, "rounds": args.rounds, **describe_machine()}
        )
        print(line, flush=True)
        if args.output:
            with open(args.output, "a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
