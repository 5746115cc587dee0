"""griffe extension: what the docstrings of this package have beyond Google's style.

- "Call arguments" of a Keras layer are a table, as "Args" are.
- "Example" is code, indented or not.
- The fields of a `NamedTuple` are the parameters of its constructor.
- The descriptions of a dataclass's fields, see `keras_vit/fields.py`, are a table, as "Args" are.
"""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any

import griffe


class KerasDocstrings(griffe.Extension):
    """Changes what griffe has read, before pages are made of it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            text = text.replace("\nCall arguments:\n", "\nOther Parameters: Call arguments\n")
            obj.docstring.value = re.sub(r"\nExamples?:\n+(.*)\Z", _examples, text, flags=re.DOTALL)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        if any(str(decorator.value) == "documented" for decorator in cls.decorators):
            entries = [f"    {name}: {text}" for name, text in _descriptions(cls).items()]
            before, raises, after = cls.docstring.value.partition("Raises:\n")
            cls.docstring.value = "\n".join([f"{before}\n\nArgs:", *entries, "", raises + after])
        if any(str(base) == "NamedTuple" for base in cls.bases):
            kind = griffe.ParameterKind.positional_or_keyword
            fields = [
                griffe.Parameter(
                    field.name, annotation=field.annotation, kind=kind, default=field.value
                )
                for field in cls.attributes.values()
            ]
            this = griffe.Parameter("self", kind=kind)
            parameters = griffe.Parameters(this, *fields)
            cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))


def _descriptions(cls: griffe.Class) -> dict[str, str]:
    """Descriptions of a dataclass's fields. Signatures show defaults without them."""
    found = {}
    for field in cls.attributes.values():
        called = str(getattr(field.value, "function", ""))
        if called == "described":
            cls.parameters[field.name].default, text = field.value.arguments
        elif called == "dataclasses.field":
            (text,) = field.value.arguments[0].value.values  # of the metadata
        else:
            continue
        found[field.name] = ast.literal_eval(str(text).removeprefix("f"))
    return found


def _examples(match: re.Match) -> str:
    code = textwrap.dedent(match[1]).strip("\n")
    if ">>>" not in code and "```" not in code:
        code = f"```python\n{code}\n```"
    return "\nExamples:\n" + textwrap.indent(code, "    ")
