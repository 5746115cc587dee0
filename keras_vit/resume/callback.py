"""Training that goes on where it was broken off, as if it had not been."""

from __future__ import annotations

import math
import os
import pathlib
import sys
from typing import Any

import keras

from keras_vit.distribution.workers import Workers
from keras_vit.resume import data_position, variables
from keras_vit.resume.state_folder import StateFolder
from keras_vit.resume.stop_signal import EXIT_STATUS, StopQuestion, StopSignal


class ResumeTraining(keras.callbacks.Callback):
    """Saves all that training changes, and goes on from it when the same script runs again.

    A run that was killed, started again by the same command, ends with the same weights,
    optimizer, random generators, metrics and history as one that was not, bit for bit where the
    device computes the same twice, as processors do. It goes on at the same batch: batches of
    the epoch that it broke off in are read again, not trained on.

    State is saved every so many steps and after each epoch, in files that are written whole or
    not at all and that carry a digest: a damaged one is left out, with a warning, for the one
    before. After the last epoch the state stays: another `fit` into the same folder has nothing
    left to do, unless it has more epochs. Delete the folder to begin anew.

    SIGTERM saves the state after the batch that is running and ends the process with status 143.
    A loss that is not a number ends training with a `FloatingPointError`; such a state is never
    saved.

    The callback belongs at the end of the list: what other callbacks do to weights and learning
    rate is then saved with it. Their own memory, such as the patience of
    `keras.callbacks.EarlyStopping`, begins anew in each process.

    Args:
        folder: Where to keep the states of this one run. Workers must share it.
        every_n_steps: Batches between two states, or `None` for one state an epoch.
        keep: States to keep, at least 2: the newest may be torn by what kills the run.

    Raises:
        ValueError: In `fit`, if the model was not built by this package or is not compiled, or if
            the order of the data cannot be repeated.
        StateMismatchError: In `fit`, if the folder holds the states of another model, optimizer,
            number of replicas or shape of the data; nothing is changed then.

    Example:
        model.fit(dataset, epochs=90, callbacks=[keras_vit.ResumeTraining("runs/first", 500)])
    """

    def __init__(self, folder: str | os.PathLike, every_n_steps: int | None = None, keep: int = 2):
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

    def on_train_begin(self, logs=None):
        if keras.backend.backend() != "tensorflow" or not hasattr(self.model, "skip_batches"):
            raise ValueError(
                "ResumeTraining needs the TensorFlow backend and a `keras_vit.Model`. Received: "
                f"{type(self.model).__name__} on {keras.backend.backend()}. Make it with "
                "`keras_vit.Model(inputs, outputs)`."
            )
        epochs = data_position.find_epochs()
        data_position.check_repeatable(epochs)
        variables.build_everything(self.model, epochs._distributed_dataset.element_spec)
        self._data = data_position.DataPosition(epochs)
        self._variables = variables.find_variables(self.model)
        self._workers = Workers(self.model.distribute_strategy)
        self._states = StateFolder(self.folder, self.keep, self._workers)
        self._epoch = self._steps = self._left_out = 0
        self._arrays = None  # to be put back once more
        self._history = {"epochs": [], "logs": {}}
        self._is_complete = False
        self._last = None  # the file of the last good state
        self._stop = StopSignal(self.model)
        self._question = StopQuestion(self._workers)
        found = self._states.read_newest()
        if found is not None:
            self._go_on(*found)
        self._stop.watch()

    def _go_on(self, path: pathlib.Path, facts: dict, arrays: dict) -> None:
        """Takes up a run at the state of a file."""
        variables.compare(facts["run"], self._describe_run(), path)
        variables.assign_arrays(self.model, self._variables, arrays)
        self._epoch, self._steps, self._last = facts["epoch"], facts["steps"], path
        self._history = facts["history"]
        epochs, batch = self.params["epochs"], facts["batch"]
        self._is_complete = facts["finished"] and epochs <= facts["epochs"]
        if self._is_complete or self._epoch >= epochs:
            self._data.leave(facts["data"])
            self._arrays = arrays if self._is_complete else None
            self.model._initial_epoch = epochs
            self._say(f"Training is complete: {self._epoch} epochs, in {path}.")
            return
        self._data.restore(facts["data"])
        self.model._initial_epoch = self._epoch
        self.model.skip_batches(batch)
        self._left_out, self._arrays = batch, arrays if batch else None
        self._say(f"Going on after {self._epoch} epochs and {batch} batches: {path}.")

    def _describe_run(self) -> dict[str, Any]:
        setup = {
            "replicas": self.model.distribute_strategy.num_replicas_in_sync,
            "workers": self._workers.count,
            "steps_per_execution": self.model.steps_per_execution,
            **self._data.describe(),
        }
        return {
            "setup": setup,
            "variables": variables.describe_variables(self.model, self._variables),
        }

    def on_epoch_begin(self, epoch, logs=None):
        self.model._initial_epoch = None  # Keras would begin every later `fit` there
        self._epoch = epoch
        self._restore_history()

    def _restore_history(self) -> None:
        """Lets `fit` return the epochs before this process, too."""
        if not self.model.history.epoch:
            self.model.history.epoch.extend(self._history["epochs"])
            logs = {name: list(values) for name, values in self._history["logs"].items()}
            self.model.history.history.update(logs)

    def on_train_batch_begin(self, batch, logs=None):
        self._data.begin_batch()

    def on_train_batch_end(self, batch, logs=None):
        steps = self.model.steps_per_execution
        self._data.count(steps)
        if self._left_out:
            self._left_out -= steps
            if not self._left_out:  # again: callbacks may have acted on batches left out
                variables.assign_arrays(self.model, self._variables, self._arrays)
                self._arrays = None
            return
        self._steps += steps
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            self._fail(f"The loss is {loss}", batch)
        is_asked = self._question.ask(self._steps, self._stop.came)
        n = self.every_n_steps
        if is_asked or (n and self._steps // n > (self._steps - steps) // n):
            self._save(self._epoch, batch + 1)
        if is_asked:
            self._leave()

    def on_epoch_end(self, epoch, logs=None):
        self._history["epochs"].append(epoch)
        for name, value in (logs or {}).items():
            self._history["logs"].setdefault(name, []).append(float(value))
        self._save(epoch + 1, 0)
        if self._question.ask(self._steps, self._stop.came, now=True):
            self._leave()
        self._epoch = epoch + 1

    def on_train_end(self, logs=None):
        self._restore_history()
        self.model._initial_epoch = None
        if self._is_complete:  # Keras has just put averages in place of the weights
            variables.assign_arrays(self.model, self._variables, self._arrays)
        else:
            self._is_complete = True
            self._save(self._epoch, 0)
        self._stop.leave()

    def _save(self, epoch: int, batch: int) -> None:
        own_only = self._workers.index > 0
        arrays = variables.read_arrays(self.model, self._variables, own_only)
        bad = variables.find_not_finite(self._variables, arrays)
        if any(self._workers.gather(len(bad))):
            self._fail(f"{', '.join(bad[:5]) or 'A weight'} is not finite any more", batch - 1)
        facts = {
            "epoch": epoch,
            "batch": batch,
            "steps": self._steps,
            "finished": self._is_complete,
            "epochs": self.params["epochs"],
            "data": self._data.save(batch),
            "history": self._history,
            "run": self._describe_run(),
        }
        self._last = self._states.write((epoch, batch), facts, arrays)

    def _fail(self, problem: str, batch: int) -> None:
        self._stop.leave()
        last = self._last or "no file: training had just begun"
        raise FloatingPointError(
            f"{problem} after step {self._steps} (epoch {self._epoch + 1}, batch {batch + 1} of "
            f"it). The last good state is in {last}. From there the same script meets the same "
            "end: look at the images of that batch, clip the gradients (`global_clipnorm` of the "
            "optimizer), or begin in another folder with a lower learning rate."
        )

    def _leave(self) -> None:
        """Ends the process after SIGTERM."""
        self._say(f"SIGTERM: the state is in {self._last}. Run the same command to go on.")
        self._stop.leave()
        raise SystemExit(EXIT_STATUS)

    def _say(self, text: str) -> None:
        if not self._workers.index:
            print(text, file=sys.stderr, flush=True)
