"""benchmarks/suite.py with contestants that are no libraries, and what it makes of its rows."""

from __future__ import annotations

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
FAKE = """
import os, time
from contestants.worker import serve

class Answer(list):
    def reshape(self, shape):
        return self

def load(cell):
    who = cell["who"]
    if who == "cannot":
        raise ImportError("no such library")
    print("a library says hello")  # must not come between the answers

    def run(calls):
        if who == "dies":
            os._exit(3)
        with open(cell["diary"], "a") as file:
            file.write(f"{who} {calls}\\n")
        time.sleep(0.002 * calls)
        return Answer([1.0, 2.0])

    return run

serve(load)
"""


def test_contestants_take_turns_and_failures_are_reported(load, tmp_path, monkeypatch):
    (tmp_path / "fake_contestant.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    suite = load("suite")
    contestants = {
        name: suite.Contestant("bare", "fake_contestant")
        for name in ("first", "cannot", "dies", "second")
    }
    options = suite.parse(["--rounds", "2", "--seconds", "0.006", "--pause", "0"])
    options.folder, options.threads = tmp_path / "files", 1
    cell = {"task": "infer", "variant": "vit_s16", "size": 4, "precision": "float32"}
    cell |= {"batch": 1, "threads": 1, "diary": str(tmp_path / "diary")}
    monkeypatch.setattr(suite.Suite, "describe", lambda self, cell, names: cell)
    team = suite.Suite({"bare": sys.executable}, contestants, options)
    output = tmp_path / "rows.jsonl"
    try:
        rows = {row["contestant"]: row for row in suite.run([cell], team, output)}
        processes = [worker.process for worker in team.workers.values()]
    finally:
        team.close()
    assert "ImportError: no such library" in rows["cannot"]["error"]
    assert "ended with status 3" in rows["dies"]["error"]
    for name in ("first", "second"):
        assert len(rows[name]["wall_s"]) == 2 and min(rows[name]["wall_s"]) >= 0.002
        assert rows[name]["answer"] == [1.0, 2.0]
    diary = (tmp_path / "diary").read_text().split("\n")
    turns = [line.split()[0] for line in diary if line][-4:]
    assert turns == ["first", "second", "first", "second"]
    assert all(process.poll() is not None for process in processes)
    # What stands in the file is not measured again.
    again = suite.run([cell], suite.Suite({}, contestants, options), output)
    assert len(again) == len(output.read_text().splitlines()) == 4


def test_who_takes_too_long_is_ended(load, tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = load("suite").Worker(sys.executable, "sleeper", 1, 0.1, tmp_path / "log")
    assert worker.ask(do="round", calls=1) == {"error": "took longer than 0.1 s"}
    assert not worker.is_alive
    assert "ended with status" in worker.ask(do="round", calls=1)["error"]


def row(contestant, speed, precision="float32", **fields):
    cell = {"task": "infer", "variant": "vit_s16", "size": 224, "batch": 1, "threads": 1}
    numbers = {"images_per_second": speed, "processor_ms_per_image": 1e3 / speed}
    return {**cell, "precision": precision, "contestant": contestant, **numbers, **fields}


def test_the_table_compares_with_the_best_peer(load):
    rows = [
        row("timm eager", 5.0),
        row("timm eager", 8.0),  # measured again: counts instead
        row("transformers", 4.0, processor_ms_per_image=100.0),
        row("keras_vit predict", 10.0),
        row("keras_vit predict", 10.0, "bfloat16"),
        {**row("keras_hub predict", 1.0), "error": "ImportError: a|b"},
    ]
    lines = load("suite_table").table(rows)[2:]
    start = "| vit_s16 | 224 | infer | float32 | 1 | 1 |"
    assert lines == [
        f"{start} keras_vit predict | 10 | 1.25 | 1.00 |",
        f"{start} timm eager | 8 | 1.00 | 0.80 |",
        f"{start} transformers | 4 | 0.50 | 1.00 |",
        f"{start} keras_hub predict | failed: ImportError: a/b | | |",
        f"{start.replace('float32', 'bfloat16')} keras_vit predict | 10 | - | - |",
    ]


def test_the_summary_divides_by_the_best_peer(load):
    rows = [
        row("torch product", 50.0, task="ceiling"),  # of earlier files
        row("onnxruntime timm", 8.0),
        row("timm compiled", 10.0),
        row("onnxruntime keras_vit", 6.0),
        row("keras_vit saved_model", 2.0),
        row("keras_vit saved_model xla", 4.0),
        {**row("keras_vit predict", 9.0), "error": "ended"},
        row("keras_vit predict", 1.0, "int8"),  # without a peer
    ]
    (line,) = load("suite_table").summary(rows)[2:]
    start = "| vit_s16 | 224 | infer | float32 | 1 | timm compiled | 10 |"
    assert line == f"{start} - | 0.40 | - | 0.60 | - | 1.00 | - |"


def test_every_contestant_has_an_environment_and_a_module(load):
    suite = load("suite")
    for contestant in suite.CONTESTANTS.values():
        assert contestant.environment in suite.ENVIRONMENTS
        path = ROOT / "benchmarks" / (contestant.module.replace(".", "/") + ".py")
        assert path.exists()
    cells = suite.make_cells(suite.parse([]))
    inference = [cell for cell in cells if cell["task"] == "infer"]
    assert len(inference) == 5 * 2 * 4 * 3  # variants, sizes, precisions, batches
    assert all(suite.who_takes_part(cell, suite.CONTESTANTS) for cell in inference)


def test_a_machine_is_described(load, tmp_path, capsys):
    path = tmp_path / "cpuinfo"
    path.write_text("model name : first\nflags : avx2 amx_bf16 sse\n\nmodel name : second\n")
    described = load("machine").describe_machine(path)
    assert described["cpu"] == "first" and described["units"] == ["amx_bf16", "avx2"]
    json.dumps(described)
    load("machine").print_machine(path)
    assert re.fullmatch(r"first, \d+ cores: amx_bf16, avx2\n", capsys.readouterr().out)
