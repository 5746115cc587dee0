"""SIGTERM, which schedulers send some seconds before they stop a machine."""

from __future__ import annotations

import inspect
import signal
import threading
import time
import types
from typing import Any

import keras

from keras_vit.distribution.cluster import Workers
from keras_vit.runtime.private_names import frames_of_other_threads

EXIT_STATUS = 128 + signal.SIGTERM  # as a shell reports a process that SIGTERM ended


class StopSignal:
    """Records a SIGTERM that is received while `fit` runs.

    A second SIGTERM, or one outside of `fit`, has its former effect.

    Args:
        model: The model that is trained.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._former: Any = None
        self._is_watching = False
        self.is_received = False

    def watch(self) -> None:
        """Installs the handler; Python allows that in the main thread alone."""
        if threading.current_thread() is threading.main_thread():
            former = signal.signal(signal.SIGTERM, self._record)
            other = getattr(former, "__self__", None)
            if isinstance(other, StopSignal) and not _is_fitting(
                inspect.currentframe(), other._model
            ):
                former = other._former  # of a `fit` that failed: nothing called `unwatch`
            self._former, self._is_watching = former, True

    def unwatch(self) -> None:
        """Restores the former handler of SIGTERM."""
        if self._is_watching:
            # None stands for a handler that Python did not set and cannot set again.
            signal.signal(signal.SIGTERM, self._former or signal.SIG_DFL)
            self._is_watching = False

    def _record(self, number: int, frame: types.FrameType | None) -> None:
        if not self.is_received and _is_fitting(frame, self._model):
            self.is_received = True
            return
        self.unwatch()
        signal.raise_signal(number)  # to this thread: it has its effect before the next line


def fits_in_other_thread(model: keras.Model) -> bool:
    """Tells whether `fit` of a model is running in another thread than this one."""
    return any(_is_fitting(frame, model) for frame in frames_of_other_threads())


def _is_fitting(frame: types.FrameType | None, model: keras.Model) -> bool:
    """Tells whether `fit` is running: an exception ends it without a call of its callbacks."""
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            return True
        frame = frame.f_back
    return False


_STOP = 1 << 32  # more than the steps per second
_SECONDS_BETWEEN_GATHERS = 1.0


class SharedStop:
    """Shares a stop request with all workers, about once a second.

    Args:
        workers: The workers. A single one is asked at every step.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._next_gather = 0
        self._last = (0, time.monotonic())

    def ask(self, steps: int, has_to_stop: bool, now: bool = False) -> bool:
        """Tells whether all workers must stop after this step.

        Args:
            steps: Steps so far, the same in all workers.
            has_to_stop: Whether this worker must stop.
            now: Whether to ask at this step in any case; the same in all workers.
        """
        if self._workers.count == 1:
            return has_to_stop
        if steps < self._next_gather and not now:
            return False
        before, then = self._last
        self._last = (steps, time.monotonic())
        steps_per_second = (steps - before) / max(self._last[1] - then, 1e-3)
        interval = max(1, int(steps_per_second * _SECONDS_BETWEEN_GATHERS))
        answers = self._workers.gather(has_to_stop * _STOP + interval)
        self._next_gather = steps + min(answer % _STOP for answer in answers)
        return any(answer >= _STOP for answer in answers)
