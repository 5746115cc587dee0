"""The tutorials run as they stand, print what their pages show, and become notebooks."""

from __future__ import annotations

import json
import pathlib
import re
import runpy

import matplotlib.pyplot as plt
import pytest

ROOT = pathlib.Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
# What makes a tutorial of minutes short, in the order of replacement.
SMALLER = {
    "folder_to_service": {
        "TRAIN, TEST, LATER = 28, 12, 10": "TRAIN, TEST, LATER = 8, 3, 4",
        "392": "112",
    }
}
CONVERTER = runpy.run_path(str(ROOT / "scripts/site/tutorials.py"))


def words(text):
    """The printed lines without their numbers, which depend on the processor."""
    return re.sub(r"\d[\d.,]*(e-?\d+)?", "0", text).splitlines()


def shown_outputs(path):
    cells = CONVERTER["read_cells"](path.read_text())
    text = "\n".join(source for kind, source in cells if kind == "markdown")
    return re.findall(r"```text\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_prints_what_its_page_shows(path, tmp_path, monkeypatch, capfd, request):
    if "KERAS_VIT_REAL_NETWORK" in path.read_text():
        folder = request.getfixturevalue("real_network")
        monkeypatch.setenv("KERAS_VIT_REAL_NETWORK", str(folder))
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    for old, new in SMALLER.get(path.stem, {}).items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / path.name).write_text(text)
    runpy.run_path(str(tmp_path / path.name))
    plt.close("all")
    printed = words(capfd.readouterr().out)
    for output in shown_outputs(path):
        for line in words(output):
            assert line in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in TUTORIALS if path.stem == "train_on_a_folder"], ids=lambda p: p.stem
)
def test_tutorial_runs_with_one_block_and_epoch(path, tmp_path, monkeypatch):
    """All cells run; what they assert about accuracy needs the epochs of the slow test."""
    monkeypatch.chdir(tmp_path)
    text, count = re.subn(r"\bepochs( ?= ?)\d+", r"epochs\g<1>1", path.read_text())
    assert count
    text = text.replace("depth=2", "depth=1").replace("block=1", "block=0")
    short = tmp_path / path.name
    short.write_text(re.sub(r"^assert .*", "", text, flags=re.MULTILINE))
    runpy.run_path(str(short))
    plt.close("all")


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_notebook_holds_the_script(path):
    cells = CONVERTER["read_cells"](path.read_text())
    notebook = json.loads(CONVERTER["to_notebook"](cells))
    assert notebook["nbformat"] == 4
    assert cells[0][1].startswith("# ")  # a title
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 2
    joined = "\n".join(code)
    compile(joined, path.name, "exec")
    statements = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    assert [line for line in joined.splitlines() if line and line[0] != "#"] == statements
