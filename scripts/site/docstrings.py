"""griffe extension: what the docstrings of this package have beyond Google's style.

- "Call arguments" of a Keras layer are a table, as "Args" are.
- "Example" is code, indented or not.
- The fields of a `NamedTuple` are the parameters of its constructor.
- The descriptions of a dataclass's fields, see `keras_vit/fields.py`, are a table, as "Args" are.
"""

from __future__ import annotations

import ast
import inspect
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
            text = ast.literal_eval(str(cls.members["_descriptions"].value).removeprefix("f"))
            args = textwrap.indent(inspect.cleandoc(text), "    ")
            before, raises, after = cls.docstring.value.partition("Raises:\n")
            cls.docstring.value = f"{before}\n\nArgs:\n{args}\n\n{raises}{after}"
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


def _examples(match: re.Match) -> str:
    code = textwrap.dedent(match[1]).strip("\n")
    if ">>>" not in code and "```" not in code:
        code = f"```python\n{code}\n```"
    return "\nExamples:\n" + textwrap.indent(code, "    ")
