"""The progress line of a download on standard error."""

from __future__ import annotations

import os
import sys
import time

from keras_vit.errors import printable

_MEBIBYTE = 1 << 20
_SECONDS_BETWEEN_UPDATES = 0.2


class ProgressLine:
    """Shows the progress of a download.

    A terminal shows one line that is updated; a log gets one line at the start and one at the end.

    Args:
        name: Name of the file.
    """

    def __init__(self, name: str) -> None:
        self.name = printable(name)
        self.stream = sys.stderr
        self.is_terminal = self.stream.isatty()
        self.started = self.shown = time.monotonic()
        self.start: int | None = None

    def update(self, done: int, total: int | None) -> None:
        """Reports that `done` bytes of `total`, which may be unknown, are downloaded."""
        now = time.monotonic()
        if self.start is None:
            self.started, self.start = now, done
            self._write(done, total, now, end="" if self.is_terminal else "\n")
        elif self.is_terminal and now - self.shown >= _SECONDS_BETWEEN_UPDATES:
            self._write(done, total, now, end="")

    def finish(self, done: int) -> None:
        """Reports the end of the download."""
        self._write(done, done, time.monotonic(), end="\n")

    def _write(self, done: int, total: int | None, now: float, end: str) -> None:
        self.shown = now
        of_all = f" of {total / _MEBIBYTE:.1f} MiB, {done / total:.0%}" if total else " MiB"
        text = f"{self.name}: {done / _MEBIBYTE:.1f}{of_all}"
        fetched = done - (self.start or 0)
        if fetched and now > self.started:
            text += f", {fetched / _MEBIBYTE / (now - self.started):.1f} MiB/s"
        if self.is_terminal:
            text = f"\r{text}\x1b[K"  # erases what a longer line left
        print(text, end=end, file=self.stream, flush=True)


def progress_line(name: str) -> ProgressLine | None:
    """The progress line of a file, unless `KERAS_VIT_PROGRESS=0` turns them off."""
    return None if os.environ.get("KERAS_VIT_PROGRESS") == "0" else ProgressLine(name)
