"""The README's code prints what the README says, and its table is the models'."""

from __future__ import annotations

import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_code_prints_what_stands_below_it(capsys):
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    namespace = {}
    for code, expected in examples:
        exec(code, namespace)
        assert capsys.readouterr().out == expected


def test_the_table_of_models_is_theirs():
    rows = runpy.run_path(str(ROOT / "scripts" / "model-table"))["rows"]
    assert "\n".join(rows()) in README


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
