"""Progress of long tasks over many files, in lines on standard error."""

from __future__ import annotations

import os
import sys
import time

_FIRST = 5  # seconds; most tasks end earlier, without a line
_LONGEST = 60  # seconds between two lines


class Progress:
    """Prints how many files are done and how long the rest will take, in terminals and in pipes.

    The first line is printed after five seconds, further ones when another half of the time has
    passed, at least every minute. `KERAS_VIT_PROGRESS=0` turns them off.

    Args:
        task: What is done, such as `"check"`.
        total: Number of files.
    """

    def __init__(self, task: str, total: int) -> None:
        self.task, self.total = task, total
        self._start = time.monotonic()
        self._next = float("inf") if os.environ.get("KERAS_VIT_PROGRESS") == "0" else _FIRST

    def update(self, done: int) -> None:
        """Reports that `done` files are done."""
        seconds = time.monotonic() - self._start
        if seconds < self._next or not 0 < done < self.total:
            return
        self._next = seconds + min(_LONGEST, seconds / 2)
        left = seconds * (self.total - done) / done
        text = f"{left:.0f} seconds" if left < 120 else f"{left / 60:.0f} minutes"
        print(
            f"{self.task}: {done:,} of {self.total:,} files, about {text} left",
            file=sys.stderr,
            flush=True,
        )
