"""Descriptions of the fields of dataclasses that are flags of a command.

A field, its type, its default and its description stand together. The description is metadata of
the field: `--help` prints it under `python -OO` too, where docstrings are gone. `documented` adds
it to the docstring, for `help()`; `scripts/site/docstrings.py` does so for the site, which reads
source files; an editor shows it with the default, in the signature of the constructor.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)
_Value = TypeVar("_Value")


def described(default: _Value, text: str) -> _Value:
    """A field of a dataclass with its default and a text that says what it is.

    A field without a default is `dataclasses.field(metadata={"description": text})`, which type
    checkers know to be required.
    """
    field: _Value = dataclasses.field(default=default, metadata={"description": text})
    return field


def descriptions_of(cls: type) -> dict[str, str]:
    """The descriptions of a dataclass's fields, by their names."""
    return {field.name: field.metadata["description"] for field in dataclasses.fields(cls)}


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
