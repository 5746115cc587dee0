"""The page on exports: its tables are what was measured, and that is what was promised."""

from __future__ import annotations

import pathlib
import re
import runpy

import pytest

import keras_vit

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/export.md").read_text()
TABLES = runpy.run_path(str(ROOT / "benchmarks/tabulate_exports.py"))
READMES = sorted(ROOT.glob("export/**/README.md"))


@pytest.mark.parametrize("table", TABLES["TABLES"], ids=lambda table: table.__name__)
def test_tables_are_what_was_measured(table):
    lines = table()
    assert len(lines) > 3
    assert "\n".join(lines) in PAGE


@pytest.mark.parametrize(
    ("precision", "least"), [("float16", 0.995), ("dynamic", 0.995), ("int8", 0.99)]
)
def test_litert_files_give_the_answers_of_trained_models(precision, least):
    rows = [row for row in TABLES["read"]("agreement") if row.get("precision") == precision]
    rows = [row for row in rows if row["format"] == "litert"]
    assert len(rows) >= 2
    assert all(row["top1_agreement"] >= least for row in rows)


def test_python_on_the_page_is_python():
    names = set()
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        compile(block, "docs/export.md", "exec")
        names |= set(re.findall(r"keras_vit\.(\w+)", block))
    assert names and all(hasattr(keras_vit, name) for name in names)


@pytest.mark.parametrize("path", [ROOT / "docs/export.md", *READMES], ids=lambda path: path.parent)
def test_what_pages_name_is_there(path):
    text = path.read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    scripts = re.findall(r"(?:export|benchmarks|examples)/[\w/]+\.(?:py|yaml)", text)
    assert [name for name in scripts if not (ROOT / name).exists()] == []
    tests = re.findall(r"`(test_\w+)`", text)
    sources = "".join(file.read_text() for file in (ROOT / "tests/export").glob("*.py"))
    assert [name for name in tests if f"def {name}(" not in sources] == []
