"""From the start of a process to the first prediction, beside the peers, on this processor.

    python benchmarks/cold_start.py --environments ENVIRONMENTS >> docs/benchmarks/cold_start.jsonl
    python benchmarks/cold_start.py --table docs/benchmarks/cold_start.jsonl

Environments as benchmarks/suite.py makes them. Every start is a fresh process, contestants in
turns; what each reads from disk lies in memory from a start before that does not count. A JSON
line a contestant with medians: seconds to import its libraries, to build the model (ours and timm's
read their weights), to the first answer, which compiles, and of a call after it; from the start of
the process to the first answer, on the wall clock and of the processor; memory after the import and
after the first answer; how many modules Python loaded. `timm compiled` finds the kernels of an
earlier start in its cache on disk.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time

import suite
from contestants.process import Worker
from machine import describe_machine

# What a user of each imports.
IMPORTS = {
    "keras_vit predict": ["keras_vit"],
    "keras_vit predict graph": ["keras_vit"],
    "keras_vit saved_model": ["tensorflow"],
    "keras_vit saved_model xla": ["tensorflow"],
    "onnxruntime keras_vit": ["onnxruntime"],
    "openvino keras_vit": ["openvino"],
    "litert keras_vit": ["ai_edge_litert.interpreter"],
    "timm eager": ["timm"],
    "timm compiled": ["timm"],
    "transformers": ["torch", "transformers"],
    "keras_hub predict": ["keras_hub"],
    "flax": ["jax", "flax.linen"],
}
SECONDS = ("import_s", "load_s", "first_call_s", "call_s", "start_s", "processor_s")
COLUMNS = {
    "import_s": "import s",
    "load_s": "build s",
    "first_call_s": "first call s",
    "start_s": "start to answer s",
    "processor_s": "processor s",
    "import_mb": "MB after import",
    "memory_mb": "MB at rest",
    "modules": "modules",
}


def start_once(team: suite.Suite, name: str, cell: dict) -> dict:
    """One start of one contestant; `error` where it fails."""
    contestant = team.contestants[name]
    log = team.folder / f"{name.replace(' ', '_')}.cold.log"
    begin = time.perf_counter()
    worker = Worker(
        team.pythons[contestant.environment],
        contestant.module,
        team.options.threads,
        team.options.timeout,
        log,
    )
    try:
        imported = worker.ask(do="import", names=IMPORTS[name])
        request = {
            **cell,
            "who": name,
            "interface": contestant.interface,
            **dict(contestant.options),
        }
        loaded = worker.ask(do="load", cell=request)
        start_s = time.perf_counter() - begin
        later = worker.ask(do="round", calls=3)
    finally:
        worker.close()
    for answer in (imported, loaded, later):
        if "error" in answer:
            return answer
    return {
        **loaded,
        **{key: imported[key] for key in ("import_s", "modules")},
        "import_mb": imported["memory_mb"],
        "start_s": start_s,
        "processor_s": loaded["processor_since_start_s"],
        "call_s": later["wall_s"],
    }


def summarize(starts: list[dict]) -> dict:
    """Medians of the starts, and each start's seconds to the first answer."""
    failed = next((start for start in starts if "error" in start), None)
    if failed:
        return failed
    medians = {key: round(statistics.median(s[key] for s in starts), 4) for key in SECONDS}
    counts = {
        key: statistics.median_low(s[key] for s in starts)
        for key in ("import_mb", "memory_mb", "modules")
    }
    starts_s = [round(start["start_s"], 3) for start in starts]
    return {**medians, **counts, "starts_s": starts_s, "versions": starts[0]["versions"]}


def table(rows: list[dict]) -> list[str]:
    """Markdown, the quickest first."""
    lines = ["| contestant | " + " | ".join(COLUMNS.values()) + " |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for row in sorted(rows, key=lambda row: row.get("start_s", float("inf"))):
        if "error" in row:
            lines.append(f"| {row['contestant']} | failed: {row['error'][:100]} |")
            continue
        numbers = (f"{row[k]:.1f}" if k in SECONDS else f"{row[k]}" for k in COLUMNS)
        lines.append(f"| {row['contestant']} | {' | '.join(numbers)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--environments", type=pathlib.Path, help="the folder they are in")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--table", type=pathlib.Path, metavar="JSONL", help="print one")
    parser.add_argument("--contestants", nargs="+", default=list(IMPORTS), choices=IMPORTS)
    parser.add_argument("--variant", default="vit_b16")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600, help="seconds a command may take")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/suite"))
    options = parser.parse_args()
    if options.table:
        print("\n".join(table([json.loads(x) for x in options.table.read_text().splitlines()])))
        return
    pythons = suite.find_pythons(options)
    team = suite.Suite(pythons, suite.CONTESTANTS, options)
    names = [n for n in options.contestants if suite.CONTESTANTS[n].environment in pythons]
    model = {"task": "infer", "variant": options.variant, "size": options.size}
    cell = {**model, "precision": "float32", "batch": 1, "threads": options.threads}
    described = team.describe(cell, names)
    team.close()
    starts: dict[str, list[dict]] = {name: [] for name in names}
    for turn in range(options.starts + 1):
        for name in names:
            start = start_once(team, name, described)
            if turn:
                starts[name].append(start)
        print(f"{turn} of {options.starts}", file=sys.stderr, flush=True)
    for name in names:
        row = {**cell, "contestant": name, **summarize(starts[name]), **describe_machine()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
