"""Learning rates that rise from zero before they fall."""

from __future__ import annotations

from collections.abc import Sequence

import keras
from keras.optimizers import schedules


@keras.saving.register_keras_serializable("keras_vit")
class WarmUp(schedules.LearningRateSchedule):
    """A schedule of Keras, with a linear rise from zero before it.

    Step `t` has the rate `schedule(0) * t / steps` before `steps` and `schedule(t - steps)` from
    there on. As in the official code the first step, `t = 0`, has a rate of zero.

    Args:
        schedule: A `keras.optimizers.schedules.LearningRateSchedule`.
        steps: Steps of the rise, 0 for none.
    """

    def __init__(self, schedule: schedules.LearningRateSchedule, steps: int):
        self.schedule = schedule
        self.steps = steps

    def __call__(self, step):
        t = keras.ops.cast(step, "float32")
        rate = self.schedule(keras.ops.maximum(t - self.steps, 0.0))
        rise = keras.ops.minimum(t / max(self.steps, 1), 1.0)
        return rate * (rise if self.steps else 1.0)

    def get_config(self):
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "steps": self.steps}

    @classmethod
    def from_config(cls, config):
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["steps"])


def cosine(
    rate: float, steps: int, warmup_steps: int = 0, end: float = 0.0
) -> schedules.LearningRateSchedule:
    """Keras's cosine decay, `end + (rate - end) / 2 * (1 + cos(pi * progress))`, after a rise.

    Args:
        rate: Greatest rate.
        steps: Steps of the run, those of the rise included.
        warmup_steps: Steps of the rise from zero.
        end: Rate at the end.

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
    """A straight fall from `rate` to `end`, as in the official code, after a rise.

    Args:
        rate: Greatest rate.
        steps: Steps of the run, those of the rise included.
        warmup_steps: Steps of the rise from zero.
        end: Rate at the end, 1e-5 in the official code.

    Returns:
        A schedule of Keras behind a `WarmUp`.
    """
    _check(steps, warmup_steps)
    return WarmUp(schedules.PolynomialDecay(rate, steps - warmup_steps, end), warmup_steps)


def staircase(
    rate: float, steps: int, warmup_steps: int, drops: Sequence[float]
) -> schedules.LearningRateSchedule:
    """A tenth of the rate after each of several shares of the run, as BiT trains, after a rise.

    Args:
        rate: Greatest rate.
        steps: Steps of the run.
        warmup_steps: Steps of the rise from zero.
        drops: Shares of the steps after which the rate falls, such as `(0.3, 0.6, 0.9)`.

    Returns:
        A schedule of Keras behind a `WarmUp`.
    """
    _check(steps, warmup_steps)
    boundaries = [float(round(share * steps) - warmup_steps) for share in drops]
    values = [rate / 10**n for n in range(len(drops) + 1)]
    return WarmUp(schedules.PiecewiseConstantDecay(boundaries, values), warmup_steps)


def _check(steps: int, warmup_steps: int) -> None:
    if not 0 <= warmup_steps < steps:
        raise ValueError(
            "The learning rate must have steps left to fall after its rise. Received: "
            f"steps={steps}, warmup_steps={warmup_steps}."
        )
