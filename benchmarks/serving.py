"""The exported SavedModel beside `model.predict`: graph, XLA, and bfloat16.

    python benchmarks/serving.py --variant vit_b16 --batch 8 >> docs/benchmarks/serving.jsonl

Prints a JSON line each for `model.predict` of a model that was compiled, of one that never was, and
for the signature `pixels` of every kind of SavedModel: medians of the wall time and of the
processor's time of a call over rounds in which each ran once, after a warm-up, and both over those
of the compiled model's `predict`. On a machine that does other things too, the processor's time is
the one to compare. bfloat16 pays off only where the processor has units for it (AMX, AVX-512 BF16);
`bfloat16_units` says which this one has.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from machine import describe_machine

import keras_vit

KINDS = {
    "float32": {},
    "float32 xla": {"jit_compile": True},
    "bfloat16": {"precision": "bfloat16"},
}


def make_calls(variant: str, images: np.ndarray, kinds: list[str]) -> dict:
    """What is measured, by name, and how far each is from the model."""
    model = keras_vit.create_model(variant)
    head = model.get_layer("head")  # all zeros in a new model, which would hide every difference
    rng = np.random.default_rng(0)
    head.set_weights([rng.normal(0, 0.05, weight.shape) for weight in head.get_weights()])
    compiled = keras_vit.create_model(variant)
    compiled.set_weights(model.get_weights())
    compiled.compile()  # as after training: `jit_compile="auto"` chooses XLA where it is faster
    calls = {
        "predict": lambda: compiled.predict(images, batch_size=len(images), verbose=0),
        "predict, never compiled": lambda: model.predict(images, len(images), verbose=0),
    }
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            report = keras_vit.export_saved_model(
                model, folder, images=images[:1], tolerance=10.0, **KINDS[kind]
            )
            calls[f"saved_model {kind}"] = make_call(tf.saved_model.load(str(report.path)), images)
    return calls


def make_call(loaded, images: np.ndarray):
    signature = loaded.signatures["pixels"]

    def call():
        return signature(tf.constant(images))["logits"].numpy()

    call.loaded = loaded  # the variables live as long as what was loaded
    return call


def measure(calls: dict, rounds: int) -> list[dict]:
    expected = calls["predict"]()
    rows = {}
    for name, call in calls.items():
        difference = np.abs(call() - expected).max() / np.abs(expected).max()
        rows[name] = {"what": name, "difference": float(f"{difference:.1e}")}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            wall, busy = time.perf_counter(), time.process_time()
            call()
            times[name].append((time.perf_counter() - wall, time.process_time() - busy))
    base = np.median(times["predict"], axis=0)
    for name, seconds in times.items():
        median = np.median(seconds, axis=0)
        for label, value, other in zip(("wall", "processor"), median, base, strict=True):
            rows[name][f"{label}_s"] = round(value, 4)
            rows[name][f"{label}_beside_predict"] = round(value / other, 3)
    return list(rows.values())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variant", default="vit_b16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    options = parser.parse_args(arguments)

    size = keras_vit.find_config(options.variant).image_size
    shape = (options.batch, *size, 3)
    images = np.random.default_rng(0).integers(0, 256, shape).astype("float32")
    rows = measure(make_calls(options.variant, images, options.kinds), options.rounds)
    for row in rows:
        row |= {"variant": options.variant, "batch": options.batch, "rounds": options.rounds}
        row |= {"onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default")}
        row |= {"tensorflow": tf.__version__, "keras": keras.__version__, **describe_machine()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
