"""Ctrl-C during training: the state is saved first, as for SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from keras_vit.resume.stop_signal import EXIT_STATUS

INTERRUPTED = 128 + signal.SIGINT  # as a shell reports a process that Ctrl-C ended


@contextlib.contextmanager
def saves_when_interrupted(command: str) -> Iterator[None]:
    """Turns the first Ctrl-C into SIGTERM, for which `ResumeTraining` saves; a second one ends.

    Args:
        command: What goes on with the run, for the message.

    Raises:
        SystemExit: With the status of an interrupted process, after the state was saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, former)
        came.append(number)
        _say("Ctrl-C: saving after this batch. Press it again to end at once, without saving.")
        os.kill(os.getpid(), signal.SIGTERM)

    former = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except SystemExit as stop:
        if came and stop.code == EXIT_STATUS:
            _say(f"Go on with the same command:\n  {command}")
            raise SystemExit(INTERRUPTED) from None
        raise
    finally:
        signal.signal(signal.SIGINT, former)


def _say(text: str) -> None:
    print(f"\n{text}", file=sys.stderr, flush=True)
