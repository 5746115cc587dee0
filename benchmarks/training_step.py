"""What our training step costs beside plain Keras's, and what two processes gain beside one.

    python benchmarks/training_step.py overhead --output docs/benchmarks/training_step.jsonl
    python benchmarks/training_step.py replicas --output docs/benchmarks/training_step.jsonl
    python benchmarks/training_step.py processes --output docs/benchmarks/training_step.jsonl
    python benchmarks/training_step.py workers --output docs/benchmarks/training_step.jsonl
    python benchmarks/training_step.py steps --variants vit_b16 vit_l16 --batch 4

`overhead`: the same layers in `keras.Model` and in `keras_vit.Model`, on one device and without a
strategy, in one process and in turns; a round is one `fit` of some steps, timed by the wall and by
the process's own seconds. `ratio` is the median of ours over Keras's in the same round; `ratios`
show how they scatter. `replicas`: the same under `MirroredStrategy` with two CPU devices.
`processes`: images a second of one process with all threads, and of two workers of
`MultiWorkerMirroredStrategy` with half of them each, in turns, on the same global batch.
`workers`: seconds of a step of `--batch` images and one thread in each process: of one process
alone, of two without a strategy, of one replica under `MirroredStrategy`, and of two workers, which
exchange gradients in float32 and in bfloat16; `efficiency` is the step of one process over that of
the others. All call `keep_buffers`, except in the runs "memory returned".
`steps`: seconds of single steps of one process, which benchmarks/scaling.py takes. Prints JSON
lines, warm-up apart. Run it alone on a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import resource
import socket
import subprocess
import sys
import time

import numpy as np
from machine import describe_machine

CLASSES = 1000


def build(variant, plain: bool, jit_compile: bool, strategy=None, optimizer="adamw", **options):
    """A compiled model: the layers of ours, in Keras's class where `plain`."""
    import contextlib

    import keras

    import keras_vit

    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras_vit.create_model(variant, classes=CLASSES)
        if plain:
            model = keras.Model(model.input, model.output)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        rule = keras.optimizers.AdamW(1e-4) if optimizer == "adamw" else keras.optimizers.SGD(1e-4)
        model.compile(rule, loss, jit_compile=jit_compile, **options)
    return model


def batches(model, batch: int, steps: int):
    """The same random images every step, made before."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (batch, *model.input_shape[1:])).astype("float32")
    one = tf.data.Dataset.from_tensors((images, rng.integers(0, CLASSES, batch)))
    return one.cache().repeat(steps)


def timed(run) -> tuple[float, float]:
    start = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def measure_overhead(variant: str, arguments, strategy=None) -> dict:
    runs, seconds = {}, {}
    for name in ("keras", "keras_vit"):
        model = build(variant, name == "keras", arguments.xla, strategy)
        data = batches(model, arguments.batch, arguments.steps)

        def run(model=model, data=data):
            model.fit(data, verbose=0, shuffle=False)

        runs[name], seconds[name] = run, []
        run()  # warm-up: traces, compiles, fills caches
    for round_ in range(arguments.rounds):
        order = list(runs) if round_ % 2 else list(runs)[::-1]
        for name in order:
            seconds[name].append(timed(runs[name]))
    ratios = np.array(seconds["keras_vit"]) / np.array(seconds["keras"])
    medians = {name: np.median(times, axis=0) for name, times in seconds.items()}
    return {
        "what": "overhead",
        "variant": variant,
        "batch": arguments.batch,
        "steps": arguments.steps,
        "xla": arguments.xla,
        "ratio": round(float(np.median(ratios[:, 0])), 4),
        "processor_ratio": round(float(np.median(ratios[:, 1])), 4),
        "keras_images_per_second": round(
            arguments.batch * arguments.steps / medians["keras"][0], 3
        ),
        "keras_vit_images_per_second": round(
            arguments.batch * arguments.steps / medians["keras_vit"][0], 3
        ),
        "ratios": [[round(float(value), 4) for value in pair] for pair in ratios],
    }


def measure_replicas(variant: str, arguments) -> dict:
    import tensorflow as tf

    (processor,) = tf.config.list_physical_devices("CPU")
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(processor, halves)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return {**measure_overhead(variant, arguments, strategy), "what": "replicas"}


def work(variant: str, threads: int, arguments) -> None:
    """One process of another measurement: prints every step after the first.

    Of each: seconds of the wall and of the processor, and page faults.
    """
    import keras
    import tensorflow as tf

    import keras_vit

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if not arguments.returned:
        keras_vit.runtime.keep_buffers()
    strategy = None
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif arguments.mirrored:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    options = {"all_reduce_dtype": arguments.all_reduce_dtype} if strategy else {}
    model = build(variant, False, arguments.xla, strategy, arguments.optimizer, **options)
    ends: list[tuple[float, float, int]] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: ends.append(
            (
                time.perf_counter(),
                time.process_time(),
                resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
            )
        )
    )
    data = batches(model, arguments.batch, arguments.steps + 2)  # two to warm up
    model.fit(data, verbose=0, shuffle=False, callbacks=[note])
    print(json.dumps(np.diff(ends[1:], axis=0).round(4).tolist()), flush=True)


def start(variant: str, processes: int, arguments, connected=True, **changed) -> list[list[float]]:
    """What `work` prints in the first process of a run."""
    changed = {"threads": arguments.threads // processes, **changed}
    settings = {**vars(arguments), **changed}
    command = [sys.executable, __file__, arguments.what, "--work", variant]
    for name in ("batch", "steps", "optimizer", "threads", "all_reduce_dtype"):
        if settings[name] is not None:
            command += [f"--{name.replace('_', '-')}", str(settings[name])]
    for name in ("xla", "mirrored", "returned"):
        command += [f"--{name}"] * settings[name]
    workers = start_workers(command, processes, connected, stdout=subprocess.PIPE, text=True)
    printed = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit("A process failed; see above.")
    return json.loads(printed[0])


def measure_processes(variant: str, arguments) -> dict:
    seconds: dict[int, list] = {1: [], 2: []}
    for _ in range(arguments.rounds):
        for processes in seconds:
            seconds[processes] += start(variant, processes, arguments)
    speeds = {p: arguments.batch / np.median(np.array(s)[:, 0]) for p, s in seconds.items()}
    return {
        "what": "processes",
        "variant": variant,
        "global_batch": arguments.batch,
        "xla": arguments.xla,
        "one_process_images_per_second": round(speeds[1], 3),
        "two_processes_images_per_second": round(speeds[2], 3),
        "ratio": round(speeds[2] / speeds[1], 3),
        "step_seconds": {str(p): [wall for wall, *_ in s] for p, s in seconds.items()},
    }


def measure_workers(variant: str, arguments) -> dict:
    alone, both = {"threads": 1}, {"threads": 1, "batch": 2 * arguments.batch}
    runs = {
        "one process": (1, False, alone),
        "two processes": (2, False, alone),
        "one replica": (1, False, {**alone, "mirrored": True}),
        "two workers": (2, True, both),
        "two workers, bfloat16": (2, True, {**both, "all_reduce_dtype": "bfloat16"}),
        "one replica, memory returned": (1, False, {**alone, "mirrored": True, "returned": True}),
        "two workers, memory returned": (2, True, {**both, "returned": True}),
    }
    seconds: dict[str, list] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, (processes, connected, changed) in runs.items():
            seconds[name] += start(variant, processes, arguments, connected, **changed)
    medians = {name: np.median(np.array(times), axis=0) for name, times in seconds.items()}
    return {
        "what": "workers",
        "variant": variant,
        "batch_of_a_process": arguments.batch,
        "xla": arguments.xla,
        "seconds": {name: round(float(m[0]), 4) for name, m in medians.items()},
        "processor_seconds": {name: round(float(m[1]), 4) for name, m in medians.items()},
        "page_faults": {name: round(float(m[2])) for name, m in medians.items()},
        "efficiency": {
            name: round(float(medians["one process"][0] / m[0]), 3) for name, m in medians.items()
        },
        "step_seconds": {name: [wall for wall, *_ in times] for name, times in seconds.items()},
    }


def measure_steps(variant: str, arguments) -> dict:
    seconds = start(variant, 1, arguments)
    return {
        "what": "steps",
        "variant": variant,
        "batch": arguments.batch,
        "optimizer": arguments.optimizer,
        "xla": arguments.xla,
        "step_seconds": [wall for wall, *_ in seconds],
    }


def start_workers(
    command: list[str], count: int, connected: bool = True, **options
) -> list[subprocess.Popen]:
    """Starts a command `count` times on this machine; connected, as workers of one `TF_CONFIG`."""
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in free]
    for each in free:
        each.close()
    workers = []
    for index in range(count):
        environment = dict(os.environ)
        if count > 1 and connected:
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment["TF_CONFIG"] = json.dumps(task)
        workers.append(subprocess.Popen(command, env=environment, **options))
    return workers


MEASUREMENTS = {
    "overhead": measure_overhead,
    "replicas": measure_replicas,
    "processes": measure_processes,
    "workers": measure_workers,
    "steps": measure_steps,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--variants", nargs="+", default=["vit_s16"])
    parser.add_argument("--batch", type=int, default=8, help="images of a step, of all processes")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--output", help="a file that the JSON lines are added to")
    parser.add_argument("--all-reduce-dtype", help="as for `compile`, of `processes`")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help=argparse.SUPPRESS)
    for name in ("mirrored", "returned"):  # of `workers`
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.threads, arguments)
        return
    for variant in arguments.variants:
        machine = describe_machine()
        machine |= {name: importlib.metadata.version(name) for name in ("tensorflow", "keras")}
        machine["TF_ENABLE_ONEDNN_OPTS"] = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
        machine["load_before"] = round(os.getloadavg()[0], 2)
        line = json.dumps({**MEASUREMENTS[arguments.what](variant, arguments), **machine})
        print(line, flush=True)
        if arguments.output:
            with open(arguments.output, "a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
