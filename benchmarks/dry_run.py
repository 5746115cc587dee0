"""The time that `keras-vit train --dry-run` tells, beside that of the run.

    python benchmarks/dry_run.py --images cifar10/train --output docs/benchmarks/dry_run.jsonl

Three kinds of plan: a small model from scratch, larger images, and fine-tuning the first one's
result. For each: the dry run, then the run. `factor` is the estimate over the seconds of the run
(`results.json`). Where other programs run on the machine, `processor_factor` is the fairer one:
both times are multiplied by the processor seconds that the process got in a second meanwhile. Every
call has a process of its own, as a user's.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

from machine import write_row

PLANS = {
    "small, from scratch": ["--steps", "{steps}"],
    "larger images": ["--image-size", "96", "--steps", "{steps}"],
    "fine-tune": ["--model", "{first}", "--steps", "{steps}"],
}


# The command, with a time that is not rounded to minutes.
COMMAND = """
import sys
from keras_vit.cli import dry_run, main
dry_run._duration = lambda seconds: f"{seconds:.1f} seconds"
sys.exit(main.main(["train", *sys.argv[1:]]))
"""


def call(words: list[str]) -> tuple[str, float]:
    """Calls the command; what it prints, and its processor seconds in a second."""
    start, used = time.perf_counter(), processor_seconds()
    command = [sys.executable, "-c", COMMAND, *words]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return text, (processor_seconds() - used) / (time.perf_counter() - start)


def processor_seconds() -> float:
    """Of all processes that this one has started, and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def estimate(words: list[str]) -> tuple[float, float]:
    """The seconds that the dry run tells, and its processor seconds in a second."""
    text, share = call([*words, "--dry-run"])
    return float(re.search(r"about ([\d.]+) seconds here", text).group(1)), share


def measure(name: str, flags: list[str], images: pathlib.Path, folder: pathlib.Path) -> dict:
    output = folder / name.split(",")[0].replace(" ", "-")
    words = ["--data", str(images), "--output", str(output), "--no-report", *flags]
    estimated, estimate_share = estimate(words)
    _, share = call(words)
    seconds = json.loads((output / "results.json").read_text())["seconds"]
    return {
        "plan": name,
        "flags": " ".join(flags).replace(str(folder), "RUNS"),
        "estimate_s": estimated,
        "seconds": seconds,
        "factor": round(estimated / seconds, 2),
        "processor_shares": [round(each, 3) for each in (estimate_share, share)],
        "processor_factor": round(estimated * estimate_share / (seconds * share), 2),
    }


def run_all():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=pathlib.Path, required=True, help="a folder per class")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--flags", default="", help="more, such as --batch-size 8")
    parser.add_argument("--output", type=pathlib.Path, help="JSON lines to append to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, flags in PLANS.items():
            values = {"first": f"{folder}/small", "steps": options.steps}
            flags = [*(flag.format(**values) for flag in flags), *options.flags.split()]
            row = measure(name, flags, options.images, pathlib.Path(folder))
            write_row(row, options.output)


if __name__ == "__main__":
    run_all()
