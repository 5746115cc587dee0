"""Starts Python functions in processes of their own: with several logical CPUs, or as workers.

`python -m tests.workers MODULE FUNCTION [ARGUMENTS]` runs one; tests call `run` and
`run_workers`, or `python` for a script, which show what was printed where a process fails.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]


def python(*words, timeout: float = 900, **variables: str) -> str:
    """What `python WORDS` prints, in a process of its own with these environment variables."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def run(module: str, function: str, *arguments, timeout: float = 900, **variables: str) -> str:
    """What a function printed in a process of its own, with these environment variables."""
    return run_workers(module, function, *arguments, count=None, timeout=timeout, **variables)[0]


def run_workers(
    module, function, *arguments, count, timeout: float = 900, **variables
) -> list[str]:
    """What a function printed in each of `count` processes that train together."""
    workers = start(module, function, *arguments, count=count, **variables)
    try:
        codes = [process.wait(timeout) for process, _ in workers]
        printed = [pathlib.Path(file.name).read_text() for _, file in workers]
    finally:
        for process, file in workers:
            process.kill()
            process.wait()
            file.close()
    assert not any(codes), "\n".join(text[-5000:] for text in printed)
    return printed


def start(module, function, *arguments, count, **variables) -> list[tuple]:
    """Processes, each with the file that it prints to; `count=None` is one on its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    command = [sys.executable, "-m", "tests.workers", module, function, *map(str, arguments)]
    workers = []
    for config in [None] if count is None else cluster(count):
        if config is not None:
            environment["TF_CONFIG"] = config
        file = tempfile.NamedTemporaryFile("w")  # noqa: SIM115  (closed in `run_workers`)
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )
        workers.append((process, file))
    return workers


def cluster(count: int) -> list[str]:
    """A `TF_CONFIG` for each of `count` workers on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(count)
    ]


def use_two_cpus() -> None:
    """Splits the processor into two devices; before TensorFlow computes anything."""
    import tensorflow as tf

    (processor,) = tf.config.list_physical_devices("CPU")
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(processor, halves)


if __name__ == "__main__":
    getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*sys.argv[3:])
