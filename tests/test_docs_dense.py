"""The page about dense prediction runs as it is written, but for keras-hub and what needs files."""

from __future__ import annotations

import pathlib
import re

import pytest

import keras_vit

PAGE = (pathlib.Path(keras_vit.__file__).parents[1] / "docs/dense.md").read_text()


@pytest.mark.slow
def test_the_python_of_the_page_runs(capsys):
    names: dict = {}
    page = PAGE.replace("(64, 96, 3))", "(64, 96, 3), depth=1)")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        if not any(text in block for text in ("detector", '"images", "masks"', "serving/")):
            exec(compile(block, "docs/dense.md", "exec"), names)
    assert names["larger"].input_shape == (None, 512, 768, 3)
    assert names["class_map"].shape == (64, 96)
    shapes, macs, memory, share, windowed, maps, levels, recipe, measures = (
        capsys.readouterr().out.splitlines()
    )
    assert shapes == "(1, 10) (1, 10)"
    assert int(macs) > 300e9 and int(memory) > 2e9
    assert round(float(share), 2) == 0.71 and int(windowed) < int(memory)
    assert "'block_11': (None, 14, 20, 192)" in maps
    assert all(0 <= float(each) <= 1 for each in measures.split())
    assert recipe == "linear 16 40000 (0.5, 2.0)"
    assert levels == "['P2', 'P3', 'P4', 'P5']"
