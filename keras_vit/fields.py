"""Descriptions of the fields of dataclasses that are flags of a command.

The class attribute `_descriptions` has the form of `Args` in a docstring. `--help` prints it under
`python -OO` too, where docstrings are gone. `documented` adds it to the docstring, for `help()`;
`scripts/site/docstrings.py` does so for the site, which reads source files.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)


def descriptions_of(cls: Any) -> dict[str, str]:
    """The descriptions of a dataclass's fields, by their names."""
    entries = re.split(r"\n(?=\S)", inspect.cleandoc(cls._descriptions))  # others are indented
    pairs = (" ".join(entry.split()).split(": ", 1) for entry in entries)
    return dict(pairs)


def documented(cls: _Class) -> _Class:
    """Adds the descriptions of a dataclass's fields to its docstring, before `Raises`."""
    if cls.__doc__:  # None under python -OO
        # Python 3.13 takes the indentation away, which 3.12 leaves.
        before, raises, after = inspect.cleandoc(cls.__doc__).partition("Raises:\n")
        lines = [f"{before.rstrip()}\n\nArgs:"]
        for name, text in descriptions_of(cls).items():
            entry = textwrap.fill(f"{name}: {text}", 92, subsequent_indent="    ")
            lines.append(textwrap.indent(entry, " " * 4))
        cls.__doc__ = "\n".join([*lines, "", raises + after])
    return cls
