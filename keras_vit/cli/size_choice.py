"""The image size of `keras-vit train` for few images, where a probe says that a larger one pays."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit.cli.plan import RunPlan, build_model, earlier_plan, patch_pixels
from keras_vit.cli.run_settings import AUTO
from keras_vit.cli.settings import Settings
from keras_vit.data.strata import hold_out
from keras_vit.evaluate.compute import training_memory
from keras_vit.evaluate.linear_fits import explained_variance
from keras_vit.evaluate.probes import cross_validate
from keras_vit.progress import Progress
from keras_vit.runtime.model import Model
from keras_vit.runtime.processors import memory_bytes, runs_on_processors_alone
from keras_vit.train.new_head import scope_of
from keras_vit.train.probe import seconds_of_image
from keras_vit.train.sizing import FEW_IMAGES, plan_training
from keras_vit.train.starting_head import StartingImages, can_start

if TYPE_CHECKING:
    from keras_vit.data.image_set import ImageSet

_RANK = 8  # of low-rank updates at the larger size
_LARGER = 1.75  # of the height and width, such as 392 pixels for 224
_MOST, _FEWEST = 300, 30  # images of the probe
_GAIN = 0.05  # of accuracy or explained variance, for which three times the time is worth while
_SHARE = 0.1  # of the time limit, for the features of both sizes
_ACCELERATOR = 16 * 2**30  # bytes; TensorFlow does not say how many an accelerator has
_TIMED = 4  # images
_LOOKED_AT = 16  # images


def choose_size(
    plan: RunPlan, model: Model, settings: Settings, start: StartingImages, verbose: bool = True
) -> tuple[RunPlan, Model]:
    """The plan and the model at the image size that a probe finds better.

    What tells classes apart may be smaller than the checkpoint's own size shows, as small defects
    are. For the plan of few images that leaves the size open, ridge regression on features of the
    frozen network is cross-validated at the checkpoint's size and at 1.75 times of it, on up to
    300 images, in a tenth of the time limit. The larger size must be 5 points better: in accuracy,
    or, for several labels and numbers, in the variance that is explained. It is not tried with
    images of fewer pixels than the checkpoint's size, where enlarging shows nothing new, nor where
    the settings name the head or all weights. Where the memory of this machine, or 16 GiB of an
    accelerator, is too small for it, the plan says so.

    At the larger size low-rank updates are trained: all weights need more time and memory, and lost
    a class of textile (docs/few-labels.md).

    A run that continues keeps the size that it began with. The source of the recipe says what was
    chosen and why.

    Args:
        plan: The plan.
        model: Its model.
        settings: Settings of the run.
        start: The images that the head starts from. The probe takes some of them, and their
            features at the checkpoint's size are not computed again.
        verbose: Whether to print how far it is.
    """
    recipe, run, images = plan.recipe, plan.run, plan.data.training
    larger = _larger(model)
    asked = [each for each in settings.recipe if each.keys() & {"initial_head", "lora_rank"}]
    can = recipe.lora_rank or (recipe.initial_head == "probe" and not asked)
    is_few = images.num_images < FEW_IMAGES
    is_open = run.recipe == AUTO and recipe.image_size is None and is_few and can
    if larger is None or run.minutes is None or not is_open:
        return plan, model
    size = model.input_shape[1]

    def at(pixels: int, reason: str = "") -> RunPlan:
        changes: dict[str, Any] = {"image_size": pixels, "source": recipe.source + reason}
        if not recipe.lora_rank:
            updates = plan_training(0, pretrained=True, lora_rank=_RANK).recipe
            names = ("lora_rank", "initial_head", "optimizer", "learning_rate")
            changes |= {name: getattr(updates, name) for name in names}
        return dataclasses.replace(plan, recipe=recipe.replace(**changes))

    def built(pixels: int) -> Model:
        with scope_of(model):
            return build_model(at(pixels))

    before = earlier_plan(plan)
    if before:
        kept = before["image_size"] or size
        return (at(kept), built(kept)) if kept > size else (plan, model)
    images = start.sample
    if _smaller_side(images) < size:
        return plan, model
    try:
        wide = built(larger)
    except ValueError:  # a family whose weights fit one size
        return plan, model
    blank = [np.zeros((_TIMED, *each.input_shape[1:]), "float32") for each in (model, wide)]
    seconds = sum(map(seconds_of_image, (model, wide), blank))  # of one image at both sizes
    count = int(_SHARE * 60 * run.minutes / seconds)
    positions = _choose(images, min(count, _MOST), run.seed)
    if positions is None:
        return plan, model
    task = f"image size: a probe of {len(positions)} images at {size} and {larger} pixels"
    with Progress(task, 2, "sizes", verbose) as progress:
        small = _score(model, start, positions, verbose)
        progress.update(1)
        large = _score(wide, start, positions, verbose)
    does, of = "is right on", ""
    if images.task != "single_label":
        does, of = "explains", " of the variance"
    probe = (
        f"a probe of {len(positions)} images {does} {large:.0%}{of} at {larger} pixels, "
        f"{small:.0%} at {size}"
    )
    if large < small + _GAIN:
        return _noted(plan, f"; {size} pixels, because {probe}"), model
    width = 4 if keras.config.dtype_policy().compute_dtype == "float32" else 2  # bytes of a number
    needed = training_memory(wide, recipe.batch_size, 0, width).total  # of low-rank updates
    if needed > (memory_bytes() if runs_on_processors_alone() else _ACCELERATOR):
        reason = (
            f"; {size} pixels, because {larger} need about {needed / 2**30:.0f} GiB: {probe}, so "
            f"try --image-size {larger} --batch-size {max(recipe.batch_size // 4, 1)} --lora-rank "
            f"{recipe.lora_rank or _RANK}"
        )
        return _noted(plan, reason), model
    return at(larger, f"; {larger} pixels and low-rank updates, because {probe}"), wide


def _noted(plan: RunPlan, reason: str) -> RunPlan:
    recipe = plan.recipe
    return dataclasses.replace(plan, recipe=recipe.replace(source=recipe.source + reason))


def _larger(model: Model) -> int | None:
    """The larger size, of whole patches; `None` of models that have none."""
    patch = patch_pixels(model)
    return None if patch is None else int(_LARGER * model.input_shape[1]) // patch * patch


def _smaller_side(images: ImageSet) -> float:
    """Median of the smaller side of some images, in pixels; 0 if one of them cannot be read."""
    from keras_vit.data.decode import decode

    sides = []
    for item, _ in images.spread(_LOOKED_AT):
        try:
            image = images.load(item)
            shape = (decode(image) if image.dtype == "string" else image).shape
        except Exception:  # of TensorFlow; training names the file
            return 0.0
        sides.append(min(shape[:2]))
    return float(np.median(sides))


def _choose(images: ImageSet, count: int, seed: int) -> np.ndarray | None:
    """Positions of so many images, of all classes that have two; `None` if these are too few."""
    if count < _FEWEST:
        return None
    kept = np.arange(images.num_images)
    if count < len(kept):
        kept = hold_out(*images.strata, count, seed)
    fewest, labels = _FEWEST, np.asarray(images.labels)[kept]
    if images.task == "single_label":
        kept = kept[np.bincount(labels)[labels] > 1]
        fewest = max(_FEWEST, 3 * len(np.unique(labels)))
    elif not can_start(images.subset(kept)):
        return None
    return kept if len(kept) >= fewest else None


def _score(model: Model, start: StartingImages, positions: np.ndarray, verbose: bool) -> float:
    """What ridge regression on the features of a model reaches in cross-validation.

    Accuracy of classes; of several labels and numbers the variance that is explained.
    """
    x = start.features(model, positions, verbose)
    labels = np.asarray(start.sample.labels)[positions]
    if start.images.task != "single_label":
        return explained_variance(x, labels)
    present, labels = np.unique(labels, return_inverse=True)
    return max(cross_validate("ridge", x, labels, len(present)).values())
