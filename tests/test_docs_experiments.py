"""Tests the scripts of docs/experiments.md."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

import keras_vit

ROOT = pathlib.Path(keras_vit.__file__).parents[1]
NAMES = [
    "cordonnier",
    "data_efficiency",
    "image_gpt",
    "masked_digits",
    "position_ablation",
    "token_merging",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_scripts_run(name, tmp_path):
    command = [sys.executable, ROOT / f"examples/{name}.py", "--smoke", "--output", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(0 <= x[0] <= 1 for row in results["accuracies"].values() for x in row)
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
