"""The page about training speaks of what there is."""

from __future__ import annotations

import ast
import pathlib
import re

import keras_vit

PAGE = (pathlib.Path(keras_vit.__file__).parents[1] / "docs/training.md").read_text()


def test_names_and_arguments_exist():
    names = set(re.findall(r"keras_vit\.(\w+)", PAGE))
    assert {"ResumeTraining", "check_cluster"} <= names
    assert [name for name in names if not hasattr(keras_vit, name)] == []
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        ast.parse(block)
    keras_vit.ResumeTraining("runs/first", every_n_steps=500)


def test_tests_that_it_names_are_there():
    for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (pathlib.Path(keras_vit.__file__).parents[1] / path).exists()
