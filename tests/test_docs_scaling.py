"""The page on scaling: its tables are what the functions and the script say."""

from __future__ import annotations

import pathlib
import re
import runpy
import sys

import pytest

import keras_vit

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/scaling.md").read_text()


MEASURED = ["--steps", str(ROOT / "docs/benchmarks/steps.jsonl")]
CPU = [*MEASURED, "--replicas-per-machine", "1", "--network", "10"]


@pytest.mark.parametrize("options", [[], CPU], ids=["published", "measured"])
def test_the_simulated_tables_are_what_the_script_prints(options, capsys, monkeypatch, tmp_path):
    picture = tmp_path / "scaling.png"
    monkeypatch.setattr(sys, "argv", ["scaling.py", *options, "--picture", str(picture)])
    runpy.run_path(str(ROOT / "benchmarks/scaling.py"), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3 * 5
    assert "\n".join(lines) in PAGE
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_bytes_are_those_of_the_models():
    script = runpy.run_path(str(ROOT / "benchmarks/scaling.py"))
    rows = re.findall(r"\| `(\w+)` \| ([\d,.]+) MB \| ([\d,.]+) MB \| ([\d,.]+) MB \|", PAGE)
    assert [row[0] for row in rows] == ["vit_b16", "vit_l16", "vit_h14"]
    for name, *written in rows:
        reduced = script["gradient_bytes"](keras_vit.find_config(name))
        counted = [reduced, script["sent_bytes"](reduced, 2), script["sent_bytes"](reduced, 1024)]
        assert [f"{value / 1e6:,.1f}" for value in counted] == written


def test_python_on_the_page_is_python():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    names = set(re.findall(r"keras_vit\.(\w+)", "\n".join(blocks)))
    assert all(hasattr(keras_vit, name) for name in names)
    for block in blocks:
        compile(block, "docs/scaling.md", "exec")
