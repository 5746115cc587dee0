"""Benchmarks say which packages are missing before they work, and what they were measured on."""

from __future__ import annotations

import pathlib
import runpy
import sys

import pytest

SCRIPTS = {  # arguments, and packages that are not there
    "data": ([], "scikit-image"),
    "precisions": (["nowhere", "nothing", "--output", "x", "--name", "x"], "nncf", "onnxruntime"),
    "real_network": (["nowhere"], "scikit-learn"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_missing_packages_end_it_at_once(name, load, tmp_path, monkeypatch):
    words, *missing = SCRIPTS[name]
    script, machine = load(name), load("machine")
    monkeypatch.setattr(machine, "IMPORTED", dict.fromkeys(missing, "no_such_module"))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"{name}.py needs .*pip install ") as end:
        script.main()
    commands = str(end.value).partition("pip install ")[2].split()
    assert {*missing} <= {*commands}
    assert not list(tmp_path.iterdir())


def test_nothing_missing_is_no_end(load):
    load("machine").require("numpy", "scikit-learn")


@pytest.mark.parametrize("name", ["dense_model_of_others", "look_inside"])
def test_examples_name_missing_packages(name, monkeypatch, capsys):
    script = runpy.run_path(str(pathlib.Path(__file__).parents[2] / f"examples/{name}.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(SystemExit):
        script["main"](["nowhere"])
    assert "pip install " in capsys.readouterr().err
