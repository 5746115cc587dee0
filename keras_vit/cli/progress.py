"""Progress of `keras-vit train`, and its reaction to Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import keras

from keras_vit.cli.main import INTERRUPTED
from keras_vit.cli.output import complain, say
from keras_vit.progress import duration_text
from keras_vit.resume.stop_signal import EXIT_STATUS


class Progress(NamedTuple):
    """Chooses how `fit` reports progress: its argument `verbose`, and callbacks that print."""

    verbose: int
    callbacks: list[keras.callbacks.Callback]


def show_progress(quiet: bool, verbose: bool) -> Progress:
    """A progress bar in a terminal, one line an epoch in a file or pipe, nothing with --quiet."""
    if quiet:
        if verbose:
            raise ValueError("--quiet and --verbose exclude each other. Pass one of them.")
        return Progress(0, [])
    if sys.stdout.isatty():
        return Progress(1, [])
    if verbose:
        return Progress(2, [])  # a progress bar writes control characters
    return Progress(0, [PrintEpochs()])


class PrintEpochs(keras.callbacks.Callback):
    """Prints one line after every epoch, with the time of the rest at the speed of this one."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        values = "  ".join(f"{name} {value:.4f}" for name, value in (logs or {}).items())
        seconds = time.perf_counter() - self._start
        left = seconds * (self.params["epochs"] - epoch - 1)
        rest = f", about {duration_text(left)} left" if left else ""
        say(f"epoch {epoch + 1}/{self.params['epochs']}  {values}  {seconds:.1f} s{rest}")


@contextlib.contextmanager
def save_when_interrupted() -> Iterator[None]:
    """Turns the first Ctrl-C into SIGTERM, at which `ResumeTraining` saves; a second one ends.

    Raises:
        SystemExit: With the status of an interrupted process, after the state was saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, former)
        interrupted.append(number)
        complain(
            "\nCtrl-C: saving after this batch. Press it again to end at once, without saving."
        )
        os.kill(os.getpid(), signal.SIGTERM)

    former = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except SystemExit as stop:
        if interrupted and stop.code == EXIT_STATUS:
            raise SystemExit(INTERRUPTED) from None
        raise
    finally:
        signal.signal(signal.SIGINT, former)
