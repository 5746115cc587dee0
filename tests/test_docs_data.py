"""The pages about data speak of what there is."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

import keras_vit

ROOT = pathlib.Path(keras_vit.__file__).parents[1]
PAGES = [page for page in (ROOT / "docs/data.md", ROOT / "docs/recipes.md") if page.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_and_tests_exist(page):
    text = page.read_text()
    names = set(re.findall(r"keras_vit\.(\w+)", text))
    names |= set(re.findall(r"`((?:read|train|eval)_\w+)\(", text))
    assert len(names) > 3
    here = (keras_vit, keras_vit.data)
    assert [name for name in names if not any(hasattr(where, name) for where in here)] == []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(block)
    paths = re.findall(r"`((?:tests|examples|benchmarks)/[\w/]+\.py)`", text)
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []
