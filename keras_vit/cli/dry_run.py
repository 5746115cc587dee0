"""The plan of `keras-vit train`: steps, memory and, in the dry run, time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from keras_vit.cli.plan import RunPlan
from keras_vit.evaluate.compute import TrainingMemory, training_exaflops, training_memory
from keras_vit.evaluate.counting import count_parameters, count_training_macs
from keras_vit.progress import duration_text
from keras_vit.runtime.distributed import is_distributed
from keras_vit.runtime.model import Model
from keras_vit.runtime.processors import memory_bytes, runs_on_processors_alone
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.stages import (
    divide_steps,
    plan_run,
    share_of_pixels,
    training_batches,
    validation_batches,
)
from keras_vit.train.tasks import compile_for

if TYPE_CHECKING:
    from keras_vit.data.augmentation import Augmentation

_MACS = 5e11  # of a timed step at most: some seconds on a processor
_FIRST_STEPS = 3  # trace and compile, and fill buffers
_SECONDS, _STEPS = 10.0, (5, 50)  # how long, and how many steps, are timed


def describe_run(model: Model, plan: RunPlan, is_timed: bool) -> Iterator[tuple[str, str]]:
    """Estimates of a run, as pairs of a name and a text.

    Args:
        model: The model to train.
        plan: The run.
        is_timed: Whether to time some steps, which trains the model.
    """
    recipe, images, validation = plan.recipe, plan.data.training, plan.data.validation
    num_images, num_validation = images.num_images, validation.num_images if validation else 0
    steps = recipe.count_steps(num_images)
    epochs = plan_run(recipe, num_images)
    trained_images = steps * recipe.batch_size
    lora = f": updates of rank {recipe.lora_rank} for {', '.join(recipe.lora_targets)}; the head"
    head = "; the head starts from a probe, so that first steps keep what the network has learnt"
    head = head if recipe.initial_head == "probe" else ""
    yield "model", parameters_text(model) + (lora if recipe.lora_rank else "") + head
    yield "images", f"{num_images:,} to train on, {num_validation:,} to evaluate on"
    words = {"multi_label": "labels", "regression": "targets"}
    alike = "; the loss weighs them alike" if recipe.class_weights else ""
    yield words.get(images.task, "classes"), f"{model.output_shape[-1]:,}{alike}"
    earlier = "".join(f"{size} x {size}, then " for size in recipe.progressive_sizes[:-1])
    yield "size", earlier + " x ".join(map(str, model.input_shape[1:]))
    counts = f"{epochs.epochs:,} epochs of {epochs.steps:,} steps"
    times = f"{trained_images / num_images:,.1f} times every image"
    yield "steps", f"{steps:,} of {recipe.batch_size:,} images: {counts}, {times}"
    yield "optimizer", optimizer_text(recipe, num_images)
    whole = "; whole images, because a number may be a size, a count or a share"
    whole = whole if (images.task, recipe.augmentation.crop) == ("regression", "none") else ""
    yield "augmentation", _text(recipe.augmentation) + whole
    yield "recipe", recipe.source
    slots = (2 if recipe.optimizer == "adam" else 1) + (recipe.averaging is not None)
    slots = 0 if recipe.lora_rank else slots  # those of the updates are few
    replicas = model.distribute_strategy.num_replicas_in_sync if is_distributed(model) else 1
    flags = ("--rematerialize", "--precision mixed_bfloat16")
    yield from describe_memory(model, recipe.batch_size, slots, replicas, flags)
    share = share_of_pixels(recipe.progressive_sizes)
    yield "computation", f"{training_exaflops(model, trained_images) * share:,.4g} exaFLOPs"
    if is_timed:
        yield "time", _time(model, plan)


def optimizer_text(recipe: Recipe, num_images: int) -> str:
    """The optimizer of a recipe, with its schedule, weight decay and clipping."""
    text = (
        f"{recipe.optimizer}, rate {recipe.learning_rate:g}, {recipe.schedule} after "
        f"{recipe.count_warmup(num_images):,} steps of warm-up, decay {recipe.weight_decay:g}"
    )
    if recipe.clip_norm is None:
        return text
    return f"{text}, gradients clipped to a norm of {recipe.clip_norm:g}"


def parameters_text(model: keras.Model) -> str:
    """The name of a model, its parameters, and how many of them train where not all do."""
    total = count_parameters(model)
    trained = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    text = f"{model.name}, {total:,} parameters"
    return text if trained == total else f"{text}, of which {trained:,} train"


def describe_memory(
    model: keras.Model,
    batch_size: int,
    optimizer_slots: int,
    replicas: int = 1,
    flags: Sequence[str] = (),
) -> Iterator[tuple[str, str]]:
    """Memory of training a model, and what needs less where this machine has not enough.

    Args:
        model: The model.
        batch_size: Images per step, on all devices together.
        optimizer_slots: As for `training_memory`.
        replicas: Number of devices.
        flags: Flags of the command that lower the memory besides --batch-size and --image-size.
    """
    size = 2 if keras.config.dtype_policy().compute_dtype != "float32" else 4

    def needed(batch: int, *options: Any) -> TrainingMemory:
        return training_memory(model, -(-batch // replicas), optimizer_slots, *options)

    memory = needed(batch_size, size)
    kept = f"weights and optimizer {(memory.weights + memory.optimizer) / 2**30:.1f} GiB"
    yield "memory", f"about {memory.total / 2**30:.1f} GiB on one device, of which {kept}"
    there = memory_bytes() / replicas  # which share it
    if not runs_on_processors_alone() or memory.total <= there:
        return
    smaller = batch_size // 2
    while smaller > replicas and needed(smaller, size).total > there:
        smaller //= 2
    changes = {f"--batch-size {smaller}": needed(smaller, size)} if smaller >= replicas else {}
    if "--rematerialize" in flags:
        changes["--rematerialize"] = needed(batch_size, size, True)
    changes |= {flag: needed(batch_size, 2) for flag in flags if "mixed" in flag}
    texts = [
        f"{change} needs {found.total / 2**30:.1f} GiB"
        for change, found in changes.items()
        if found.total < memory.total  # does nothing for some models
    ]
    advice = f"{', '.join([*texts, 'a smaller --image-size less'])}. In Python, an optimizer with "
    advice += "`gradient_accumulation_steps` makes one update of several small batches."
    yield "memory", f"more than the {memory_bytes() / 2**30:.1f} GiB of this machine. {advice}"


def _text(augmentation: Augmentation) -> str:
    default = type(augmentation)()
    changed = [
        f"{field}={value}"
        for field, value in vars(augmentation).items()
        if field == "crop" or value != getattr(default, field)
    ]
    return ", ".join(changed)


class _TimeSteps(keras.callbacks.Callback):
    """Times the steps of `fit` or `evaluate`, and stops `fit` when it has timed enough."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = [time.perf_counter()]

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.ends.append(time.perf_counter())
        least, most = _STEPS
        timed = len(self.ends) - 1 - _FIRST_STEPS
        seconds = self.ends[-1] - self.ends[0] - self.first
        if timed >= most or (timed >= least and seconds > _SECONDS):
            self.model.stop_training = True

    def on_test_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.ends.append(time.perf_counter())

    @property
    def first(self) -> float:
        """Seconds of the first steps."""
        return self.ends[min(_FIRST_STEPS, len(self.ends) - 1)] - self.ends[0]

    @property
    def each(self) -> float:
        """Seconds of a later step: the mean, because pauses belong to the run."""
        later = np.diff(self.ends)[min(_FIRST_STEPS, len(self.ends) - 2) :]
        return float(np.mean(later))


class Estimate(NamedTuple):
    """An estimated duration of a run.

    Args:
        seconds: The estimate.
        steps: Steps that were timed.
        batch: Their images.
        validation: Seconds of the first validation, which compiles.
    """

    seconds: float
    steps: int
    batch: int
    validation: float = 0.0


def estimate_time(model: Model, plan: RunPlan, macs: float = _MACS) -> Estimate:
    """Estimates the duration of a run from its steps after the first ones, which train.

    Args:
        model: The model to train.
        plan: The run.
        macs: Multiply-accumulates of a timed step at most, which decide its images.
    """
    recipe, images, validation = plan.recipe, plan.data.training, plan.data.validation
    compile_for(model, recipe, images)
    affordable = max(1, int(min(_MACS, macs) / count_training_macs(model)))
    replicas = model.distribute_strategy.num_replicas_in_sync
    batch = max(replicas, min(recipe.batch_size, affordable) // replicas * replicas)
    timed = recipe.replace(batch_size=batch)
    steps = divide_steps(_FIRST_STEPS + _STEPS[1], 1, images.num_images, batch)
    timer = _time_steps(model, training_batches(model, images, timed, steps, plan.run.seed))
    whole = plan_run(recipe, images.num_images)
    trained_images = whole.epochs * whole.steps * recipe.batch_size
    share = share_of_pixels(recipe.progressive_sizes)
    seconds, tested = timer.first + timer.each * trained_images * share / batch, 0.0
    if validation is not None:
        limit = (_FIRST_STEPS + _STEPS[0]) * batch
        part = validation.split(limit)[1] if validation.num_images > limit else validation
        tester = _TimeSteps()
        held_out = validation_batches(model, part, timed)
        model.evaluate(held_out, callbacks=[tester], verbose=0)
        each = tester.each / batch * validation.num_images
        tested = each + max(tester.first - _FIRST_STEPS * tester.each, 0.0)
        seconds += each * (whole.epochs - 1) + tested
    return Estimate(seconds, len(timer.ends) - 1, batch, tested)


def _time(model: Model, plan: RunPlan) -> str:
    seconds, steps, batch, _ = estimate_time(model, plan)
    text = f"about {duration_text(seconds)} here, from {steps} steps of {batch} images"
    if batch == plan.recipe.batch_size:
        return text
    return f"{text}; steps of {plan.recipe.batch_size} are faster for each image on accelerators"


def _time_steps(model: Model, batches: Any, epochs: int = 1) -> _TimeSteps:
    timer = _TimeSteps()
    model.fit(batches, epochs=epochs, callbacks=[timer], shuffle=False, verbose=0)
    return timer


def describe_time(model: Model, batches: Any, steps: int) -> str:
    """Estimated duration of a training without evaluation, from its first steps, which train.

    Args:
        model: The model, compiled.
        batches: Its batches of training.
        steps: Number of steps of the training.
    """
    timer = _time_steps(model, batches, _FIRST_STEPS + _STEPS[1])
    seconds = duration_text(timer.first + timer.each * steps)
    return f"about {seconds} of training here, from {len(timer.ends) - 1} steps"
