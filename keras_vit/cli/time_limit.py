"""The time limit of `keras-vit train`: fewer steps or smaller images, where the first steps say so.

Only the plan that `--recipe auto` makes for a trained network is shortened.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from keras_vit.cli.dry_run import estimate_time
from keras_vit.cli.plan import RunPlan
from keras_vit.cli.run_settings import AUTO
from keras_vit.config import ViTConfig
from keras_vit.evaluate.counting import count_training_macs
from keras_vit.progress import Progress, duration_text
from keras_vit.runtime.model import Model
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.run_folder import read_config

_LEAST_STEPS = 100  # before images become smaller
_SHARES = (0.75, 0.5)  # of the height and width
_SLOW = 2e9  # multiply-accumulates a second that any machine reaches: such a run is not timed


def fit_into_time(plan: RunPlan, make: Callable[[Recipe], Model], verbose: bool = True) -> Recipe:
    """The recipe of a plan, shortened to end within `--minutes`; its source says what and why.

    A run that continues keeps what it began with.

    Args:
        plan: The plan.
        make: Makes the model to train by a recipe. Its first steps are timed, which train it.
        verbose: Whether to print that steps are timed.
    """
    recipe, run = plan.recipe, plan.run
    if run.recipe != AUTO or run.minutes is None or not plan.is_pretrained or recipe.steps is None:
        return recipe
    before = read_config(pathlib.Path(run.output)).get("plan", {})
    if before.get("source", "").startswith(recipe.source):
        names = ("source", "steps", "warmup_steps", "image_size")
        return recipe.replace(**{name: before[name] for name in names})
    model, images = make(recipe), plan.data.training
    limit = 60 * run.minutes
    if count_training_macs(model) * recipe.steps * recipe.batch_size < _SLOW * limit:
        return recipe
    with Progress("first steps, to estimate the time", None, verbose=verbose):
        found = estimate_time(model, recipe, images, plan.data.validation, run.seed)
    shorter = shorten(recipe, found.seconds, limit, _sizes(model))
    if shorter == recipe:
        return recipe
    old = model.input_shape[1]
    reason = (
        f"; {shorter.steps:,} steps at {shorter.image_size or old} pixels, because "
        f"{recipe.steps:,} at {old} take about {duration_text(found.seconds)} here, and --minutes "
        f"is {run.minutes:g}"
    )
    return shorter.replace(source=recipe.source + reason)


def _sizes(model: Model) -> list[tuple[int, float]]:
    """Smaller image sizes of whole patches, and their cost as a share."""
    config, size = model.config, model.input_shape[1]
    if not isinstance(config, ViTConfig) or size is None or size != model.input_shape[2]:
        return []
    patch = config.patch_size[0]
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
    for size, share in [(recipe.image_size, 1.0), *sizes]:  # noqa: B007
        if each * share * least <= limit:
            break
    steps = max(1, min(recipe.steps, int(limit / (each * share))))
    return recipe.replace(image_size=size, steps=steps)
