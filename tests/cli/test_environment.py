"""The command `env`."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.cli import environment
from keras_vit.cli.environment import compare_requirements
from keras_vit.cli.main import main
from tests.test_supply import OURS

ROOT = pathlib.Path(keras_vit.__file__).parents[1]


def facts_of(text):
    """The lines `name: text` of the output."""
    lines = text.partition("\n\n")[0].splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


def test_versions_processor_and_devices_are_printed(capsys):
    assert main(["env"]) == 0
    printed = capsys.readouterr().out
    facts = facts_of(printed)
    assert facts["keras_vit"].startswith(keras_vit.__version__)
    assert facts["Python"].startswith(sys.version.split()[0])
    assert facts["Keras"] == f"{keras.__version__}, backend {keras.backend.backend()}"
    assert facts["NumPy"] == np.__version__
    assert "cores" in facts["processor"] and "oneDNN" in facts["processor"]
    assert "CPU" in facts["devices"].upper() and facts["memory"].endswith("GiB")
    assert "FAILED" not in printed and str(pathlib.Path.home()) not in printed


def test_addresses_and_other_variables_are_not_printed(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["secret.example:80"]}}')
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=\x1b[2J")
    environment.show_environment()
    printed = capsys.readouterr().out
    assert "TF_CONFIG=set" in printed and "secret" not in printed
    assert r"XLA_FLAGS=--xla_dump_to=\x1b[2J" in printed


@pytest.mark.parametrize(
    ("backend", "source", "reason"),
    [
        ("nope", None, "ValueError: Unable to import backend : nope"),
        ("tensorflow", "raise ImportError('broken')", "ImportError: broken"),
    ],
)
def test_where_keras_cannot_be_imported_the_reason_is_printed(backend, source, reason, tmp_path):
    if source is not None:
        (tmp_path / "keras.py").write_text(source)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "keras_vit", "env"],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = facts_of(done.stdout)
    assert facts["Keras"].endswith(f", backend FAILED: {reason}")
    assert facts["devices"] == f"FAILED: {reason}" and "cores" in facts["processor"]
    assert facts["variables"].startswith(f"KERAS_BACKEND={backend}")
    assert "Traceback" not in done.stdout + done.stderr


def test_an_extra_is_complete_too_old_or_missing():
    lines = [
        "tensorflow>=2.18",
        "keras>=3.11",
        'tomli>=2; python_version < "3.11"',
        'onnx>=1.17; extra == "onnx"',
        'onnxruntime>=1.20.1; extra == "onnx"',
        "nncf>=3.0; extra == 'openvino'",
        'onnx>=1.17; extra == "openvino"',
        'ruff>=0.9; extra == "dev"',
    ]
    installed = {"tf-nightly": "2.23.0.dev20261026", "keras": "3.11", "onnx": "1.9.0"}
    installed["onnxruntime"] = "1.20.1"
    assert compare_requirements(lines, installed.get) == [
        ("-", "complete", "tensorflow 2.23.0.dev20261026 (>=2.18), keras 3.11 (>=3.11)"),
        ("onnx", "too old", "onnx 1.9.0 (>=1.17), onnxruntime 1.20.1 (>=1.20.1)"),
        ("openvino", "missing", "nncf missing (>=3.0), onnx 1.9.0 (>=1.17)"),
    ]
    assert set(environment.DEVELOPMENT) == OURS


def test_a_checkout_that_is_not_installed_has_no_extras(monkeypatch, capsys):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    environment.show_environment()
    printed = capsys.readouterr()
    assert "is not installed, so its extras are not known" in printed.err
    assert "extra" not in printed.out
