"""Progress of long tasks, in lines on standard error: in terminals, files and pipes alike.

Texts of durations and tables, too.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from keras_vit.errors import printable

_FIRST = 5.0  # seconds; most tasks end earlier, without a line
_LONGEST = 60.0  # seconds between two lines
_Input = TypeVar("_Input")
_Result = TypeVar("_Result")
_TASKS = threading.local()  # the tasks of a thread, the innermost last


class Progress:
    """Prints how far a task is, how long it has taken and how long the rest will take.

    A context manager. A thread prints the first line after five seconds, further ones when another
    half of the time has passed, at least every minute: also while one long step runs, and when the
    first of several units is done, from which the time left is known. A task within another prints
    no lines of its own; what it does stands in those of the other.

    Args:
        task: What is done, such as `"features of photos"`.
        total: Number of units, or `None` if it is not known.
        unit: Name of the units.
        verbose: Whether lines are printed; `KERAS_VIT_PROGRESS=0` turns all off.
        done: Units that were done before.
        plan: What will be done, with how many units and which memory; printed at the start.

    Example:

    >>> with Progress("features of photos", total=2, unit="images") as progress:
    ...     progress.update(1)
    """

    def __init__(
        self,
        task: str,
        total: int | None,
        unit: str = "files",
        verbose: bool | int = True,
        done: int = 0,
        plan: str = "",
    ) -> None:
        self.task, self.total, self.unit, self.verbose = task, total, unit, verbose
        self.done, self.doing, self.plan = done, "", plan
        self.inner: Progress | None = None
        self._before, self._is_even = done, True
        self._start = time.monotonic()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        tasks = _TASKS.__dict__.setdefault("tasks", [])
        if tasks:
            tasks[-1].inner = self
        elif self.verbose and os.environ.get("KERAS_VIT_PROGRESS") != "0":
            self._thread = threading.Thread(target=self._print_lines, daemon=True)
            self._thread.start()
            if self.plan:
                _print(printable(f"{self.task}: {self.plan}"))
        tasks.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        tasks = _TASKS.tasks
        tasks.remove(self)
        if tasks:
            tasks[-1].inner = None
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def update(self, done: int, doing: str = "") -> None:
        """Reports how many units are done, and what comes now."""
        is_first = self._is_even and self.done == self._before < done
        self.done, self.doing = done, doing
        if is_first and self._thread and time.monotonic() - self._start >= _FIRST:
            _print(self.line())

    def step(self, doing: str) -> None:
        """Reports the next of some steps, which take unlike times; the one before is done."""
        self._is_even = False
        self.update(self.done + bool(self.doing), doing)

    def line(self) -> str:
        """What is printed now."""
        seconds = time.monotonic() - self._start
        parts, task = [], self
        while True:
            of_all = "" if task.total is None else f" of {task.total:,}"
            doing = f", now {task.doing}" if task.doing else ""
            parts.append(f"{task.task}: {task.done:,}{of_all} {task.unit}{doing}")
            if task.inner is None:
                break
            task = task.inner
        text = f"{'; '.join(parts)}, {duration_text(seconds)} so far"
        done = self.done - self._before
        if self._is_even and self.total is not None and done:
            left = seconds * (self.total - self.done) / done
            text += f", about {duration_text(left)} left"
        return printable(text)

    def _print_lines(self) -> None:
        wait = _FIRST
        while not self._end.wait(wait):
            _print(self.line())
            wait = min(_LONGEST, max(_FIRST, (time.monotonic() - self._start) / 2))


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def duration_text(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3_600:,.1f} hours"


def map_threads(
    function: Callable[[_Input], _Result],
    inputs: Sequence[_Input],
    task: str,
    unit: str = "files",
    threads: int | None = None,
    at_once: int = 1,
) -> list[_Result]:
    """Applies a function in several threads, and reports how far it is.

    Args:
        function: The function; after its first error no other call begins.
        inputs: Its inputs.
        task: As for `Progress`.
        unit: Name of the inputs, as for `Progress`.
        threads: How many; `None` takes as many as there are processors.
        at_once: Inputs of one thread between two reports.
    """
    chunks = [inputs[start : start + at_once] for start in range(0, len(inputs), at_once)]
    results: list[_Result] = []
    with (
        Progress(task, len(inputs), unit) as progress,
        concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count()) as pool,
    ):
        try:
            for found in pool.map(lambda chunk: [function(each) for each in chunk], chunks):
                results += found
                progress.update(len(results))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def align_columns(rows: Iterable[Sequence[str]]) -> str:
    """A table as lines of text, its columns aligned; control characters in cells are escaped."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (map(str.ljust, row, widths) for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in lines)
