"""Callbacks of training runs that `ResumeTraining` continues: early stopping, averaged weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.checks import check_choice
from keras_vit.train.tasks import Monitor


class EarlyStopping(keras.callbacks.Callback):
    """Stops after epochs without a better validation metric, also in a run that continues.

    It stops at the epoch of `keras.callbacks.EarlyStopping(patience=...)`, which forgets earlier
    epochs when a run continues. This callback counts them in `model.history`, which
    `ResumeTraining` restores. Put it before `ResumeTraining` in the list. The weights stay those
    of the last epoch.

    Args:
        patience: Epochs without a better value.
        monitor: Name of a metric.
        mode: `"max"` if its greatest value is the best, `"min"` for the smallest.

    Attributes:
        first_epoch: The first epoch to count: with progressive image sizes, of the present size.

    Raises:
        ValueError: If `mode` is unknown; in `fit`, if there is no such metric.
    """

    def __init__(self, patience: int, monitor: str = "val_accuracy", mode: str = "max"):
        super().__init__()
        check_choice("mode", mode, ("max", "min"))
        self.patience = patience
        self.monitor = monitor
        self.mode = mode
        self.first_epoch = 0

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if self.monitor not in (logs or {}):
            raise ValueError(
                f"Early stopping needs {self.monitor}. Received: {', '.join(logs or {})}. Pass "
                "validation images, or set early_stopping=0."
            )
        earlier = self.model.history.history.get(self.monitor, [])
        values = [*earlier, (logs or {})[self.monitor]][self.first_epoch :]
        waited = len(values) - 1 - Monitor(self.monitor, self.mode).best_of(values)
        if waited >= self.patience:
            self.model.stop_training = True


class EvaluateAverages(keras.callbacks.Callback):
    """Validates the averaged weights of an optimizer with `use_ema`, which `fit` ends with.

    Keras validates the weights of the last step. `keras.callbacks.SwapEMAWeights` validates the
    averages, but adds and subtracts to swap them, and so rounds the weights.
    """

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(averaged_weights(self.model))

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        self._stack.close()


def last_weights(model: keras.Model) -> tuple[keras.callbacks.Callback, keras.callbacks.Callback]:
    """Two callbacks with which `fit` ends with the weights of the last step, not their averages.

    Keras replaces the weights of an optimizer with `use_ema` before `on_train_end`. The first
    callback stands before `ResumeTraining`, which saves the weights there, and the second behind
    it, because it also changes them before the first step.
    """
    kept: list[np.ndarray] = []

    def keep(*_: Any, **__: Any) -> None:
        kept[:] = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]

    def put_back(*_: Any, **__: Any) -> None:
        for variable, value in zip(model.trainable_variables, kept, strict=True):
            variable.assign(value)

    ends = keras.callbacks.LambdaCallback
    return ends(on_train_end=put_back), ends(on_train_begin=keep, on_epoch_end=keep)


@contextlib.contextmanager
def averaged_weights(model: keras.Model) -> Iterator[None]:
    """Gives a model the averaged weights of its optimizer for a while, if it has any."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not getattr(optimizer, "use_ema", False):
        yield
        return
    with restored(model.trainable_variables):
        model.optimizer.finalize_variable_values(model.trainable_variables)
        yield


@contextlib.contextmanager
def restored(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Gives variables the values back that they have now, when the block ends."""
    before = [keras.ops.convert_to_numpy(variable) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
