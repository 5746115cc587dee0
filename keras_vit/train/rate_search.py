"""Learning-rate finder: trains at rising learning rates, and suggests one by the losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from keras_vit.runtime.model import Model
from keras_vit.train.arguments import check_types
from keras_vit.train.callbacks import restored
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.new_head import scope_of
from keras_vit.train.stages import divide_steps, training_batches
from keras_vit.train.tasks import build_loss, standardize_head

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_SMOOTHING = 0.9  # of the moving average of the losses
_DIVERGED = 4.0  # times the best loss
_SHOWN = 12


class LearningRateSearch(NamedTuple):
    """Result of `search_learning_rate`. `print(search)` shows a table.

    Args:
        rates: Learning rate of every step.
        losses: Smoothed loss of every step.
        suggestion: Learning rate at which the loss fell fastest.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: float

    def __str__(self) -> str:
        shown = np.unique(np.linspace(0, len(self.rates) - 1, _SHOWN).round().astype(int))
        rows = [f"{self.rates[i]:13.2e}  {self.losses[i]:8.4f}" for i in shown]
        head = f"{'learning rate':>13}  {'loss':>8}"
        last = f"The loss falls fastest at a learning rate of {self.suggestion:.1e}."
        return "\n".join((head, *rows, last))


def search_learning_rate(
    model: Model,
    images: ImageSet,
    recipe: Recipe,
    seed: int = 0,
    *,
    lowest: float = 1e-6,
    highest: float = 1.0,
    steps: int = 100,
) -> LearningRateSearch:
    """Trains a model for a few steps at learning rates that rise exponentially.

    The range test of https://arxiv.org/abs/1506.01186. It ends early when the smoothed loss is four
    times its minimum. The suggestion is the rate at which the loss falls fastest along the
    logarithm of the rate: a start for the peak of a schedule, not an optimum.

    Args:
        model: A model for the classes of the images, such as of `adapt_model`. It is compiled
            again and trained; the weights are put back afterwards.
        images: Training images.
        recipe: Optimizer, batch size, loss and augmentation.
        seed: Seed of shuffling and augmentation.
        lowest: Learning rate of the first step.
        highest: Learning rate of the last step.
        steps: Steps.

    Returns:
        A `LearningRateSearch`.

    Raises:
        ValueError: If the loss never fell, the rates or steps are out of range, or a model for
            regression does not end in a dense layer with a bias.
    """
    check_types(model, recipe, images=images)
    if not 0 < lowest < highest or steps < 3:
        raise ValueError(
            "Pass learning rates with 0 < lowest < highest, and at least 3 steps. Received: "
            f"{lowest}, {highest} and {steps}."
        )
    growth = (highest / lowest) ** (1 / (steps - 1))
    rising = _RisingRate(lowest, growth)
    with restored(model.variables):
        standardize_head(model, recipe, images)
        with scope_of(model):
            scheduled = recipe.replace(averaging=None).build_optimizer(images.num_images)
            fields = {**scheduled.get_config(), "learning_rate": lowest}
            model.compile(type(scheduled).from_config(fields), build_loss(recipe, images))
            plan = divide_steps(steps, 1, images.num_images, recipe.batch_size)
            batches = training_batches(model, images, recipe, plan, seed)
        model.fit(batches, epochs=1, callbacks=[rising], shuffle=False, verbose=0)
    rates, losses = rising.rates, rising.losses
    if len(losses) < 3 or min(losses) >= losses[0]:
        began = f"it began at {losses[0]:.4f}" if losses else "it is not finite in the first step"
        raise ValueError(
            f"The loss never fell between {lowest:g} and {highest:g}: {began}. "
            "Try a lower start, or look at the images and labels."
        )
    end = int(np.argmin(losses)) + 1
    falls = np.gradient(losses[:end], np.log(rates[:end]))
    return LearningRateSearch(tuple(rates), tuple(losses), rates[int(np.argmin(falls))])


class _RisingRate(keras.callbacks.Callback):
    """Raises the learning rate after every batch, and stops when the loss diverges."""

    def __init__(self, lowest: float, growth: float):
        super().__init__()
        self.lowest, self.growth = lowest, growth
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._average = self._total = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        # Keras logs the mean over the epoch so far.
        mean = float((logs or {})["loss"])
        loss, self._total = mean * (batch + 1) - self._total, mean * (batch + 1)
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * loss
        smooth = self._average / (1 - _SMOOTHING ** (batch + 1))
        if not np.isfinite(smooth) or smooth > _DIVERGED * min([*self.losses, smooth]):
            self.model.stop_training = True
            return
        self.rates.append(self.lowest * self.growth**batch)
        self.losses.append(smooth)
        self.model.optimizer.learning_rate = self.lowest * self.growth ** (batch + 1)
