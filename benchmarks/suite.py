r"""Speed of our models on this processor, through every interface, compared with peers.

    python benchmarks/suite.py --setup ENVIRONMENTS           makes an environment a group of peers
    python benchmarks/suite.py --environments ENVIRONMENTS    measures the whole grid (hours)
    python benchmarks/suite.py --python torch=/some/bin/python --python ours=python \
        --variants vit_s16 --batches 1 8 --threads 1          measures some of it
    python benchmarks/suite.py --table docs/benchmarks/suite.jsonl --summary

A cell is a task, a variant, an image size, a precision and a batch. All contestants of a cell are
loaded, each in a process and an environment of its own, and then take turns, so that what else the
machine does meets all alike; one runs at a time, on the same number of threads. A JSON line for
each: seconds of a call on the wall clock and of the processor, round by round, its first answers
(ours and timm's have the same weights), versions, date and machine; `error` where one fails. Cells
that stand in the output file already are not measured again. Environments that are missing are
named and left out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import venv

import suite_table
from contestants.process import Worker
from contestants.table import BOTH, CONTESTANTS, ENVIRONMENTS, KERAS, ROOT, TORCH, Contestant
from machine import describe_machine, print_machine, read_rows


def make_cells(options) -> list[dict]:
    """Every combination of what was asked for."""
    grid = itertools.product(
        options.tasks, options.variants, options.sizes, options.precisions, options.batches
    )
    names = ("task", "variant", "size", "precision", "batch")
    cells = [dict(zip(names, values, strict=True)) for values in grid]
    return [{**cell, "threads": options.threads} for cell in cells]


def who_takes_part(cell: dict, contestants: dict[str, Contestant]) -> list[str]:
    return [
        name
        for name, contestant in contestants.items()
        if cell["task"] in contestant.tasks and cell["precision"] in contestant.precisions
    ]


class Suite:
    """Contestants' processes, started when first asked for, and the files they share."""

    def __init__(self, pythons: dict[str, str], contestants: dict[str, Contestant], options):
        self.pythons, self.contestants, self.options = pythons, contestants, options
        self.folder = pathlib.Path(options.folder)
        self.workers: dict[str, Worker] = {}

    def worker(self, name: str, environment: str, module: str) -> Worker:
        known = self.workers.get(name)
        if known is None or not known.is_alive:
            self.folder.mkdir(parents=True, exist_ok=True)
            log = self.folder / f"{name.replace(' ', '_')}.log"
            self.workers[name] = Worker(
                self.pythons[environment], module, self.options.threads, self.options.timeout, log
            )
        return self.workers[name]

    def close(self, names: set[str] | None = None) -> None:
        for name in list(self.workers) if names is None else names:
            self.workers.pop(name).close()

    def describe(self, cell: dict, names: list[str]) -> dict:
        """The cell with its files written, the fields of the model, and its counts."""
        model = f"{cell['variant']}_{cell['size']}"
        cell = {
            **cell,
            "ours": str(self.folder / f"{model}_{digest_of_sources()}"),
            "timm": str(self.folder / f"{model}_timm"),
        }
        patterns = {self.contestants[name].file for name in names}
        files = sorted(file.format(**cell) for file in patterns if file)
        theirs = [file.removeprefix("timm/") for file in files if file.startswith("timm/")]
        if "torch" in self.pythons:
            self.write("torch", TORCH, cell, cell["timm"], ["timm.safetensors", *theirs])
        mine = [file for file in files if not file.startswith("timm/")]
        self.write("ours", KERAS, cell, cell["ours"], ["description.json", *mine])
        description = pathlib.Path(cell["ours"], "description.json")
        return {**cell, **(json.loads(description.read_text()) if description.exists() else {})}

    def write(self, environment: str, module: str, cell: dict, folder: str, files: list) -> None:
        """Has the files of a folder made that are not there yet."""
        missing = [file for file in files if not pathlib.Path(folder, file).exists()]
        if missing:
            writer = self.worker(f"writer {environment}", environment, module)
            note = writer.ask(do="export", cell={**cell, "files": missing})
            if "error" in note:
                print(f"Cannot write {missing}: {note['error']}", file=sys.stderr, flush=True)

    def load(self, name: str, cell: dict) -> dict:
        contestant = self.contestants[name]
        worker = self.worker(name, contestant.environment, contestant.module)
        options = {"interface": contestant.interface, **dict(contestant.options)}
        return worker.ask(do="load", cell={**cell, "who": name, **options})

    def measure(self, cell: dict, names: list[str]) -> list[dict]:
        """A row a contestant of one cell."""
        self.close(set(self.workers) - set(names))  # those of other cells leave memory
        described = self.describe(cell, names)
        self.close(set(self.workers) - set(names))  # and who wrote the files
        with concurrent.futures.ThreadPoolExecutor(self.options.loaders) as pool:
            loaded = dict(
                zip(names, pool.map(lambda n: self.load(n, described), names), strict=True)
            )
        rounds = self.run_rounds([name for name in names if "error" not in loaded[name]])
        machine = describe_machine()
        return [
            {
                **cell,
                "contestant": name,
                **summarize(cell["batch"], rounds.get(name, [])),
                **{key: described[key] for key in ("macs", "training_macs") if key in described},
                **loaded[name],
                **next((r for r in rounds.get(name, []) if "error" in r), {}),
                **machine,
            }
            for name in names
        ]

    def run_rounds(self, names: list[str]) -> dict[str, list[dict]]:
        """Warms everyone up, then lets each run in turn."""
        calls, rounds = {}, {}
        for name in names:
            warm = [self.workers[name].ask(do="round", calls=1)]
            seconds = warm[0].get("wall_s", 1.0)
            if seconds < 1:
                warm.append(self.workers[name].ask(do="round", calls=2))
                seconds = warm[1].get("wall_s", 1.0)
            calls[name] = max(1, min(1000, round(self.options.seconds / seconds)))
            rounds[name] = [note for note in warm if "error" in note]
        for _ in range(self.options.rounds):
            for name in names:
                if not any("error" in note for note in rounds[name]):
                    time.sleep(self.options.pause)  # until the last one's threads sleep
                    rounds[name].append(self.workers[name].ask(do="round", calls=calls[name]))
        return rounds


def summarize(batch: int, rounds: list[dict]) -> dict:
    """Medians of the rounds, and the rounds."""
    if not rounds or any("error" in note for note in rounds):
        return {}
    wall, busy = ([note[key] for note in rounds] for key in ("wall_s", "processor_s"))
    return {
        "images_per_second": float(f"{batch / statistics.median(wall):.4g}"),
        "fastest_images_per_second": float(f"{batch / min(wall):.4g}"),
        "processor_ms_per_image": float(f"{1e3 * statistics.median(busy) / batch:.4g}"),
        "wall_s": [float(f"{value:.4g}") for value in wall],
        "processor_s": [float(f"{value:.4g}") for value in busy],
    }


def digest_of_sources() -> str:
    """Changes with what files are made of, so that none of an older version is measured."""
    digest, package = hashlib.sha256(), ROOT / "keras_vit"
    sources = [package / "config.py", package / "variants.py", package / "models/vit.py"]
    for folder in ("layers", "export"):
        sources += sorted((package / folder).rglob("*.py"))
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def is_done(cell: dict, names: list[str], rows: list[dict]) -> bool:
    done = {row["contestant"] for row in rows if cell.items() <= row.items()}
    return set(names) <= done


def run(cells: list[dict], suite: Suite, output: pathlib.Path) -> list[dict]:
    """Measures what the output does not hold yet, and adds it there cell by cell."""
    rows = read_rows(output)
    for cell in cells:
        names = who_takes_part(cell, suite.contestants)
        if not names or is_done(cell, names, rows):
            continue
        if suite.options.prepare:
            suite.describe(cell, names)
            continue
        fresh = suite.measure(cell, names)
        rows += fresh
        with open(output, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in fresh)
        for row in fresh:
            speed = row.get("error") or f"{row['images_per_second']:9.2f} images/s"
            print(*cell.values(), f"{row['contestant']:26}", speed, flush=True)
    return rows


def set_up(folder: pathlib.Path, names: list[str]) -> None:
    """Makes the environments, or brings them up to what is needed."""
    for name in names:
        venv.create(folder / name, with_pip=True)
        python = find_python(folder, name)
        command = [python, "-m", "pip", "install", "--upgrade", *ENVIRONMENTS[name]]
        subprocess.run(command, check=True)


def find_python(folder: pathlib.Path, name: str) -> str:
    place = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    return str(folder / name / place)


def find_pythons(options) -> dict[str, str]:
    """The interpreter of each environment there is."""
    pythons = {}
    if options.environments:
        known = {name: find_python(options.environments, name) for name in ENVIRONMENTS}
        pythons = {name: path for name, path in known.items() if os.path.exists(path)}
    pythons |= dict(pair.split("=", 1) for pair in options.python)
    pythons.setdefault("ours", sys.executable)
    missing = [name for name in ENVIRONMENTS if name not in pythons]
    if missing:
        print(f"Left out, without an environment: {', '.join(missing)}", file=sys.stderr)
    return pythons


def parse(arguments: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    path = pathlib.Path
    parser.add_argument("--setup", type=path, metavar="FOLDER", help="make environments there")
    parser.add_argument("--environments", type=path, help="the folder they are in")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--table", type=path, metavar="JSONL", help="print the table of a file")
    parser.add_argument("--summary", action="store_true", help="a line a cell, of the best peer")
    parser.add_argument("--tasks", nargs="+", default=list(BOTH), choices=BOTH)
    variants = ["vit_ti16", "vit_s16", "vit_b16", "vit_l16", "vit_b32"]
    parser.add_argument("--variants", nargs="+", default=variants)
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 384])
    precisions = ["float32", "bfloat16", "int8", "dynamic"]
    parser.add_argument("--precisions", nargs="+", default=precisions, choices=precisions)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--contestants", nargs="+", help="default: all", choices=CONTESTANTS)
    parser.add_argument("--prepare", action="store_true", help="only write the files")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round, at least")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two")
    text = "contestants loaded at a time; with 1, none disturbs `predict` while it times compilers"
    parser.add_argument("--loaders", type=int, default=2, help=text)
    parser.add_argument("--timeout", type=float, default=600, help="seconds a command may take")
    parser.add_argument("--folder", type=path, default=path("runs/suite"), help="of files made")
    parser.add_argument("--output", type=path, default=path("docs/benchmarks/suite.jsonl"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.setup:
        set_up(options.setup, list(ENVIRONMENTS))
        return
    if options.table:
        rows = read_rows(options.table)
        print("\n".join((suite_table.summary if options.summary else suite_table.table)(rows)))
        return
    pythons = find_pythons(options)
    chosen = {
        name: contestant
        for name, contestant in CONTESTANTS.items()
        if contestant.environment in pythons
        and (options.contestants is None or name in options.contestants)
    }
    print_machine()
    suite = Suite(pythons, chosen, options)
    try:
        run(make_cells(options), suite, options.output)
    finally:
        suite.close()


if __name__ == "__main__":
    main()
