"""The page about few labels runs as it is written."""

from __future__ import annotations

import pathlib
import re

import pytest

import keras_vit

PAGE = (pathlib.Path(keras_vit.__file__).parents[1] / "docs/few-labels.md").read_text()


@pytest.mark.slow
def test_the_python_of_the_page_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        block = block.replace("depth=2", "depth=1")
        exec(compile(block, "docs/few-labels.md", "exec"), names)
    assert float(re.search(r"\[([\d.]+)\]", capsys.readouterr().out).group(1)) > 0.5
    assert names["both"].get_layer("head").units == 3
