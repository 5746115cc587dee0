"""Fault-tolerant training: the callback that saves and restores the training state."""

from __future__ import annotations

import functools
import math
import os
import pathlib
import sys
from typing import Any

import keras
import numpy as np

from keras_vit.distribution.cluster import Workers
from keras_vit.errors import FolderInUseError
from keras_vit.resume import data_position, variables
from keras_vit.resume.folder_lock import FolderLock
from keras_vit.resume.state_folder import StateFolder
from keras_vit.resume.stop_signal import EXIT_STATUS, SharedStop, StopSignal, fits_in_other_thread
from keras_vit.runtime.private_names import EpochIterator, set_initial_epoch

LOCK = ".lock"  # file in the folder of states


class ResumeTraining(keras.callbacks.Callback):
    """Saves the training state, and continues from it when the same script runs again.

    A run that was killed and started again ends with the same weights, optimizer, random
    generators, metrics and history as an uninterrupted run: bit for bit, if the device repeats its
    results, as processors do. It continues at the same batch: earlier batches of the interrupted
    epoch are read again, but not trained on.

    The state is saved every `every_n_steps` steps and after each epoch. Files are written
    atomically and contain a digest: a damaged file is skipped with a warning, and the file before
    it is read. After the last epoch the state stays: another `fit` with the same folder does
    nothing, unless it has more epochs. Delete the folder to start again.

    SIGTERM saves the state after the current batch and ends the process with status 143. A loss
    that is not finite ends training with a `FloatingPointError`; such a state is never saved.

    Put the callback at the end of the list: then the changes that other callbacks make to weights
    and learning rate are saved too. The internal state of other callbacks, such as the patience of
    `keras.callbacks.EarlyStopping`, is not saved.

    Args:
        folder: Folder for the states of this run. All workers must share it.
        every_n_steps: Batches between two states, or `None` for one state per epoch.
        keep: States to keep, at least 2: what kills the run can damage the newest.

    Raises:
        ValueError: In `fit`, if the model was not built by this package or is not compiled, or if
            the order of the data cannot be repeated.
        FolderInUseError: In `fit`, if another run writes to the folder.
        StateMismatchError: In `fit`, if the folder holds the states of another model, optimizer,
            number of replicas or shape of the data; then nothing is changed.

    Example:
        model.fit(dataset, epochs=90, callbacks=[keras_vit.ResumeTraining("runs/first", 500)])
    """

    def __init__(
        self, folder: str | os.PathLike[str], every_n_steps: int | None = None, keep: int = 2
    ):
        super().__init__()
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(
                f"`every_n_steps` must be at least 1, or None. Received: {every_n_steps!r}."
            )
        if keep < 2:
            raise ValueError(f"`keep` must be at least 2. Received: keep={keep!r}.")
        self.folder = pathlib.Path(folder)
        self.every_n_steps = every_n_steps
        self.keep = keep

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        if keras.backend.backend() != "tensorflow" or not hasattr(self.model, "skip_batches"):
            raise ValueError(
                "ResumeTraining needs the TensorFlow backend and a `keras_vit.Model`. Received: "
                f"{type(self.model).__name__} on {keras.backend.backend()}. Make it with "
                "`keras_vit.Model(inputs, outputs)`."
            )
        epochs = EpochIterator.of_running_fit()
        data_position.check_repeatable(epochs)
        variables.build_everything(self.model, epochs.dataset.element_spec)
        self._data = data_position.DataPosition(epochs)
        self._variables = variables.find_variables(self.model)
        self._workers = Workers(self.model.distribute_strategy)
        in_use = functools.partial(fits_in_other_thread, self.model)
        self._lock = FolderLock(self.folder / LOCK, in_use)
        self._lock_folder()
        self._states = StateFolder(self.folder, self.keep, self._workers)
        self._epoch = self._steps = self._batches_to_skip = 0
        self._arrays: dict[str, np.ndarray] = {}  # to assign a second time
        self._history: dict[str, Any] = {"epochs": [], "logs": {}}
        self._is_complete = False
        self._last: pathlib.Path | None = None  # the file of the last good state
        self._stop = StopSignal(self.model)
        self._shared_stop = SharedStop(self._workers)
        found = self._states.read_newest()
        if found is not None:
            self._continue_from(*found)
        self._stop.watch()

    def _lock_folder(self) -> None:
        """Locks the folder, in the chief; all workers raise the error if it is in use."""
        problem = None
        if not self._workers.index:
            try:
                self._lock.acquire()
            except FolderInUseError as error:
                problem = error
        if any(self._workers.gather(problem is not None)):
            raise problem or FolderInUseError(f"{self.folder} is in use: see the log of worker 0.")

    def _continue_from(
        self, path: pathlib.Path, facts: dict[str, Any], arrays: dict[str, Any]
    ) -> None:
        """Continues a run from the state in a file."""
        variables.compare(facts["run"], self._describe_run(), path)
        variables.assign_arrays(self.model, self._variables, arrays)
        self._epoch, self._steps, self._last = facts["epoch"], facts["steps"], path
        self._history = facts["history"]
        epochs, batch = self.params["epochs"], facts["batch"]
        has_ended = epochs <= facts["epochs"]
        self._is_complete = facts["finished"] and has_ended
        if self._is_complete or self._epoch >= epochs or (facts.get("stopped") and has_ended):
            self._data.restore_end(facts["data"])
            self._arrays = arrays if self._is_complete else {}
            set_initial_epoch(self.model, epochs)
            self._say(f"Training is complete: {self._epoch} epochs, in {path}.")
            return
        self._data.restore(facts["data"])
        set_initial_epoch(self.model, self._epoch)
        self.model.skip_batches(batch)
        self._batches_to_skip, self._arrays = batch, arrays if batch else {}
        self._say(f"Continuing after {self._epoch} epochs and {batch} batches: {path}.")

    def _describe_run(self) -> dict[str, Any]:
        setup = {
            "replicas": self.model.distribute_strategy.num_replicas_in_sync,
            "workers": self._workers.count,
            "steps_per_execution": self.model.steps_per_execution,
            **self._data.describe(),
        }
        described = variables.describe_variables(self.model, self._variables)
        return {"setup": setup, "variables": described}

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        set_initial_epoch(self.model, None)  # otherwise every later `fit` starts there
        self._epoch = epoch
        self._restore_history()

    def _restore_history(self) -> None:
        """Adds the epochs of earlier processes to the history that `fit` returns."""
        if not self.model.history.epoch:
            self.model.history.epoch.extend(self._history["epochs"])
            logs = {name: list(values) for name, values in self._history["logs"].items()}
            self.model.history.history.update(logs)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._data.begin_batch()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        steps = self.model.steps_per_execution
        self._data.count(steps)
        if self._batches_to_skip:
            self._batches_to_skip -= steps
            if not self._batches_to_skip:  # again: other callbacks may have changed them
                variables.assign_arrays(self.model, self._variables, self._arrays)
                self._arrays = {}
            return
        self._steps += steps
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            self._fail(f"The loss is {loss}", batch)
        must_stop = self._shared_stop.ask(self._steps, self._stop.is_received)
        n = self.every_n_steps
        if must_stop or (n and self._steps // n > (self._steps - steps) // n):
            self._save(self._epoch, batch + 1)
        if must_stop:
            self._exit()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._history["epochs"].append(epoch)
        for name, value in (logs or {}).items():
            self._history["logs"].setdefault(name, []).append(float(value))
        self._save(epoch + 1, 0)
        if self._shared_stop.ask(self._steps, self._stop.is_received, now=True):
            self._exit()
        self._epoch = epoch + 1

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        self._restore_history()
        set_initial_epoch(self.model, None)
        if self._is_complete:  # Keras has just overwritten the weights with their averages
            variables.assign_arrays(self.model, self._variables, self._arrays)
        else:
            self._is_complete = True
            self._save(self._epoch, 0)
        self._stop.unwatch()
        self._lock.release()

    def _save(self, epoch: int, batch: int) -> None:
        own_only = self._workers.index > 0
        arrays = variables.read_arrays(self.model, self._variables, own_only)
        bad = variables.find_not_finite(self._variables, arrays)
        if any(self._workers.gather(len(bad))):
            self._fail(f"{', '.join(bad[:5]) or 'A weight'} is no longer finite", batch - 1)
        facts = {
            "epoch": epoch,
            "batch": batch,
            "steps": self._steps,
            "finished": self._is_complete,
            "stopped": bool(self.model.stop_training),  # by another callback, at this epoch
            "epochs": self.params["epochs"],
            "data": self._data.save(batch),
            "history": self._history,
            "run": self._describe_run(),
        }
        if self._last is not None and not self.folder.exists():
            self._say(f"{self.folder} has disappeared, and its states with it. It is made again.")
            self._lock.release()
            if not self._workers.index:
                self._lock.acquire()
        try:
            self._last = self._states.write((epoch, batch), facts, arrays)
        except OSError as error:
            self._stop.unwatch()
            raise OSError(
                error.errno,
                f"The training state cannot be written: {error.strerror or error}. The last one is "
                f"{self._last or 'missing'}. Make room, or make the folder writable; then the same "
                "command continues from there.",
            ) from error

    def _fail(self, problem: str, batch: int) -> None:
        self._stop.unwatch()
        last = self._last or "no file: training had just started"
        raise FloatingPointError(
            f"{problem} after step {self._steps} (epoch {self._epoch + 1}, batch {batch + 1} of "
            f"it). The last good state is in {last}. From there the same script fails in "
            "the same way: look at the images of that batch, clip the gradients (`global_clipnorm` "
            "of the optimizer), or start in another folder with a lower learning rate."
        )

    def _exit(self) -> None:
        """Ends the process after SIGTERM, which the command line also makes of Ctrl-C."""
        self._say(f"Stopped: the state is in {self._last}. Run the same command to continue.")
        self._stop.unwatch()
        self._lock.release()
        raise SystemExit(EXIT_STATUS)

    def _say(self, text: str) -> None:
        if not self._workers.index:
            print(text, file=sys.stderr, flush=True)
