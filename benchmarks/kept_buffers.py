r"""Measures `keras_vit.runtime.keep_buffers`: steps with and without kept buffers.

    python benchmarks/kept_buffers.py --output docs/benchmarks/kept_buffers.jsonl
    TF_ENABLE_ONEDNN_OPTS=0 python benchmarks/kept_buffers.py --variant vit_ti16 --depth 1 \
        --tasks infer --batches 1024 --steps 1 --rounds 1    what a large `predict` leaves behind

Trains (`fit`, AdamW) and predicts in new processes, in turns: with the settings of `keep_buffers`,
and with those of TensorFlow and glibc. Prints a JSON line for each task and batch: medians over the
rounds of the wall-clock and processor seconds of a step, its page faults, the peak memory of the
process, and the memory that it keeps after the steps, beyond what it had before the first.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

from contestants import keras_models
from machine import describe_machine

# A setting of glibc's memory, also one of no effect, keeps `keep_buffers` from changing glibc.
RETURNED = {"TF_CPU_ALLOCATOR_USE_BFC": "false", "GLIBC_TUNABLES": "glibc.malloc.check=0"}
INTERFACES = {"train": "fit", "infer": "predict"}


def make_step(task: str, variant: str, batch: int, depth: int | None):
    """The suite's `fit` or `predict`, with random weights."""
    replace = {"depth": depth} if depth else {}  # blocks take their memory one after the other
    cell = {"who": "keras_vit", "task": task, "interface": INTERFACES[task], "replace": replace}
    cell |= {"variant": variant, "size": 224, "batch": batch, "precision": "float32"}
    run = keras_models.load({**cell, "threads": os.cpu_count()})
    return lambda: run(1)


def work(task: str, variant: str, batch: int, depth: int | None, steps: int) -> dict:
    """Medians of some steps of this process."""
    step = make_step(task, variant, batch, depth)  # calls `keep_buffers`: no effect where it is set
    before = resident_mb()
    step(), step()
    notes = []
    for _ in range(steps):
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        begin = time.perf_counter(), time.process_time()
        step()
        notes.append(
            {
                "wall_s": time.perf_counter() - begin[0],
                "processor_s": time.process_time() - begin[1],
                "pages": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages,
            }
        )
    medians = {key: statistics.median(note[key] for note in notes) for key in notes[0]}
    gc.collect()
    kept = {"kept_mb": resident_mb() - before}
    return {
        **medians,
        **kept,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def resident_mb() -> int:
    """Memory of this process now, in MiB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**20


def measure(task: str, variant: str, batch: int, args) -> dict:
    rounds: dict[str, list[dict]] = {"kept": [], "returned": []}
    command = [sys.executable, __file__, "--work", task, "--variant", variant]
    command += ["--batches", str(batch), "--steps", str(args.steps)]
    command += ["--depth", str(args.depth)] if args.depth else []
    for _ in range(args.rounds):
        for name, notes in rounds.items():
            setting = RETURNED if name == "returned" else {}
            environment = {**os.environ, **setting}
            shown = subprocess.run(
                command, env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            notes.append(json.loads(shown.stdout.splitlines()[-1]))
    medians = {
        name: {key: round(statistics.median(n[key] for n in notes), 4) for key in notes[0]}
        for name, notes in rounds.items()
    }
    speedup = medians["returned"]["wall_s"] / medians["kept"]["wall_s"]
    line = {"task": task, "variant": variant, "batch": batch, "speedup": round(speedup, 3)}
    line |= {"depth": args.depth} if args.depth else {}
    return {**line, **medians, "steps": args.steps, "rounds": args.rounds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variant", default="vit_s16")
    parser.add_argument("--depth", type=int, help="blocks of the model, if others")
    parser.add_argument("--tasks", nargs="+", default=list(INTERFACES), choices=INTERFACES)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind")
    parser.add_argument("--output", help="a file that the JSON lines are added to")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(work(args.work, args.variant, args.batches[0], args.depth, args.steps)))
        return
    for task in args.tasks:
        for batch in args.batches:
            line = json.dumps({**measure(task, args.variant, batch, args), **describe_machine()})
            print(line, flush=True)
            if args.output:
                with open(args.output, "a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
