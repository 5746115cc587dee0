"""Memory and time that a SavedModel in bfloat16 takes, with weights as variables and as constants.

    python benchmarks/saved_model_memory.py vit_b16 --output saved_model_memory.jsonl

For each kind of weights one process exports and checks the model, one loads the version in a
session, as servers do, and one with `tf.saved_model.load`; both compute one image. Memory is that
of the process less what it had after its imports. Prints and appends one JSON line a process.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from machine import write_row

TASKS = ("export", "session", "python")


def megabytes() -> int:
    """Memory of this process."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def run(task: str, folder: str, variant: str, constant: bool) -> dict:
    """One task in this process."""
    import numpy as np
    import tensorflow as tf

    import keras_vit

    before, start, calls = megabytes(), time.perf_counter(), []
    if task == "export":
        model = keras_vit.create_model(variant, weights=None)
        keras_vit.export_saved_model(
            model, folder, version=1, precision="bfloat16", constant_weights=constant
        )
    else:
        image = np.zeros((1, 224, 224, 3), "float32")
        call = (open_session if task == "session" else open_python)(f"{folder}/1", tf)
        calls = [time.perf_counter() - start]
        call(image)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {
        **({"load_s": round(calls[0], 1)} if calls else {}),
        "seconds": round(seconds, 1),
        "mb": megabytes() - before,
        "peak_mb": peak - before,
    }


def open_session(path: str, tf):
    """The function of pixels of a version that is loaded as TensorFlow Serving does."""
    graph = tf.Graph()
    with graph.as_default():
        session = tf.compat.v1.Session()
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
    signature = meta.signature_def["pixels"]
    (pixels,), output = signature.inputs.values(), signature.outputs["logits"].name
    return lambda image: session.run(output, {pixels.name: image})


def open_python(path: str, tf):
    loaded = tf.saved_model.load(path)
    return lambda image: loaded.signatures["pixels"](pixels=tf.constant(image))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", nargs="?", default="vit_b16")
    parser.add_argument("--output", type=pathlib.Path, help="file to add JSON lines to")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        task, folder, kind = options.run
        print(json.dumps(run(task, folder, options.variant, kind == "constants")))
        return
    for kind in ("variables", "constants"):
        with tempfile.TemporaryDirectory() as folder:
            for task in TASKS:
                command = [sys.executable, __file__, options.variant, "--run", task, folder, kind]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                row = {"variant": options.variant, "weights": kind, "task": task}
                write_row({**row, **json.loads(done.stdout.splitlines()[-1])}, options.output)


if __name__ == "__main__":
    main()
