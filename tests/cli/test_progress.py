"""Tests the progress bar of the command line."""

from __future__ import annotations

import sys

from keras_vit.cli import progress as module
from keras_vit.cli.progress import PrintEpochs, show_progress


def test_files_and_pipes_get_no_progress_bar(monkeypatch):
    for is_terminal, expected in ((False, (0, 2)), (True, (1, 1))):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)  # noqa: B023
        assert tuple(show_progress(False, verbose).verbose for verbose in (False, True)) == expected


def test_the_line_of_an_epoch_says_how_long_the_rest_takes(monkeypatch, capsys):
    clock = iter([0.0, 30.0, 40.0, 45.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    callback = PrintEpochs()
    callback.set_params({"epochs": 10})
    for epoch in (7, 9):
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, {"loss": 0.5})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "epoch 8/10  loss 0.5000  30.0 s, about 60 seconds left"
    assert lines[1] == "epoch 10/10  loss 0.5000  5.0 s"
