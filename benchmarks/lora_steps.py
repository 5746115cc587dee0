"""Step times of low-rank updates beside full fine-tuning.

    python benchmarks/lora_steps.py --output docs/benchmarks/lora_steps.jsonl

Every way has a model of its own in one process; their steps run in turns, with one thread and
without XLA, and the least processor time of a step counts, which other work on the machine affects
least. `keras` is Keras's own `enable_lora` on the same layers: it adds the update to the kernel in
every step, and computes the gradient of the whole kernel.
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
from machine import describe_machine
from small_data import start_tensorflow

import keras_vit
from keras_vit.layers.dense import Dense

WAYS = {
    "full": "full fine-tuning",
    "4 qkv": "LoRA, rank 4, `qkv`",
    "16 qkv": "LoRA, rank 16, `qkv`",
    "16 all-linear": "LoRA, rank 16, `all-linear`",
    "keras": "the same with Keras's computation",
    "head": "head alone",
}


def build(way: str, options) -> keras.Model:
    """The model, compiled, with what this way trains."""
    config = dataclasses.replace(keras_vit.find_config(options.variant), classes=100)
    model = keras_vit.build_vit(dataclasses.replace(config, depth=options.depth or config.depth))
    if way == "head":
        for layer in model.layers[:-1]:
            layer.trainable = False
    elif way != "full":
        rank, targets = ("16 all-linear" if way == "keras" else way).split()
        keras_vit.models.add_lora(model, int(rank), targets)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss, jit_compile=False)
    return model


def measure(options) -> list[dict]:
    """Runs the steps of all ways in turns."""
    random = np.random.default_rng(0)
    images = random.uniform(0, 255, (options.batch, 224, 224, 3)).astype("float32")
    labels = random.integers(0, 100, options.batch)
    models = {way: build(way, options) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    ours = Dense.call
    for step in range(options.steps + 1):
        for way, model in models.items():
            if way == "keras" and step == 0:
                Dense.call = keras.layers.Dense.call  # for its trace
            begin = time.process_time()
            model.train_on_batch(images, labels)
            Dense.call = ours
            if step:  # the first one traces
                times[way].append(time.process_time() - begin)
    return [
        {
            "way": way,
            "trained": sum(int(np.prod(v.shape)) for v in model.trainable_weights),
            "processor_ms": round(1e3 * min(times[way])),
            "relative": round(min(times[way]) / min(times["full"]), 2),
        }
        for way, model in models.items()
    ]


def table(rows: list[dict]) -> list[str]:
    lines = ["| | trained parameters | processor ms a step | of full |", "|---|---|---|---|"]
    for row in rows:
        cells = (WAYS[row["way"]], f"{row['trained']:,}", row["processor_ms"], row["relative"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="vit_ti16")
    parser.add_argument("--depth", type=int, help="number of blocks; default: those of the variant")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, help="file to add JSON lines to")
    options = parser.parse_args()
    facts = {"model": options.variant, "blocks": options.depth, "batch": options.batch}
    facts |= {"steps": options.steps, **start_tensorflow(), **describe_machine()}
    rows = measure(options)
    for row in rows:
        line = json.dumps({**row, **facts})
        print(line, flush=True)
        if options.output:
            with options.output.open("a") as file:
                file.write(line + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
