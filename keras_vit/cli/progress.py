"""Progress of `keras-vit train`, and its reaction to Ctrl-C."""

from __future__ import annotations

import contextlib
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

_LINE_SECONDS = 60.0


class Progress(NamedTuple):
    """Chooses how `fit` reports progress: its argument `verbose`, and callbacks that print."""

    verbose: int
    callbacks: list[keras.callbacks.Callback]

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is printed."""
        return not self.verbose and not self.callbacks


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
    """Prints one line after every epoch, one a minute in longer ones, and the time of the rest."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._start = self._said = time.perf_counter()
        self._name = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._epochs = self.params["epochs"] - epoch  # with this one

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        now, steps = time.perf_counter(), self.params.get("steps")
        if now - self._said < _LINE_SECONDS or batch + 1 == steps:
            return
        self._said = now
        text = f"{self._name}  step {batch + 1:,}"
        if steps:
            each = (now - self._start) / (batch + 1)
            left = duration_text(each * (self._epochs * steps - batch - 1))
            text += f" of {steps:,}, about {left} left"
        say(text)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        values = "  ".join(f"{name} {value:.4f}" for name, value in (logs or {}).items())
        seconds = time.perf_counter() - self._start
        left = seconds * (self._epochs - 1)
        rest = f", about {duration_text(left)} left" if left else ""
        say(f"{self._name}  {values}  {seconds:.1f} s{rest}")


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
        signal.raise_signal(signal.SIGTERM)

    former = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except SystemExit as stop:
        if interrupted and stop.code == EXIT_STATUS:
            raise SystemExit(INTERRUPTED) from None
        raise
    finally:
        signal.signal(signal.SIGINT, former)
