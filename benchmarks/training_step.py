"""Seconds of a training step with and without `keep_buffers`, in one process and in two.

    python benchmarks/training_step.py --output docs/benchmarks/training_step.jsonl

Each process has one thread and trains on `--batch` images a step: one process alone, two without
a strategy, one replica of `MirroredStrategy`, and two workers on loopback, which exchange gradients
in float32 and in bfloat16. All call `keep_buffers`, except in the runs "memory returned".
`efficiency` is the step of one process over that of the others. Prints a JSON line, warm-up apart.
Run it alone on a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time

import numpy as np
from machine import write_row

CLASSES = 1000
# Number of processes, whether they are workers of one strategy, and arguments of `work`.
RUNS: dict[str, tuple[int, bool, list[str]]] = {
    "one process": (1, False, []),
    "two processes": (2, False, []),
    "one replica": (1, False, ["--mirrored"]),
    "two workers": (2, True, []),
    "two workers, bfloat16": (2, True, ["--all-reduce-dtype", "bfloat16"]),
    "one replica, memory returned": (1, False, ["--mirrored", "--returned"]),
    "two workers, memory returned": (2, True, ["--returned"]),
}


def work(options: argparse.Namespace) -> None:
    """One process: prints seconds, processor seconds and page faults of every step."""
    import keras
    import tensorflow as tf

    import keras_vit

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if not options.returned:
        keras_vit.runtime.keep_buffers()
    strategy, batch = None, options.batch
    if "TF_CONFIG" in os.environ:
        strategy, batch = tf.distribute.MultiWorkerMirroredStrategy(), 2 * batch
    elif options.mirrored:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    reduced = {"all_reduce_dtype": options.all_reduce_dtype} if strategy else {}
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras_vit.create_model(options.variant, classes=CLASSES)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=options.xla, **reduced)
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (batch, *model.input_shape[1:])).astype("float32")
    data = tf.data.Dataset.from_tensors((images, rng.integers(0, CLASSES, batch)))
    ends: list[tuple[float, float, int]] = []

    def note(step, logs):
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        ends.append((time.perf_counter(), time.process_time(), faults))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    data = data.cache().repeat(options.steps + 2)  # two to warm up
    model.fit(data, verbose=0, shuffle=False, callbacks=[callback])
    print(json.dumps(np.diff(ends[1:], axis=0).round(4).tolist()), flush=True)


def start(words: list[str], count: int, connected: bool) -> list[list[float]]:
    """What `work` prints in the first of so many processes; connected, as workers of a cluster."""
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in free]
    for each in free:
        each.close()
    workers = []
    for index in range(count):
        environment = dict(os.environ)
        if connected:
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment["TF_CONFIG"] = json.dumps(task)
        command = [sys.executable, __file__, "--work", *words]
        worker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        workers.append(worker)
    printed = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit("A process failed; see above.")
    return json.loads(printed[0])


def measure(options: argparse.Namespace) -> dict:
    """A row with the median of every run."""
    words = ["--variant", options.variant, "--batch", options.batch, "--steps", options.steps]
    words += ["--xla"] * options.xla
    seconds: dict[str, list] = {name: [] for name in RUNS}
    for _ in range(options.rounds):
        for name, (count, connected, more) in RUNS.items():
            seconds[name] += start([*map(str, words), *more], count, connected)
    medians = {name: np.median(np.array(times), axis=0) for name, times in seconds.items()}
    whole = medians["one process"][0]
    return {
        "what": "workers",
        "variant": options.variant,
        "batch_of_a_process": options.batch,
        "xla": options.xla,
        "seconds": {name: round(float(m[0]), 4) for name, m in medians.items()},
        "processor_seconds": {name: round(float(m[1]), 4) for name, m in medians.items()},
        "page_faults": {name: round(float(m[2])) for name, m in medians.items()},
        "efficiency": {name: round(float(whole / m[0]), 3) for name, m in medians.items()},
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variant", default="vit_ti16")
    parser.add_argument("--batch", type=int, default=8, help="images of a process")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of a round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, help="a file that the row is added to")
    parser.add_argument("--all-reduce-dtype", help=argparse.SUPPRESS)
    for name in ("mirrored", "returned", "work"):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
    else:
        write_row(measure(options), options.output)


if __name__ == "__main__":
    main()
