"""Turns the scripts of docs/tutorials into pages and notebooks.

A script is in the percent format that Jupyter, VS Code and PyCharm read: `# %%` begins a cell of
code, `# %% [markdown]` one of text. `tests/scripts/test_tutorials.py` runs the scripts.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "tutorials"
DOWNLOADS = (
    "[Open as a notebook]({name}.ipynb){{ .md-button download }} "
    "[Script]({name}.py){{ .md-button download }}"
)


def read_cells(text: str) -> list[tuple[str, str]]:
    """Splits a script into cells: `("markdown" or "code", source)`."""
    cells = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        title, _, source = part.partition("\n")
        if title.strip() == "[markdown]":
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
            cells.append(("markdown", source.strip()))
        else:
            cells.append(("code", source.strip()))
    return cells


def to_page(name: str, cells: list[tuple[str, str]]) -> str:
    """Returns the Markdown of a tutorial, with its downloads below the title."""
    blocks = [
        source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells
    ]
    title, _, rest = blocks[0].partition("\n")
    return "\n\n".join([title, rest.strip(), DOWNLOADS.format(name=name), *blocks[1:]])


def to_notebook(cells: list[tuple[str, str]]) -> str:
    """Returns a notebook of the same cells, without outputs."""
    written = []
    for index, (kind, source) in enumerate(cells):
        cell: dict[str, Any] = {
            "id": f"cell-{index}",
            "cell_type": kind,
            "metadata": {},
            "source": source,
        }
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        written.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "cells": written,
    }
    return json.dumps(notebook, indent=1)


def tutorial_pages() -> dict[str, str]:
    """Returns the pages and notebooks by their paths in the site."""
    pages = {}
    for script in sorted(FOLDER.glob("*.py")):
        cells = read_cells(script.read_text())
        pages[f"tutorials/{script.stem}.md"] = to_page(script.stem, cells)
        pages[f"tutorials/{script.stem}.ipynb"] = to_notebook(cells)
    return pages
