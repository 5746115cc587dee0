"""Tests docs/export.md and the pages of export/."""

from __future__ import annotations

import pathlib
import re

import pytest

import keras_vit

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/export.md").read_text()
READMES = sorted(ROOT.glob("export/**/README.md"))


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
    scripts = re.findall(
        r"(?<!tests/)(?<!keras_vit/)(?:export|benchmarks|examples)/[\w/]+\.(?:py|yaml)", text
    )
    assert [name for name in scripts if not (ROOT / name).exists()] == []
    tests = re.findall(r"`(test_\w+)`", text)
    sources = "".join(file.read_text() for file in (ROOT / "tests/export").glob("*.py"))
    assert [name for name in tests if f"def {name}(" not in sources] == []
