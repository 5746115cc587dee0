"""Measures images per second and the largest batch against the image size, on this device.

    python benchmarks/throughput.py --models vit_b32 vit_b16 bit_r50x1 --sizes 64 128 224 384 512

Figure 12 of https://arxiv.org/abs/2010.11929 for any device. Batches double until memory is
exhausted; then a binary search finds the largest batch to within an eighth. Each batch is measured
in a process of its own, so that only this process fails when memory is exhausted. On a CPU set
--memory-gib, so that the search stops before the machine swaps, and a small --max-batch.

Writes throughput.json, .csv and .png into the output folder, and prints a line for each model and
size. Results in the output folder are kept: an interrupted run continues, and models can be added.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import difflib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from machine import describe_machine

from keras_vit.analysis.plots import SERIES, new_figure, style_axis
from keras_vit.create import create_model

MODELS = ["vit_b32", "vit_b16", "r50_vit_b16", "bit_r50x1", "keras.applications.EfficientNetB0"]
_APPLICATIONS = "keras.applications."
_MEMORY_ERRORS = (
    "resourceexhausted",
    "resource_exhausted",
    "out of memory",
    "bad_alloc",
    "memoryerror",
)
_CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The speed of one model at one image size on this device.

    Args:
        model: Name of the model.
        image_size: Side of the image in pixels.
        images_per_second: At the fastest batch size; `None` if a single image did not fit.
        best_batch: The batch size of that speed.
        largest_batch: The largest batch that fitted; 0 if none did.
        limited_by: `"memory"`, or `"max_batch"` if the search stopped before memory was exhausted.
        probes: Images per second of every batch size tried, `None` where memory was exhausted.
    """

    model: str
    image_size: int
    images_per_second: float | None
    best_batch: int
    largest_batch: int
    limited_by: str
    probes: dict[int, float | None]


def build_model(
    name: str, image_size: int | tuple[int, int] | None = None, classes: int = 1000
) -> keras.Model:
    """A model with random weights by its name, ours or one of `keras.applications`.

    Args:
        name: A name that `create_model` knows, such as `"vit_b16"`, or a model of
            `keras.applications`, such as `"keras.applications.EfficientNetB7"`.
        image_size: Pixels along (height, width), or one number for both; `None` takes the default
            size of the model.
        classes: Outputs of the head.
    """
    sides = (image_size, image_size) if isinstance(image_size, int) else image_size
    shape = None if sides is None else (*sides, 3)
    if not name.startswith(_APPLICATIONS):
        return create_model(name, input_shape=shape, classes=classes)
    title = name.removeprefix(_APPLICATIONS)
    titles = [x for x in dir(keras.applications) if x[0].isupper()]
    if title not in titles:
        nearest = difflib.get_close_matches(title, titles, n=3)
        advice = f"Did you mean {', '.join(nearest)}? " if nearest else ""
        raise ValueError(f"keras.applications has no {title!r}. {advice}All: {', '.join(titles)}.")
    return getattr(keras.applications, title)(weights=None, input_shape=shape, classes=classes)


def measure_batch(request: dict[str, Any]) -> dict[str, Any]:
    """Measures one model at one image size and batch size.

    Args:
        request: `model`, `image_size`, `batch_size`, `training`, `precision` (a Keras dtype
            policy), `seconds` to measure, and `memory_limit`: bytes of main memory in addition to
            those that the process has when the model is built, or `None`.

    Returns:
        `images_per_second`, and the number of `steps` measured.
    """
    keras.config.set_dtype_policy(request["precision"])
    model = build_model(request["model"], request["image_size"])
    if request["memory_limit"]:
        limit_memory(request["memory_limit"])
    batch_size = request["batch_size"]
    images = np.zeros((batch_size, *model.input_shape[1:]), "float32")
    step = _training_step(model, images) if request["training"] else _inference(model, images)
    step()  # compiles
    step()
    times: list[float] = []
    while sum(times) < request["seconds"] or len(times) < 3:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return {"images_per_second": batch_size / float(np.median(times)), "steps": len(times)}


def _inference(model: keras.Model, images: np.ndarray) -> Callable[[], Any]:
    x = keras.ops.convert_to_tensor(images)  # on the device once
    return lambda: model.predict_on_batch(x)  # waits for its result


def _training_step(model: keras.Model, images: np.ndarray) -> Callable[[], Any]:
    last = model.layers[-1]
    # keras.applications end in probabilities, our models in logits.
    from_logits = getattr(last, "activation", None) is keras.activations.linear
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile(optimizer=keras.optimizers.Adam(1e-4), loss=loss)
    x, labels = keras.ops.convert_to_tensor(images), np.zeros(len(images), "int32")
    return lambda: model.train_on_batch(x, labels)


def limit_memory(extra_bytes: int) -> None:
    """Limits the address space of this process to its present size and `extra_bytes` (Linux)."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def is_memory_error(text: str) -> bool:
    """Whether an error message says that memory is exhausted."""
    return any(words in text.lower() for words in _MEMORY_ERRORS)


def answer(request: str) -> None:
    """Prints the result of `measure_batch` as JSON, or that memory was exhausted."""
    try:
        result = measure_batch(json.loads(request))
    except Exception as error:  # each framework raises a type of its own
        if not is_memory_error(f"{type(error).__name__}: {error}"):
            raise
        result = {"out_of_memory": True}
    print(json.dumps(result), flush=True)


def run_probe(request: dict[str, Any]) -> dict[str, Any] | None:
    """Runs `measure_batch` in a new process.

    Returns:
        Its result, or `None` if memory was exhausted.

    Raises:
        RuntimeError: If it fails for another reason; the message ends with its last output.
    """
    command = [sys.executable, __file__, "--probe", json.dumps(request)]
    environment = {**os.environ, "KERAS_BACKEND": keras.config.backend()}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if child.returncode == 0:
        result = json.loads(child.stdout.splitlines()[-1])
        return None if result.get("out_of_memory") else result
    # The OOM killer leaves no message, and under a limit some allocators crash without one.
    signals = _CRASHES if request.get("memory_limit") else (signal.SIGKILL,)
    if -child.returncode in signals or is_memory_error(child.stderr):
        return None
    last = "\n".join(child.stderr.splitlines()[-12:])
    raise RuntimeError(
        f"The probe of {request} failed with status {child.returncode}, and not of memory:\n{last}"
    )


def search_batches(probe: Callable[[int], float | None], max_batch: int) -> dict[int, float | None]:
    """Finds the largest batch that fits: doubles the batch size, then searches binarily.

    Args:
        probe: Returns images per second at a batch size, or `None` if memory is exhausted.
        max_batch: The largest batch size to try.

    Returns:
        The result of every batch size, in the order of trying.
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


def measure(model: str, image_size: int, options: argparse.Namespace) -> Measurement:
    """Measures one model at one image size over batch sizes."""
    request = {
        "model": model,
        "image_size": image_size,
        "training": options.training,
        "precision": options.precision,
        "seconds": options.seconds,
        "memory_limit": int(options.memory_gib * 2**30) if options.memory_gib else None,
    }

    def probe(batch_size: int) -> float | None:
        result = run_probe({**request, "batch_size": batch_size})
        return None if result is None else float(result["images_per_second"])

    probes = search_batches(probe, options.max_batch)
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


def write(measurements: Sequence[Measurement], path: pathlib.Path, conditions: dict) -> None:
    """Writes the measurements as `.json`, with their conditions, and as `.csv`."""
    rows = [dataclasses.asdict(measurement) for measurement in measurements]
    machine = {
        **describe_machine(),
        "keras": keras.__version__,
        "backend": keras.config.backend(),
        "devices": [str(x) for x in keras.distribution.list_devices()],
    }
    content = {**machine, **conditions, "measurements": rows}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    fields = [f.name for f in dataclasses.fields(Measurement) if f.name != "probes"]
    with open(path.with_suffix(".csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def read(path: pathlib.Path, conditions: dict) -> list[Measurement]:
    """Earlier measurements, which must have been made under the same conditions."""
    if not path.exists():
        return []
    before = json.loads(path.read_text(encoding="utf-8"))
    if conditions != {name: before[name] for name in conditions}:
        raise SystemExit(f"{path} was measured with other settings. Choose another --output.")
    return [
        Measurement(**{**row, "probes": {int(b): x for b, x in row["probes"].items()}})
        for row in before["measurements"]
    ]


def plot_throughput(measurements: Sequence[Measurement]) -> Any:
    """Plots images per second and the largest batch against the image size."""
    figure = new_figure(9.5, 3.8)
    left, right = figure.subplots(1, 2)
    for index, model in enumerate(dict.fromkeys(m.model for m in measurements)):
        rows = sorted((m for m in measurements if m.model == model), key=lambda m: m.image_size)
        style = {"color": SERIES[index % 6], "marker": "osD^v"[index // 6 % 5], "markersize": 4}
        sides = [m.image_size for m in rows]
        left.plot(sides, [m.images_per_second or np.nan for m in rows], label=model, **style)
        right.plot(sides, [m.largest_batch or np.nan for m in rows], **style)
    ends = [m.largest_batch for m in measurements if m.limited_by == "max_batch"]
    batches = f"largest batch (images{f'; search ended at {max(ends)}' if ends else ''})"
    for axis, title in ((left, "images a second"), (right, batches)):
        style_axis(axis, "side of the image (pixels)", title)
        axis.set_yscale("log")
        axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
        axis.set_xticks(sorted({m.image_size for m in measurements}))
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def show(measurement: Measurement) -> None:
    """Prints a line about one measurement."""
    m = measurement
    speed = "does not fit" if m.images_per_second is None else f"{m.images_per_second:9.1f}"
    print(
        f"{m.model:36} {m.image_size:5} px {speed} images/s at batch {m.best_batch}, "
        f"largest batch {m.largest_batch} (limited by {m.limited_by})",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> list[Measurement]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 128, 224, 384, 512])
    parser.add_argument("--training", action="store_true", help="training steps, not inference")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--max-batch", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=1.0, help="measured at each batch")
    parser.add_argument("--memory-gib", type=float, help="main memory for each probe")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("throughput"))
    parser.add_argument("--probe", help=argparse.SUPPRESS)  # one measurement, as JSON
    options = parser.parse_args(arguments)
    if options.probe:
        answer(options.probe)
        return []
    options.output.mkdir(parents=True, exist_ok=True)
    names = ("training", "precision", "max_batch", "memory_gib")
    conditions = {name: getattr(options, name) for name in names}
    path = options.output / "throughput.json"
    measurements = read(path, conditions)
    done = {(m.model, m.image_size) for m in measurements}
    for model, size in itertools.product(options.models, options.sizes):
        if (model, size) not in done:
            measurements.append(measure(model, size, options))
            show(measurements[-1])
            write(measurements, path, conditions)
    write(measurements, path, conditions)
    plot_throughput(measurements).savefig(path.with_suffix(".png"), dpi=130)
    return measurements


if __name__ == "__main__":
    main()
