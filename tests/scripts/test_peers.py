"""Tests that the parity scripts compute the outputs of other projects independently."""

from __future__ import annotations

import pathlib

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts/peers"


@pytest.mark.parametrize(
    "name", ["parity_theirs.py", "parity_flax.py", "parity_answers.py", "dense_theirs.py"]
)
def test_scripts_of_other_projects_do_not_use_this_package(name):
    assert "keras_vit" not in (SCRIPTS / name).read_text()
