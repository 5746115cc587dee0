"""benchmarks/gpu.py in small, on the processor: what it would do on a GPU."""

from __future__ import annotations

import json

import pytest

from tests.workers import python


@pytest.mark.slow
def test_everything_in_small(tmp_path):
    output = ("--output", tmp_path / "out")
    printed = python("benchmarks/gpu.py", "--small", *output, JAX_PLATFORMS="cpu")
    assert " cores: " in printed.splitlines()[0]  # the processor and its units
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    checks = [row for row in rows if row["what"] == "check"]
    assert len(checks) == 8 and all(row["within"] for row in checks)
    for what, count in (("train", 1), ("infer", 2)):
        ours = [row for row in rows if row["what"] == what and row["who"] == "keras_vit"]
        assert len(ours) == count
        assert all(row["images_per_second"] > 0 and row["peak_bytes"] > 1e6 for row in ours)
        assert f"| {what} | vit_ti16 | 32 | keras_vit |" in printed


def test_the_table_takes_each_at_its_best(load):
    fixed = {"what": "train", "variant": "vit_b16", "image_size": 224, "peak_bytes": 2e9}
    rows = [
        {**fixed, "who": who, "batch": batch, "images_per_second": speed, "utilization": 0.5}
        for who, batch, speed in [
            ("keras_vit", 64, 90.0),
            ("keras_vit", 128, 120.0),
            ("timm", 64, 100.0),
            ("flax", 64, 80.0),  # of earlier files
        ]
    ]
    lines = load("gpu").table([*rows, {"what": "check"}]).splitlines()[2:]
    assert lines[0] == "| train | vit_b16 | 224 | keras_vit | 128 | 120.0 | 50.0% | 2.0 | 1.20 |"
    assert [line.split("|")[-2].strip() for line in lines] == ["1.20", "1.00"]


def test_a_process_that_fails_says_why(load):
    answer = load("gpu").ask({"task": "no such task"}, platform="cpu")
    assert "no such task" in answer["failed"]
