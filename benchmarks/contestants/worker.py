"""The contestant's end of benchmarks/suite.py: reads commands a line, answers each in JSON.

A contestant is a module with `load(cell)`, which returns a function `run(calls)`: it does so many
calls and returns the last answer as a NumPy array. Commands:

    {"do": "load", "cell": {...}}     builds the model, calls it once
    {"do": "round", "calls": 3}       runs, and says the seconds of a call
    {"do": "export", "cell": {...}}   writes what other contestants read

What libraries print goes to standard error, so that standard output holds answers alone.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

CLASSES = 1000
Run = Callable[[int], Any]


def serve(load: Callable[[dict], Run], export: Callable[[dict], dict] | None = None) -> None:
    """Answers commands until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    keep_to_threads(int(os.environ["OMP_NUM_THREADS"]))
    run: Run | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "load":
                run = None  # the one before leaves memory first
                gc.collect()
                run, answer = load_and_call(load, command["cell"])
            elif command["do"] == "round" and run:
                answer = time_calls(run, command["calls"])
            elif export:
                answer = export(command["cell"])
            else:
                raise ValueError(f"cannot {command['do']}")
        except Exception as error:  # each library has its own
            words = str(error).strip().splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {words[0][:300]}"}
        print(json.dumps(answer), file=answers, flush=True)


def keep_to_threads(threads: int) -> None:
    """Keeps the process to so many processors, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def load_and_call(load, cell: dict) -> tuple[Run, dict]:
    begin = time.perf_counter()
    run = load(cell)
    loaded, memory = time.perf_counter(), resident_bytes()
    answer = run(1)
    called = time.perf_counter()
    return run, {
        "load_s": round(loaded - begin, 3),
        "first_call_s": round(called - loaded, 3),
        "processor_since_start_s": round(time.process_time(), 3),
        "answer": [round(float(value), 6) for value in answer.reshape(-1)[:8]],
        "memory_loaded_mb": memory >> 20,
        "memory_mb": resident_bytes() >> 20,
        "versions": versions(),
    }


def time_calls(run: Run, calls: int) -> dict:
    begin = time.perf_counter(), time.process_time()
    run(calls)
    end = time.perf_counter(), time.process_time()
    wall, busy = ((after - before) / calls for before, after in zip(begin, end, strict=True))
    return {"wall_s": wall, "processor_s": busy}


def resident_bytes() -> int:
    """Memory of this process that is in RAM now."""
    pages = pathlib.Path("/proc/self/statm")
    if not pages.exists():
        return 0
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def versions() -> dict[str, str]:
    """Of the libraries that are loaded."""
    names = {"ai_edge_litert": "ai-edge-litert", "keras_hub": "keras-hub"}
    libraries = ["tensorflow", "keras", "keras_hub", "torch", "timm", "transformers"]
    libraries += ["onnxruntime", "openvino", "ai_edge_litert", "numpy"]
    return {
        name: importlib.metadata.version(names.get(name, name))
        for name in libraries
        if name in sys.modules
    }


def repeat(step: Callable[[], Any]) -> Run:
    """A `run` of a function that does one call."""

    def run(calls: int):
        for _ in range(calls):
            answer = step()
        return answer

    return run


def random_batch(cell: dict):
    """Pixels in [0, 255], channels last, and labels: the same for everyone."""
    import numpy as np

    rng = np.random.default_rng(0)
    shape = (cell["batch"], cell["size"], cell["size"], 3)
    images = rng.integers(0, 256, shape).astype("float32")
    return images, rng.integers(0, CLASSES, cell["batch"])


def normalized(images):
    """Pixels as our files see them after their first operation: in [-1, 1]."""
    return (images - 127.5) / 127.5
