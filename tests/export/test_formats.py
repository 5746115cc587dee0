"""The table of export formats."""

from __future__ import annotations

import dataclasses

import pytest

from keras_vit.export.formats import FORMATS, PRECISIONS, RUNTIMES, find_format
from keras_vit.train.runs import find_exporter


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda format: format.name)
def test_rows_name_functions_and_known_precisions(format):
    assert format.export.__name__ == f"export_{format.name}"
    assert format.load.__name__ == f"load_{format.name}"
    assert {*format.roundings, *format.calibrated} <= set(format.tolerances)
    for name, runtime in format.runtimes.items():
        assert name in RUNTIMES and set(runtime.precisions) <= set(PRECISIONS)
        assert set(runtime.precisions) <= set(format.tolerances)


def test_a_row_is_a_format(monkeypatch, tmp_path):
    row = dataclasses.replace(
        FORMATS["onnx"], name="made", is_file=lambda head, suffix: (head, suffix) == (b"M", ".made")
    )
    monkeypatch.setitem(FORMATS, "made", row)
    (tmp_path / "a.made").write_bytes(b"M")
    assert find_format(tmp_path / "a.made") == "made"
    assert find_exporter("made") is FORMATS["onnx"].export
