"""The README's code runs and prints what the README shows, and its table is generated."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.data.pictures import write_folder

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# A small model with random weights takes the place of the published ones, which need a network.
SMALL = {
    'ViTS16(weights="augreg_in21k",': "ViTTi16(input_shape=(32, 32, 3), depth=1,",
    "batch_size=64": "batch_size=4",
    "epochs=5": "epochs=1",
}


def test_code_runs_and_prints_the_output_below_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "photos", count=10, size=(32, 32))
    examples = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, re.DOTALL)
    assert len(examples) == 3
    for old in SMALL:
        assert old in README, old
    namespace: dict = {}
    printed = []
    for code, expected in examples:
        for old, new in SMALL.items():
            code = code.replace(old, new)
        exec(code, namespace)
        printed.append(capsys.readouterr().out)
        assert not expected or printed[-1] == expected
    assert "accuracy" in printed[0]  # of `fit`
    assert printed[1].count("top-1") == 4  # four reports
    names = {path.name for path in tmp_path.iterdir()}
    assert {"pets.keras", "pets.tflite", "pets.onnx"} < names
    assert (tmp_path / "serving/pets/1/saved_model.pb").exists()


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
