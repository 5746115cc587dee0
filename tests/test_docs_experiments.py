"""Tests the scripts of docs/experiments.md."""

from __future__ import annotations

import importlib
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


def test_seeds_are_kept_when_a_later_one_fails(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    digits, image_gpt = (importlib.import_module(name) for name in ("digits", "image_gpt"))

    def read(split):
        if split:
            raise MemoryError
        return None, None

    monkeypatch.setattr(digits, "read_digits", read)
    monkeypatch.setattr(image_gpt, "MODELS", {"one": lambda *_: None})
    monkeypatch.setattr(image_gpt, "probe", lambda *_: [0.5] * len(image_gpt.STAGES))
    monkeypatch.setattr(sys, "argv", ["image_gpt.py", "--output", str(tmp_path)])
    with pytest.raises(MemoryError):
        image_gpt.main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["accuracies"] == {"one": [[0.5]] * 7}
