"""Every document: names of the package, files and anchors that it mentions exist."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
import shlex

import pytest

import keras_vit
from keras_vit.cli.main import build_parser

ROOT = pathlib.Path(keras_vit.__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("export/**/*.md")])


def resolves(dotted: str) -> bool:
    """Whether `keras_vit.a.b` is an attribute or a module."""
    value = keras_vit
    for part in dotted.split(".")[1:]:
        if hasattr(value, part):
            value = getattr(value, part)
            continue
        try:
            value = importlib.import_module(f"{value.__name__}.{part}")
        except (AttributeError, ImportError):
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_and_files_exist(page):
    text = page.read_text()
    names = set(re.findall(r"\bkeras_vit(?:\.[A-Za-z_]\w*)+", text.replace("keras_vit.egg", "")))
    assert sorted(name for name in names if not resolves(name)) == []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(block)
    folders = "tests|examples|benchmarks|scripts|export|keras_vit|docs"
    paths = re.findall(
        rf"(?<![\w/.(-])((?:{folders})/[\w/.-]+?\.(?:py|md|json|jsonl|yaml))\b", text
    )
    paths += re.findall(r"(?<![\w/.(-])(scripts/[a-z-]+)\b(?![./])", text)
    assert sorted({path for path in paths if not (ROOT / path).exists()}) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        is_tutorial = target.with_suffix(".py").exists()  # a script, which the site shows as a page
        assert target.exists() or is_tutorial, link
        if anchor and target.exists():
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]
            assert anchor in slugs, link


def test_functions_stand_in_the_files_that_the_architecture_names():
    text = re.sub(r"\n +", " ", (ROOT / "docs/architecture.md").read_text())
    found = re.findall(r"`(keras_vit/[\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", text)
    assert len(found) > 20
    for path, names in found:
        source = (ROOT / path).read_text()
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^(?:def|class) {name}\b|^{name}\b.* =", source, re.MULTILINE), name


def test_commands_of_the_command_line_parse():
    lines = []
    for page in PAGES:
        joined = re.sub(r"\\\n\s*", " ", page.read_text())
        lines += [line for line in joined.splitlines() if line.startswith("keras-vit ")]
    complete = [line for line in lines if not re.search(r"[\[|]", line)]
    assert len(complete) >= 8
    for line in complete:
        build_parser().parse_args(shlex.split(line, comments=True)[1:])  # exits with an error
