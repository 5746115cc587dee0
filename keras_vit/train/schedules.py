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


def cosine(
    rate: float, steps: int, warmup_steps: int = 0, end: float = 0.0
) -> schedules.LearningRateSchedule:
    """Cosine decay of Keras, `end + (rate - end) / 2 * (1 + cos(pi * progress))`, after warm-up.

    Args:
        rate: Peak learning rate.
        steps: Steps of the run, warm-up included.
        warmup_steps: Steps of warm-up.
        end: Final learning rate.

    Returns:
        A schedule of Keras.
    """
    _check(steps, warmup_steps)
    if not warmup_steps:
        return schedules.CosineDecay(rate, steps, alpha=end / rate)
    return schedules.CosineDecay(
        0.0,
        steps - warmup_steps,
        alpha=end / rate,
        warmup_target=rate,
        warmup_steps=warmup_steps,
    )


def linear(
    rate: float, steps: int, warmup_steps: int = 0, end: float = 1e-5
) -> schedules.LearningRateSchedule:
    """Linear decay from `rate` to `end` after warm-up, as in the official code.

    Args:
        rate: Peak learning rate.
        steps: Steps of the run, warm-up included.
        warmup_steps: Steps of warm-up.
        end: Final learning rate, 1e-5 in the official code.

    Returns:
        A schedule of Keras in a `WarmUp`.
    """
    _check(steps, warmup_steps)
    return WarmUp(schedules.PolynomialDecay(rate, steps - warmup_steps, end), warmup_steps)


def staircase(
    rate: float, steps: int, warmup_steps: int, drops: Sequence[float]
) -> schedules.LearningRateSchedule:
    """Staircase decay of BiT: divides the learning rate by ten at given points, after warm-up.

    Args:
        rate: Peak learning rate.
        steps: Steps of the run, warm-up included.
        warmup_steps: Steps of warm-up.
        drops: Shares of the steps after which the rate is divided, such as `(0.3, 0.6, 0.9)`.

    Returns:
        A schedule of Keras in a `WarmUp`.
    """
    _check(steps, warmup_steps)
    boundaries = [float(round(share * steps) - warmup_steps) for share in drops]
    values = [rate / 10**n for n in range(len(drops) + 1)]
    return WarmUp(schedules.PiecewiseConstantDecay(boundaries, values), warmup_steps)


def _check(steps: int, warmup_steps: int) -> None:
    if not 0 <= warmup_steps < steps:
        raise ValueError(
            "The schedule needs more steps than its warm-up. Received: "
            f"steps={steps}, warmup_steps={warmup_steps}."
        )
