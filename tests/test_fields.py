"""Descriptions of fields, and the `Args` of the docstring."""

from __future__ import annotations

import dataclasses
import inspect
import types

import pytest

from keras_vit.cli.run_settings import RunSettings
from keras_vit.config import BlockOptions, Preprocessing, ResNetConfig, ViTConfig
from keras_vit.data.augmentation import Augmentation
from keras_vit.fields import descriptions_of, documented
from keras_vit.train.hyperparameters import Recipe


@dataclasses.dataclass(frozen=True)
class Head:
    """A head.

    Raises:
        ValueError: If a value is out of its range.
    """

    _descriptions = """
    classes: Outputs.
    bias: Initial bias of the head, as long a text as this one as long a text as this one as long
        a text as this one: `0` or more.
    """
    classes: int
    bias: float = 0.0


def test_descriptions_are_read_by_name():
    assert Head(3) == Head(classes=3, bias=0.0)
    assert list(descriptions_of(Head)) == ["classes", "bias"]
    assert descriptions_of(Head)["bias"].endswith("as long a text as this one: `0` or more.")


@pytest.mark.parametrize(
    "cls", [Augmentation, BlockOptions, Preprocessing, Recipe, ResNetConfig, RunSettings, ViTConfig]
)
def test_every_field_has_a_description(cls):
    names = [field.name for field in dataclasses.fields(cls)]
    assert list(descriptions_of(cls)) == names
    assert all(descriptions_of(cls).values())


def test_without_docstrings_descriptions_are_read_from_the_source(monkeypatch):
    plain = descriptions_of(ViTConfig)
    optimized = types.SimpleNamespace(flags=types.SimpleNamespace(optimize=2))  # python -OO
    monkeypatch.setattr("keras_vit.fields.sys", optimized)
    assert descriptions_of(ViTConfig) == plain

    def fail(cls):
        raise OSError("source code not available")

    monkeypatch.setattr("keras_vit.fields.inspect.getsource", fail)  # a bundle without sources
    assert descriptions_of(ViTConfig) == dict.fromkeys(plain, "")


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
        _descriptions = "classes: Outputs."
        classes: int = 0

    Stripped.__doc__ = None
    assert documented(Stripped).__doc__ is None
