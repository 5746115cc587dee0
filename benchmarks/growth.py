"""How time and memory of our models grow with the image, the depth and the width.

    python benchmarks/growth.py measure --output docs/benchmarks/growth.jsonl
    python benchmarks/growth.py show docs/benchmarks/growth.jsonl --plot docs/pictures/growth.png

Every point is a process of its own that builds a small ViT, runs it once on one image and one
thread (a call compiled by XLA, a call of the graph without XLA, a step of `fit`), and then measures
a few more: seconds of the processor for a call, and how far memory rises in one (in training, above
the model as it was built, with the optimizer's state and compiled code). `show` prints the
exponents: slopes of straight lines through the logarithms, over all points and between the last
two, each beside that of what the model must do, the multiply-accumulates and the numbers kept of
`keras_vit.evaluate.count_stages`. An exponent well above the expected one would be work that
nobody asked for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import sys

import numpy as np
from contestants.process import Worker
from machine import describe_machine

BASE = {"image_size": 224, "depth": 4, "width": 192}
AXES = {
    "image_size": [128, 256, 384, 512, 768, 1024],
    "depth": [2, 4, 8, 16],
    "width": [128, 256, 512, 1024],
}
INTERFACES = {"infer": "call_xla", "infer graph": "call", "train": "fit"}
HEAD_DIM = 64
PATCH_SIZE = 16


def make_config(point: dict):
    """The ViT of a point: heads of 64 channels, patches of 16 pixels."""
    import keras_vit

    return keras_vit.replace_fields(
        keras_vit.find_config("vit_ti16"),
        classes=1000,
        image_size=(point["image_size"],) * 2,
        depth=point["depth"],
        width=point["width"],
        num_heads=point["width"] // HEAD_DIM,
        mlp_dim=4 * point["width"],
    )


def count(point: dict) -> dict:
    """What the model must compute, and keep, for one image."""
    import keras_vit

    config = make_config(point)
    stages = keras_vit.evaluate.count_stages(config)
    if point["task"] == "train":
        memory = keras_vit.evaluate.training_memory(config, batch_size=1)
        return {
            "macs": keras_vit.evaluate.count_training_macs(config),
            "expected_bytes": memory.total,
        }
    # Inference keeps the activations of one stage at a time.
    largest = max(stage.activations for stage in stages)
    return {"macs": keras_vit.evaluate.count_macs(config), "expected_bytes": 4 * largest}


def measure(point: dict, options) -> dict:
    """One point, in a process of its own."""
    config = {key: point[key] for key in BASE}
    cell = {
        "task": "train" if point["task"] == "train" else "infer",
        "who": "keras_vit",
        "interface": INTERFACES[point["task"]],
        "variant": "vit_ti16",
        "size": point["image_size"],
        "precision": "float32",
        "batch": 1,
        "threads": options.threads,
        "replace": {
            "depth": config["depth"],
            "width": config["width"],
            "num_heads": config["width"] // HEAD_DIM,
            "mlp_dim": 4 * config["width"],
        },
    }
    options.log.parent.mkdir(parents=True, exist_ok=True)
    module = "contestants.keras_models"
    worker = Worker(sys.executable, module, options.threads, options.timeout, options.log)
    try:
        loaded = worker.ask(do="load", cell=cell)
        rounds = [worker.ask(do="round", calls=1) for _ in range(options.rounds)]
        memory = worker.ask(do="memory")
    finally:
        worker.close()
    for answer in (loaded, memory, *rounds):
        if "error" in answer:
            return answer
    # TensorFlow keeps what a training step has used for the next one.
    rest = loaded["memory_loaded_mb"] if point["task"] == "train" else memory["rest_mb"]
    return {
        "processor_s": float(f"{statistics.median(r['processor_s'] for r in rounds):.4g}"),
        "wall_s": float(f"{statistics.median(r['wall_s'] for r in rounds):.4g}"),
        "memory_mb": round(memory["peak_mb"] - rest, 2),
        "versions": loaded["versions"],
    }


def exponents(rows: list[dict], axis: str, measured: str, expected: str) -> dict[str, float]:
    """Slopes over all points and between the last two, of what was measured and expected."""
    x = np.log([row[axis] for row in rows])
    slopes = {}
    for name, key in (("measured", measured), ("expected", expected)):
        y = np.log([max(row[key], 1e-9) for row in rows])
        slopes[name] = float(np.polyfit(x, y, 1)[0])
        slopes[f"{name}_last"] = float((y[-1] - y[-2]) / (x[-1] - x[-2]))
    return slopes


def series(rows: list[dict]):
    """Rows of each task and axis in order, of what did not fail."""
    for task, axis in itertools.product(INTERFACES, AXES):
        chosen = [r for r in rows if (r["task"], r["axis"]) == (task, axis) and "error" not in r]
        if len(chosen) > 1:
            yield task, axis, sorted(chosen, key=lambda row: row[axis])


def table(rows: list[dict]) -> list[str]:
    lines = [
        "| what | against | from | to | seconds' exponent | of the products | at the end "
        "| of the products | memory's exponent at the end | of the numbers kept |",
        "|---" * 10 + "|",
    ]
    for task, axis, chosen in series(rows):
        seconds = exponents(chosen, axis, "processor_s", "macs")
        memory = exponents(chosen, axis, "memory_mb", "expected_bytes")
        lines.append(
            f"| {task} | {axis.replace('_', ' ')} | {chosen[0][axis]} | {chosen[-1][axis]} "
            f"| {seconds['measured']:.2f} | {seconds['expected']:.2f} "
            f"| {seconds['measured_last']:.2f} | {seconds['expected_last']:.2f} "
            f"| {memory['measured_last']:.2f} | {memory['expected_last']:.2f} |"
        )
    return lines


def plot(rows: list[dict], path: pathlib.Path) -> None:
    """Seconds and memory against each axis; dashed what is expected, through the last point."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), sharey="row", layout="constrained")
    keys = (("processor_s", "macs", "seconds"), ("memory_mb", "expected_bytes", "MB above rest"))
    for task, axis, chosen in series(rows):
        color = {"infer": "tab:blue", "infer graph": "tab:green", "train": "tab:orange"}[task]
        x = [row[axis] for row in chosen]
        for line, (measured, expected, label) in enumerate(keys):
            panel = axes[line, list(AXES).index(axis)]
            y, ideal = (np.array([row[key] for row in chosen]) for key in (measured, expected))
            panel.loglog(x, y, "o-", color=color, label=task)
            panel.loglog(x, ideal * y[-1] / ideal[-1], "--", color=color)
            panel.set(xlabel=axis.replace("_", " "), ylabel=label)
            panel.set_xticks(AXES[axis], [str(value) for value in AXES[axis]])
            panel.minorticks_off()
            panel.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--axes", nargs="+", default=list(AXES), choices=AXES)
    measuring.add_argument("--tasks", nargs="+", default=list(INTERFACES), choices=INTERFACES)
    measuring.add_argument("--threads", type=int, default=1)
    measuring.add_argument("--rounds", type=int, default=3)
    measuring.add_argument("--timeout", type=float, default=600)
    measuring.add_argument("--log", type=pathlib.Path, default=pathlib.Path("runs/growth.log"))
    measuring.add_argument("--output", type=pathlib.Path, required=True)
    showing = commands.add_parser("show")
    showing.add_argument("file", type=pathlib.Path)
    showing.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "show":
        rows = [json.loads(line) for line in options.file.read_text().splitlines()]
        print("\n".join(table(rows)))
        if options.plot:
            plot(rows, options.plot)
        return
    for task, axis in itertools.product(options.tasks, options.axes):
        for value in AXES[axis]:
            point = {"task": task, "axis": axis, **BASE, axis: value}
            row = {**point, **count(point), **measure(point, options), **describe_machine()}
            with open(options.output, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(task, axis, value, row.get("error") or row["processor_s"], flush=True)


if __name__ == "__main__":
    main()
