"""Benchmarks say which packages are missing before they work, and what they were measured on."""

from __future__ import annotations

import pathlib
import runpy
import sys

import numpy as np
import pytest

SCRIPTS = {  # arguments, and packages that are not there
    "agreement": (["--formats", "openvino"], "openvino", "nncf"),
    "data": ([], "scikit-image"),
    "dense": ([], "keras-hub"),
    "dense_heads": (["--network", "nowhere"], "scikit-learn"),
    "dense_precisions": (["nowhere"], "scikit-image", "nncf"),
    "precisions": (["nowhere", "nothing", "--output", "x", "--name", "x"], "nncf", "onnxruntime"),
    "probes": (["a=nowhere"], "scikit-learn"),
    "real_network": (["nowhere"], "scikit-learn"),
    "token_merging": ([], "onnxruntime"),
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


def test_maps_are_compared_by_what_is_above_one_half(load):
    script = load("dense_precisions")
    exact = np.zeros((2, 2, 2, 1), "float32")
    exact[0, 0] = 0.9
    maps = exact.copy()
    maps[0, 0, 0], maps[0, 1, 0] = 0.4, 0.6  # one of two is lost, another is new
    found = script.compare(maps, exact)
    assert (found["iou"], found["worst_iou"]) == (round((1 / 3 + 1) / 2, 4), round(1 / 3, 4))
    assert found["largest_difference"] == pytest.approx(0.6)
