"""Tests the progress bar of the command line."""

from __future__ import annotations

import sys

from keras_vit.cli.progress import show_progress


def test_files_and_pipes_get_no_progress_bar(monkeypatch):
    for is_terminal, expected in ((False, (0, 2)), (True, (1, 1))):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)  # noqa: B023
        assert tuple(show_progress(False, verbose).verbose for verbose in (False, True)) == expected
