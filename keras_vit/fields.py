"""Descriptions of the fields of dataclasses that are flags of a command.

They are `Args` of the docstring, which `python -OO` removes: there they are read from the source.

Where values of the module stand in them, the class attribute `_descriptions` has the form of
`Args`. `documented` adds it to the docstring, for `help()`; `scripts/site/docstrings.py` does so
for the site, which reads source files.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)


def descriptions_of(cls: Any) -> dict[str, str]:
    """The descriptions of a dataclass's fields, by their names."""
    text = getattr(cls, "_descriptions", None)
    if text is None:
        text = _docstring(cls).partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^(\w+): (.*(?:\n\s+.*)*)", textwrap.dedent(text), re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in entries}
    return {field.name: texts.get(field.name, "") for field in dataclasses.fields(cls)}


def _docstring(cls: Any) -> str:
    if sys.flags.optimize < 2:
        return inspect.cleandoc(cls.__doc__)
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:  # a bundle without source files
        return ""
    (tree,) = ast.parse(source).body
    return ast.get_docstring(tree) or ""  # type: ignore[arg-type]  # a class


def documented(cls: _Class) -> _Class:
    """Adds the descriptions of a dataclass's fields to its docstring, before `Raises`."""
    if cls.__doc__:  # None under python -OO
        # Python 3.13 takes the indentation away, which 3.12 leaves.
        before, raises, after = inspect.cleandoc(cls.__doc__).partition("Raises:\n")
        args = textwrap.indent(inspect.cleandoc(vars(cls)["_descriptions"]), " " * 4)
        cls.__doc__ = f"{before.rstrip()}\n\nArgs:\n{args}\n\n{raises}{after}"
    return cls
