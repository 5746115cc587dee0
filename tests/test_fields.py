"""Descriptions of fields: metadata, and the `Args` of the docstring."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from keras_vit.fields import described, descriptions_of, documented


@dataclasses.dataclass(frozen=True)
class Head:
    """A head.

    Raises:
        ValueError: If a value is out of its range.
    """

    classes: int = dataclasses.field(metadata={"description": "Outputs."})
    bias: float = described(0.0, "Initial bias of the head, " + "as long a text as this one " * 4)


def test_descriptions_are_metadata_and_defaults_stay_defaults():
    assert Head(3) == Head(classes=3, bias=0.0)
    assert list(descriptions_of(Head)) == ["classes", "bias"]
    with pytest.raises(TypeError, match="classes"):
        Head()


def test_descriptions_become_args_before_raises():
    title, _, args, classes, bias, *_, last, _, raises, _ = inspect.getdoc(
        documented(Head)
    ).splitlines()
    assert (title, args, raises) == ("A head.", "Args:", "Raises:")
    assert classes == "    classes: Outputs."
    assert bias.startswith("    bias: Initial") and last.startswith("        ")


def test_a_class_without_docstring_stays_without():
    @dataclasses.dataclass
    class Stripped:
        classes: int = described(0, "Outputs.")

    Stripped.__doc__ = None
    assert documented(Stripped).__doc__ is None
