"""Tests the progress bar of the command line."""

from __future__ import annotations

import sys

from keras_vit.cli import progress as module
from keras_vit.cli.progress import PrintEpochs, show_progress


def test_files_and_pipes_get_no_progress_bar(monkeypatch):
    for is_terminal, expected in ((False, (0, 2)), (True, (1, 1))):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)  # noqa: B023
        assert tuple(show_progress(False, verbose).verbose for verbose in (False, True)) == expected


def test_lines_say_how_long_the_rest_takes(monkeypatch, capsys):
    clock = iter([0.0, 30.0, 70.0, 100.0, 120.0, 130.0, 135.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    callback = PrintEpochs()
    callback.set_params({"epochs": 10, "steps": 3})
    callback.on_epoch_begin(7)
    for batch in range(3):
        callback.on_train_batch_end(batch)
    callback.on_epoch_end(7, {"loss": 0.5})
    callback.on_epoch_begin(9)
    callback.on_epoch_end(9, {"loss": 0.5})
    assert capsys.readouterr().out.splitlines() == [
        "epoch 8/10  step 2 of 3, about 4 minutes left",
        "epoch 8/10  loss 0.5000  120.0 s, about 4 minutes left",
        "epoch 10/10  loss 0.5000  5.0 s",
    ]
