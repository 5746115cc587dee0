"""SIGTERM, which schedulers send some seconds before they take a machine away."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

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
