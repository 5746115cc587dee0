"""Speed and largest batch against the size of images: the paper's Figure 12 for any device."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from keras_vit.evaluate.probe import ran_out_of_memory

Probe = Callable[[int], float | None]
_CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one model does with images of one size on this device.

    Args:
        model: Name of the model.
        image_size: Side of the image in pixels.
        images_per_second: At the best of the batches tried; `None` where not one image fitted.
        best_batch: The batch of that speed, in images.
        largest_batch: Images of the largest batch that fitted; 0 where none did.
        limited_by: `"memory"`, or `"max_batch"` where the search stopped before memory did.
        probes: Images a second of every batch tried, `None` where memory did not suffice.
    """

    model: str
    image_size: int
    images_per_second: float | None
    best_batch: int
    largest_batch: int
    limited_by: str
    probes: dict[int, float | None]


def measure_throughput(
    models: Iterable[str],
    image_sizes: Iterable[int],
    training: bool = False,
    precision: str = "float32",
    max_batch: int = 1024,
    seconds: float = 1.0,
    memory_limit: int | None = None,
    report: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Measures models over image sizes, each probe in a process of its own.

    Figure 12 of https://arxiv.org/abs/2010.11929. Batches double until memory does not suffice;
    then the largest that fits is searched to an eighth. A probe that runs out of memory, however
    rudely, ends its own process only.

    Args:
        models: Names that `build_contestant` knows.
        image_sizes: Sides of square images in pixels.
        training: Whether to measure steps of training with Adam in place of inference.
        precision: A Keras dtype policy, such as `"mixed_bfloat16"`.
        max_batch: Where the search stops.
        seconds: How long each batch is measured, after compiling.
        memory_limit: Bytes of main memory for images and activations, on a CPU, where running out
            would take the machine along; `None` for no limit.
        report: Called with each `Measurement` as it is done.

    Returns:
        A list of `Measurement`, models first.

    Raises:
        ValueError: If a number is out of its range.
        RuntimeError: If a probe fails of something else than memory.
    """
    if max_batch < 1 or seconds <= 0:
        raise ValueError(
            "`max_batch` must be 1 or more and `seconds` above 0. Received: "
            f"max_batch={max_batch}, seconds={seconds}."
        )
    sizes = list(image_sizes)
    measurements = []
    for model in models:
        for image_size in sizes:
            request = {
                "model": model,
                "image_size": image_size,
                "training": training,
                "precision": precision,
                "seconds": seconds,
                "memory_limit": memory_limit,
            }
            probes = search_batches(_prober(request), max_batch)
            measurements.append(_summarize(model, image_size, probes))
            if report is not None:
                report(measurements[-1])
    return measurements


def search_batches(probe: Probe, max_batch: int) -> dict[int, float | None]:
    """Tries batches of 1, 2, 4 and on, then halves the gap to the first that did not fit.

    Args:
        probe: Images a second of a batch, or `None` where memory does not suffice.
        max_batch: The largest batch to try.

    Returns:
        What was tried, in the order of trying.
    """
    probes: dict[int, float | None] = {}
    batch = 1
    while batch <= max_batch:
        probes[batch] = probe(batch)
        if probes[batch] is None:
            break
        if batch == max_batch:
            return probes
        batch = min(2 * batch, max_batch)
    fits, fails = _largest(probes), batch
    while fits and fails - fits > max(1, fits // 8):
        batch = (fits + fails) // 2
        probes[batch] = probe(batch)
        fits, fails = (batch, fails) if probes[batch] is not None else (fits, batch)
    return probes


def _largest(probes: dict[int, float | None]) -> int:
    return max((batch for batch, speed in probes.items() if speed is not None), default=0)


def _summarize(model: str, image_size: int, probes: dict[int, float | None]) -> Measurement:
    speeds = {batch: speed for batch, speed in probes.items() if speed is not None}
    best = max(speeds, key=lambda batch: speeds[batch], default=0)
    return Measurement(
        model=model,
        image_size=image_size,
        images_per_second=speeds.get(best),
        best_batch=best,
        largest_batch=_largest(probes),
        limited_by="memory" if None in probes.values() else "max_batch",
        probes=probes,
    )


def _prober(request: dict[str, Any]) -> Probe:
    def probe(batch_size: int) -> float | None:
        result = run_probe({**request, "batch_size": batch_size})
        return None if result is None else float(result["images_per_second"])

    return probe


def run_probe(request: dict[str, Any]) -> dict[str, Any] | None:
    """Runs one measurement in a new process.

    Args:
        request: What `keras_vit.evaluate.probe.measure` takes.

    Returns:
        Its result, or `None` where memory did not suffice.

    Raises:
        RuntimeError: If it fails of something else; the message ends with its last words.
    """
    program = "import sys; from keras_vit.evaluate.probe import main; main(sys.argv[1])"
    command = [sys.executable, "-c", program, json.dumps(request)]
    environment = {**os.environ, "KERAS_BACKEND": keras.config.backend()}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if child.returncode == 0:
        result = json.loads(child.stdout.splitlines()[-1])
        return None if result.get("out_of_memory") else result
    # The system's killer leaves no words, and under a limit some allocators crash without any.
    signals = _CRASHES if request.get("memory_limit") else (signal.SIGKILL,)
    if -child.returncode in signals or ran_out_of_memory(child.stderr):
        return None
    last = "\n".join(child.stderr.splitlines()[-12:])
    raise RuntimeError(
        f"The probe of {request} failed with status {child.returncode}, and not of memory:\n{last}"
    )


def write_measurements(
    measurements: Sequence[Measurement], path: str | os.PathLike, **conditions: Any
) -> None:
    """Writes measurements as `.json`, with the conditions they were made under, or as `.csv`.

    Args:
        measurements: What `measure_throughput` returns.
        path: The file; its ending chooses the format.
        **conditions: What else the JSON file shall hold, such as the precision.

    Raises:
        ValueError: If the ending is another.
    """
    path = pathlib.Path(path)
    rows = [dataclasses.asdict(measurement) for measurement in measurements]
    if path.suffix == ".json":
        content = {**describe_machine(), **conditions, "measurements": rows}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    elif path.suffix == ".csv":
        fields = [f.name for f in dataclasses.fields(Measurement) if f.name != "probes"]
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fields, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    else:
        raise ValueError(f"The file must end in .json or .csv. Received: {path.name!r}.")


def read_measurements(path: str | os.PathLike) -> list[Measurement]:
    """Measurements from the `.json` that `write_measurements` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is another kind of file.
    """
    try:
        rows = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["measurements"]
        return [
            Measurement(**{**row, "probes": {int(b): x for b, x in row["probes"].items()}})
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{os.fspath(path)} holds no measurements ({error!r}). Pass the .json that "
            "`write_measurements` wrote."
        ) from error


def describe_machine() -> dict[str, Any]:
    """Versions, backend and processor, for beside a number that was measured."""
    return {
        "keras": keras.__version__,
        "backend": keras.config.backend(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "devices": [str(x) for x in keras.distribution.list_devices()],
    }


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
