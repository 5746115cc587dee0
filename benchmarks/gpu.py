"""Are our models right on this accelerator, and how fast beside timm?

    python benchmarks/gpu.py --output gpu.jsonl            everything, on the accelerator
    python benchmarks/gpu.py --table docs/benchmarks/gpu_h100.jsonl
    python benchmarks/gpu.py --only check train --variants vit_s16 vit_b16 --seconds 3
    JAX_PLATFORMS=cpu python benchmarks/gpu.py --small     the whole of it in small, to try it

Runs on the JAX backend, so it needs no TensorFlow. Every measurement is a process of its own
(gpu_contestants.py): first `check` compares logits and gradients in each precision with float32 on
the processor; then `train` goes through `fit` on a batch that
lies on the device, and `infer` through a compiled call. Contestants take turns at each batch size,
and each is reported at its best. Utilization is 2 operations a product, three times in training,
over the rate of a plain bf16 matrix product that is measured first. Contestants whose library is
missing are named and left out. JSON lines are added to the output as they come; a table ends it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from machine import print_machine, read_rows

HERE = pathlib.Path(__file__).parent
NEEDS = {
    "keras_vit": ["jax"],
    "keras_vit plain": ["jax"],  # attention without Keras's fused operation
    "timm": ["timm", "torch"],
}
# One of each architecture, and of each family whose blocks compute something of their own.
CHECKED = ["vit_ti16", "vit_b16", "r26_vit_s32", "bit_r50x1"]
CHECKED += ["clip_b32", "dinov3_s16", "eva02_ti14", "pe_core_ti16", "aimv2_l14"]
# Largest difference from float32 on the processor, over the largest value. Half precision keeps 8
# (bfloat16) or 11 (float16) binary digits, and errors of many layers add up. A GPU's products of
# float32 keep 11 too (TensorFloat-32), unless JAX is asked for the highest precision.
TOLERANCES = {"float32": 2e-3, "tf32": 2e-2, "mixed_bfloat16": 1e-1, "mixed_float16": 2e-2}
FULL = {
    "variants": ["vit_s16", "vit_b16", "vit_l16", "vit_h14"],
    "train": [64, 128, 256, 512],
    "infer": [1, 64, 512],
    "sizes": [224, 384],
    "side": 8192,
    "checked": CHECKED,
    "checked_plain": ["vit_ti16", "vit_b16"],
    "processes": 5,
    "check_size": 224,
    "check_batch": 4,
    "group": 10,
}
SMALL = {
    "variants": ["vit_ti16"],
    "train": [2],
    "infer": [1, 2],
    "sizes": [32],
    "side": 128,
    "checked": ["vit_ti16"],
    "checked_plain": ["vit_ti16"],
    "processes": 2,
    "check_size": 32,
    "check_batch": 2,
    "group": 2,
}


def ask(request: dict, timeout: float = 300, **variables: str) -> dict:
    """What one process answers; `failed` with the end of its words where it does not."""
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": path, **variables}
    command = [sys.executable, str(HERE / "gpu_contestants.py"), json.dumps(request)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {timeout:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failed": done.stderr[-600:] or f"exit status {done.returncode}"}
    return json.loads(lines[-1])


class Report:
    """Prints results, and keeps them in a file."""

    def __init__(self, path: str | None):
        self.path, self.bad = path, 0
        self.rows: list[dict] = []

    def add(self, row: dict) -> dict:
        self.rows.append(row)
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")
        shown = {k: v for k, v in row.items() if k != "seconds"}
        print(json.dumps(shown), flush=True)
        return row


def largest_difference(received, expected, names) -> float:
    """Over the largest value of all these arrays."""
    scale = max(np.abs(expected[name]).max() for name in names)
    difference = max(np.abs(received[name] - expected[name]).max() for name in names)
    return float(difference / scale) if np.isfinite(difference) else float("inf")


def check(plan: dict, report: Report, folder: pathlib.Path) -> None:
    """Some processes at a time: nothing is measured."""

    def ask_for(variant: str, who: str, policy: str, **variables: str) -> dict:
        request = {
            "task": "check",
            "variant": variant,
            "image_size": plan["check_size"],
            "batch": plan["check_batch"],
            "who": who,
            "policy": "float32" if policy == "tf32" else policy,
            "output": str(folder / f"{variant} {who} {policy} {len(variables)}.npz"),
        }
        if policy == "float32":
            variables["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
        variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if "JAX_PLATFORMS" not in variables:  # compiles sooner, and speed is not asked for
            variables["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
        row = {"variant": variant, "who": who, "policy": policy, "path": request["output"]}
        return row | ask(request, timeout=600, **variables)

    with concurrent.futures.ThreadPoolExecutor(plan["processes"]) as pool:
        references = [
            pool.submit(ask_for, variant, "keras_vit", "float32", JAX_PLATFORMS="cpu")
            for variant in plan["checked"]
        ]
        answers = [
            pool.submit(ask_for, variant, who, policy)
            for variant in plan["checked"]
            for who in ["keras_vit", "keras_vit plain"][: 1 + (variant in plan["checked_plain"])]
            for policy in plan["policies"]
        ]
        expected_of = {answer.result()["variant"]: answer.result() for answer in references}
        for answer in answers:
            row = {"what": "check", **answer.result()}
            path, reference = row.pop("path"), expected_of[row["variant"]]
            if "failed" in reference:
                row["failed"] = reference["failed"]
            if "failed" not in row:
                expected, received = np.load(reference["path"]), np.load(path)
                rest = [name for name in expected.files if name != "logits"]
                row["logits"] = largest_difference(received, expected, ["logits"])
                row["gradients"] = largest_difference(received, expected, rest)
                judged = [row["logits"]]
                # Gradients of a BiT ResNet with random weights are too sensitive to tell: on the
                # processor, those in float32 are 1.2e-2 from those in float64.
                if not row["variant"].startswith("bit"):
                    judged.append(row["gradients"])
                row["within"] = max(judged) <= TOLERANCES[row["policy"]]
            report.bad += not row.get("within", False)
            report.add(row)


def contestants(report: Report, wanted: list[str]) -> list[str]:
    present = []
    for who in wanted:
        missing = [name for name in NEEDS[who] if importlib.util.find_spec(name) is None]
        if missing:
            report.add({"what": "left out", "who": who, "missing": missing})
        else:
            present.append(who)
    return present


def compete(task: str, plan: dict, report: Report, options, ceiling: float) -> None:
    """All contestants in turns, at every batch; larger ones are left out once memory is full."""
    import jax

    # Counting products starts JAX, which would take most of the memory of a GPU here, in the
    # process that waits; what is measured would run in the rest.
    jax.config.update("jax_platforms", "cpu")
    import keras_vit
    import keras_vit.evaluate

    sizes = plan["sizes"] if task == "infer" else plan["sizes"][:1]
    present = contestants(report, options.contestants)
    for variant in options.variants or plan["variants"]:
        for size in sizes:
            config = dataclasses.replace(keras_vit.find_config(variant), image_size=(size, size))
            products = keras_vit.evaluate.count_macs(config)
            full: set[str] = set()
            for batch in plan[task]:
                for who in present:
                    if who in full or time.monotonic() > options.end:
                        continue
                    request = {
                        "task": task,
                        "who": who,
                        "variant": variant,
                        "image_size": size,
                        "batch": batch,
                        "policy": options.policy,
                        "group": plan["group"],
                        "seconds": options.seconds,
                        "compile": not options.small,
                    }
                    answer = ask(request, timeout=options.timeout)
                    if "images_per_second" in answer:
                        operations = 2 * products * (3 if task == "train" else 1)
                        rate = operations * answer["images_per_second"]
                        answer["utilization"] = round(rate / ceiling, 4)
                    else:
                        full.add(who)
                    keys = ("variant", "image_size", "batch", "who", "policy")
                    report.add({"what": task, **{k: request[k] for k in keys}, **answer})


def table(rows: list[dict]) -> str:
    """The best batch of each contestant, beside the best peer."""
    lines = [
        "| what | variant | size | contestant | batch | images/s | used | peak GB | of peer |",
        "|---" * 9 + "|",
    ]
    cells: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        if row.get("who") not in NEEDS or "images_per_second" not in row:
            continue
        # Inference at one image is a cell of its own: it asks for the delay.
        key = (row["what"], row["variant"], row["image_size"], row["batch"] == 1)
        best = cells.setdefault(key, {})
        if row["images_per_second"] > best.get(row["who"], {}).get("images_per_second", 0):
            best[row["who"]] = row
    for (what, variant, size, _), best in cells.items():
        peers = [row["images_per_second"] for who, row in best.items() if "keras" not in who]
        for who, row in best.items():
            ratio = f"{row['images_per_second'] / max(peers):.2f}" if peers else "-"
            lines.append(
                f"| {what} | {variant} | {size} | {who} | {row['batch']} | "
                f"{row['images_per_second']:,.1f} | {row['utilization']:.1%} | "
                f"{row['peak_bytes'] / 1e9:.1f} | {ratio} |"
            )
    return "\n".join(lines)


def versions() -> dict:
    found = {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    for name in ("jax", "jaxlib", "keras", "torch", "timm", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    tasks = ["check", "train", "infer"]
    parser.add_argument("--only", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--variants", nargs="+", help="to measure")
    parser.add_argument("--contestants", nargs="+", choices=NEEDS, default=list(NEEDS))
    parser.add_argument("--checked", nargs="+", help="models to check")
    parser.add_argument("--precisions", nargs="+", choices=TOLERANCES, default=list(TOLERANCES))
    parser.add_argument("--batches", nargs="+", type=int, help="to measure")
    parser.add_argument("--sizes", nargs="+", type=int, help="of images to measure")
    parser.add_argument("--policy", default="mixed_bfloat16", help="of the measurements")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds of a process")
    parser.add_argument(
        "--budget", type=float, default=1e9, help="seconds, after which none begins"
    )
    parser.add_argument("--output", help="a file that JSON lines are added to")
    parser.add_argument("--table", type=pathlib.Path, help="print the table of such a file")
    parser.add_argument("--small", action="store_true", help="a tiny plan, for the processor")
    options = parser.parse_args()
    if options.table:
        print(table(read_rows(options.table)))
        return 0
    os.environ["KERAS_BACKEND"] = "jax"
    sys.path.insert(0, str(HERE.parent))
    options.end = time.monotonic() + options.budget
    plan = dict(SMALL if options.small else FULL)
    if options.batches:
        plan["train"] = [batch for batch in options.batches if batch > 1]
        plan["infer"] = options.batches
    plan["sizes"] = options.sizes or plan["sizes"]
    plan["checked"] = options.checked or plan["checked"]
    plan["policies"] = options.precisions
    if options.small:
        options.seconds = 0.01
    print_machine()
    report = Report(options.output)
    # Building a model compiles dozens of small programs: once for all processes.
    cache = tempfile.TemporaryDirectory()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache.name)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    ceiling = ask({"task": "matmul", "side": plan["side"], "group": 10, "seconds": 0.5})
    report.add({"what": "matmul", **versions(), **ceiling})
    if "failed" in ceiling:
        return 1
    for task in ("train", "infer"):
        if task in options.only:
            compete(task, plan, report, options, ceiling["flops"])
    with tempfile.TemporaryDirectory() as folder:
        if "check" in options.only:
            check(plan, report, pathlib.Path(folder))
    print(table(report.rows))
    print(f"{report.bad} checks failed" if report.bad else "all checks passed")
    return report.bad > 0


if __name__ == "__main__":
    sys.exit(main())
