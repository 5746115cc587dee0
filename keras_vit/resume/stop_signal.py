"""SIGTERM, which schedulers send some seconds before they take a machine away."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from keras_vit.distribution.workers import Workers

EXIT_STATUS = 128 + signal.SIGTERM  # as a shell reports a process that SIGTERM ended


class StopSignal:
    """Remembers a SIGTERM that comes while `fit` runs.

    A second one, and one that comes outside of `fit`, does what it did before.

    Args:
        model: The model in whose `fit` the signal is remembered.
    """

    def __init__(self, model: Any):
        self._model = model
        self._former: Any = None
        self._is_watching = False
        self.came = False

    def watch(self) -> None:
        """Begins; elsewhere than in the main thread, where Python allows no handlers, it cannot."""
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGTERM, self._remember)
            self._is_watching = True

    def leave(self) -> None:
        """Ends, and lets SIGTERM do what it did before."""
        if self._is_watching:
            # None is a handler that was not set from Python, which cannot be set from here.
            signal.signal(signal.SIGTERM, self._former or signal.SIG_DFL)
            self._is_watching = False

    def _remember(self, number: int, frame: Any) -> None:
        if not self.came and _is_fitting(frame, self._model):
            self.came = True
            return
        self.leave()
        os.kill(os.getpid(), number)


def _is_fitting(frame: Any, model: Any) -> bool:
    """Whether `fit` is running: an exception may have ended it without a word to its callbacks."""
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            return True
        frame = frame.f_back
    return False


_STOP = 1 << 32  # more than the steps of a second
_SECONDS_BETWEEN_QUESTIONS = 1.0


class StopQuestion:
    """Asks all workers whether one of them has to stop: about once a second, as it takes time.

    Args:
        workers: The workers. One alone is asked at every step.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._due = 0
        self._last = (0, time.monotonic())

    def ask(self, steps: int, has_to_stop: bool, now: bool = False) -> bool:
        """Whether all workers are to stop after this step.

        Args:
            steps: Steps so far, the same in all workers.
            has_to_stop: Whether this worker has to.
            now: Whether to ask in any case; the same in all workers.
        """
        if self._workers.count == 1:
            return has_to_stop
        if steps < self._due and not now:
            return False
        before, then = self._last
        self._last = (steps, time.monotonic())
        pace = (steps - before) / max(self._last[1] - then, 1e-3)
        wish = max(1, int(pace * _SECONDS_BETWEEN_QUESTIONS))
        answers = self._workers.gather(has_to_stop * _STOP + wish)
        self._due = steps + min(answer % _STOP for answer in answers)
        return any(answer >= _STOP for answer in answers)
