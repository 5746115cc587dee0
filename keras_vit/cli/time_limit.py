"""The time limit of `keras-vit train`: fewer steps or smaller images, where the first steps say so.

Only the plan that `--recipe auto` makes for a trained network is shortened. While it trains, the
learning rate follows the clock where steps take longer than estimated, and training ends in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import keras

from keras_vit.cli.dry_run import estimate_time
from keras_vit.cli.output import complain
from keras_vit.cli.plan import RunPlan, earlier_plan, patch_pixels
from keras_vit.cli.run_settings import AUTO
from keras_vit.evaluate.counting import count_training_macs
from keras_vit.progress import Progress, duration_text
from keras_vit.runtime.model import Model
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.new_head import scope_of
from keras_vit.train.schedules import Paced
from keras_vit.train.starting_head import STARTING_IMAGES

_LEAST_STEPS = 100  # before images become smaller
_SHARES = (0.75, 0.5)  # of the height and width
_SLOW = 2e9  # multiply-accumulates a second that any machine reaches: such a run is not timed
# Of a timed step, for each second of the limit: the estimate takes a sixth of it on two cores.
_TIMED = 4e8


class KeepTime(keras.callbacks.Callback):
    """Ends training in time: the learning rate follows the clock where steps are too slow.

    The time of the first step, which compiles, and of validation does not count as progress. The
    last validation is within the time. It stands before `ResumeTraining`.

    Args:
        deadline: When training has to have ended, in seconds of `time.monotonic`.
        steps: Steps of the recipe.
        validation: Seconds of a validation, before the first is measured.
    """

    def __init__(self, deadline: float, steps: int, validation: float = 0.0):
        super().__init__()
        self.deadline, self.steps, self.validation = deadline, steps, validation
        self._first: int | None = None  # step that ended first
        self._trained = self._now = 0.0  # seconds of steps after it, and when it last ended

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self._optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        schedule = self._optimizer.get_config()["learning_rate"]
        with scope_of(self.model):
            self._paced = Paced(keras.saving.deserialize_keras_object(schedule))
        self._optimizer.learning_rate = self._paced

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._epochs = self.params["epochs"] - epoch
        self._now = time.monotonic()

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        self._tested = time.monotonic()

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        self.validation = time.monotonic() - self._tested

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        before, self._now = self._now, time.monotonic()
        done = int(self._optimizer.iterations)
        if self._first is None:
            self._first = done
            return
        self._trained += self._now - before
        left = self.deadline - self._now - self.validation * self._epochs
        share = self._trained / (self._trained + left) if left > 0 else 1.0
        self._paced.pace.assign(self._first + share * (self.steps - self._first))
        if share == 1 and done < self.steps:
            self.model.stop_training = True
            complain(
                f"--minutes: training ends after {done:,} of {self.steps:,} steps, because they "
                "took longer than estimated; the learning rate was lowered in time."
            )


def fit_into_time(
    plan: RunPlan, make: Callable[[Recipe], Model], start: float, verbose: bool = True
) -> tuple[Recipe, list[KeepTime]]:
    """The recipe of a plan, shortened to end within `--minutes`, and what ends it in time.

    The source of the recipe says what was changed and why. A run that continues keeps what it
    began with, and has the time anew. Runs that any machine ends in time have no callback.

    Args:
        plan: The plan.
        make: Makes the model to train by a recipe. Its first steps are timed, which train it.
        start: When the command started, in seconds of `time.monotonic`.
        verbose: Whether to print that steps are timed.
    """
    recipe, run = plan.recipe, plan.run
    if run.recipe != AUTO or run.minutes is None or not plan.is_pretrained or recipe.steps is None:
        return recipe, []
    limit = 60 * run.minutes
    deadline = start + limit
    before = earlier_plan(plan)
    if before:
        names = ("source", "steps", "warmup_steps", "image_size")
        same = recipe.replace(**{name: before[name] for name in names})
        return same, [KeepTime(deadline, before["steps"])]
    model, images = make(recipe), plan.data.training
    if count_training_macs(model) * recipe.steps * recipe.batch_size < _SLOW * limit:
        return recipe, []
    with Progress("first steps, to estimate the time", None, "steps", verbose):
        found = estimate_time(model, plan, _TIMED * limit)
    left = deadline - time.monotonic()
    if recipe.initial_head == "probe":  # a step takes about as long as features of three batches
        share = min(images.num_images, STARTING_IMAGES) / (3 * recipe.batch_size * recipe.steps)
        left -= share * found.seconds
    left = max(left, 1.0)
    sizes = _sizes(model)
    shorter = shorten(recipe, found.seconds, left, sizes)
    share = dict(sizes).get(shorter.image_size or 0, 1.0)
    keeping = [KeepTime(deadline, shorter.steps or 0, found.validation * share)]
    if shorter == recipe:
        return recipe, keeping
    old = model.input_shape[1]
    reason = (
        f"; {shorter.steps:,} steps at {shorter.image_size or old} pixels, because "
        f"{recipe.steps:,} at {old} take about {duration_text(found.seconds)} here, and --minutes "
        f"is {run.minutes:g}"
    )
    return shorter.replace(source=recipe.source + reason), keeping


def _sizes(model: Model) -> list[tuple[int, float]]:
    """Smaller image sizes of whole patches, and their cost as a share."""
    patch, size = patch_pixels(model), model.input_shape[1]
    if patch is None:
        return []
    sizes = [int(share * size) // patch * patch for share in _SHARES]
    return [(each, (each / size) ** 2) for each in sizes if each >= 4 * patch]


def shorten(recipe: Recipe, seconds: float, limit: float, sizes: list[tuple[int, float]]) -> Recipe:
    """Lowers the steps to 100 at least, then the image size, then the steps again.

    Args:
        recipe: A recipe of steps.
        seconds: Its time.
        limit: The time that it may take.
        sizes: Smaller image sizes with their cost as a share, the largest first.
    """
    assert recipe.steps is not None
    each, least = seconds / recipe.steps, min(_LEAST_STEPS, recipe.steps)
    for size, share in [(recipe.image_size, 1.0), *sizes]:  # noqa: B007 - read after the loop
        if each * share * least <= limit:
            break
    steps = max(1, min(recipe.steps, int(limit / (each * share))))
    return recipe.replace(image_size=size, steps=steps)
