"""Learning rate schedules with linear warm-up, and one that follows a time limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras.optimizers import schedules


@keras.saving.register_keras_serializable("keras_vit")
class WarmUp(schedules.LearningRateSchedule):
    """Linear warm-up before a schedule of Keras.

    The learning rate of step `t` is `schedule(0) * t / steps` for `t < steps`, and
    `schedule(t - steps)` afterwards. As in the official code, the first step has a rate of zero.

    Args:
        schedule: A `keras.optimizers.schedules.LearningRateSchedule`.
        steps: Steps of warm-up, 0 for none.
    """

    def __init__(self, schedule: schedules.LearningRateSchedule, steps: int):
        self.schedule = schedule
        self.steps = steps

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        t = keras.ops.cast(step, "float32")
        rate = self.schedule(keras.ops.maximum(t - self.steps, 0.0))
        rise = keras.ops.minimum(t / max(self.steps, 1), 1.0)
        return rate * (rise if self.steps else 1.0)

    def get_config(self) -> dict[str, Any]:
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "steps": self.steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WarmUp:
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["steps"])


@keras.saving.register_keras_serializable("keras_vit")
class Paced(schedules.LearningRateSchedule):
    """A schedule that training with a time limit moves forward where steps take too long.

    The learning rate of step `t` is `schedule(max(t, pace))`. The variable `pace`, at first 0, is
    not saved.

    Args:
        schedule: A `keras.optimizers.schedules.LearningRateSchedule`.
    """

    def __init__(self, schedule: schedules.LearningRateSchedule):
        self.schedule = schedule
        self.pace = keras.Variable(0.0, trainable=False, name="pace")

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        return self.schedule(keras.ops.maximum(keras.ops.cast(step, "float32"), self.pace))

    def get_config(self) -> dict[str, Any]:
        return {"schedule": keras.saving.serialize_keras_object(self.schedule)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Paced:
        return cls(keras.saving.deserialize_keras_object(config["schedule"]))


def decay_after_warmup(
    kind: str, rate: float, steps: int, warmup_steps: int, end: float, drops: Sequence[float]
) -> schedules.LearningRateSchedule:
    """A decay of Keras after linear warm-up.

    Args:
        kind: `"cosine"` (`end + (rate - end) / 2 * (1 + cos(pi * progress))`), `"linear"`, as in
            the official code, or `"staircase"`, as in BiT, which divides the rate by ten at given
            points.
        rate: Peak learning rate.
        steps: Steps of the run, warm-up included.
        warmup_steps: Steps of warm-up.
        end: Final learning rate of `"cosine"` and `"linear"`.
        drops: Shares of the steps after which `"staircase"` divides the rate, such as
            `(0.3, 0.6, 0.9)`.

    Returns:
        A `CosineDecay` of Keras, which has a warm-up of its own, or a `WarmUp` with another one.

    Raises:
        ValueError: If the warm-up has as many steps as the run.
    """
    if not 0 <= warmup_steps < steps:
        raise ValueError(
            "The schedule needs more steps than its warm-up. Received: "
            f"steps={steps}, warmup_steps={warmup_steps}."
        )
    rest = steps - warmup_steps
    if kind == "cosine":
        warmup = {"warmup_target": rate, "warmup_steps": warmup_steps} if warmup_steps else {}
        return schedules.CosineDecay(0.0 if warmup else rate, rest, alpha=end / rate, **warmup)
    if kind == "linear":
        return WarmUp(schedules.PolynomialDecay(rate, rest, end), warmup_steps)
    boundaries = [float(round(share * steps) - warmup_steps) for share in drops]
    values = [rate / 10**n for n in range(len(drops) + 1)]
    return WarmUp(schedules.PiecewiseConstantDecay(boundaries, values), warmup_steps)
