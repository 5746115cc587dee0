"""From the settings of a run to its recipe and to the model to train."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from keras_vit.cli.resolve import open_model, resolve_model
from keras_vit.cli.run_settings import AUTO, RunSettings
from keras_vit.cli.settings import Settings
from keras_vit.config import Preprocessing, ViTConfig, field_value
from keras_vit.create import create_model
from keras_vit.data.image_set import ImageSet
from keras_vit.data.labelled_set import describe_held_out
from keras_vit.data.sources import TrainingData, open_training_data, read_share
from keras_vit.runtime.model import Model
from keras_vit.train.hyperparameters import LOSSES, Recipe
from keras_vit.train.new_head import adapt_model
from keras_vit.train.recipes import find_recipe
from keras_vit.train.run_folder import read_config
from keras_vit.train.sizing import WHOLE, plan_training
from keras_vit.train.starting_head import NEEDED, can_start
from keras_vit.train.tasks import build_loss
from keras_vit.variants import find_config, find_variant

# Settings of a recipe that decide more than a plan for AdamW and a head from a probe knows.
_DECIDED = {"optimizer", "learning_rate", "learning_rates", "progressive_sizes"}


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """A training run with all settings decided.

    Args:
        run: Settings of the run.
        recipe: Hyperparameters.
        model_options: Changed fields of the model's configuration.
        preprocessing: Changed fields of its preprocessing.
        data: Images.
        is_pretrained: Whether training starts from a trained model.
    """

    run: RunSettings
    recipe: Recipe
    model_options: dict[str, Any]
    preprocessing: dict[str, Any]
    data: TrainingData
    is_pretrained: bool

    @property
    def held_out(self) -> str:
        """How many images of each class are held out; empty if none are, or other images."""
        training, validation = self.data.training, self.data.validation
        if self.data.transfer_test is not None:  # `transfer` chooses the learning rate by them
            training, validation = training.split(self.recipe.held_out, self.run.seed)
        elif not read_share(self.run.validation):
            return ""
        return describe_held_out(training, validation) if validation is not None else ""


def make_plan(settings: Settings) -> RunPlan:
    """Opens the images of a run, and decides what its settings leave open.

    With `recipe="auto"`, the number of images decides: see `plan_training`. The loss of a recipe
    for classes becomes that of the task, unless the settings name a loss.

    Raises:
        ValueError: If settings do not fit together.
    """
    run, options = settings.run, settings.model
    reading = {"data_dir": run.data_dir, "download": run.download, "unreadable": run.unreadable}
    reading["task"] = None if run.task == AUTO else run.task
    data = open_training_data(str(run.data), run.validation, run.test, run.seed, reading)
    if run.model is None and run.weights is not None and not _is_tag(run.weights):
        run = dataclasses.replace(run, model=run.weights, weights=None)
    task = data.training.task
    run = dataclasses.replace(run, task=task)
    sizes = _class_sizes(data.training, settings.recipe)
    changes = {name: value for each in settings.recipe for name, value in each.items()}
    head = changes.get("initial_head") or (
        "zeros" if changes.keys() & _DECIDED and not changes.get("lora_rank") else None
    )
    rank, num_images = changes.get("lora_rank", 0), data.training.num_images
    is_trained = run.weights is not None or (
        run.model is not None and resolve_model(run.model).kind != "variant"
    )
    small = plan_training(num_images, is_trained, task, sizes, rank, head)
    if run.model is None:
        run = dataclasses.replace(run, model=small.model)
        options = {**small.model_options, **options}
    recipe = small.recipe if run.recipe == AUTO else find_recipe(run.recipe)
    if LOSSES[recipe.loss] == ("pairs",):
        raise ValueError(
            "`keras-vit train` trains on images with labels. Received: --recipe "
            f"{run.recipe}, which is for images with captions: see docs/image-text-training.md, or "
            "pass another recipe."
        )
    if task not in LOSSES[recipe.loss]:
        recipe = recipe.replace(loss=small.recipe.loss, label_smoothing=0.0)
    if task == "regression":
        crops = {"crop": "inception"} if "area_range" in changes else WHOLE
        recipe = recipe.replace(**crops)
    for each in settings.recipe:
        recipe = recipe.replace(**each)
        if each.keys() & {"steps", "epochs", "image_size", "progressive_sizes"}:
            run = dataclasses.replace(run, minutes=None)
    given = [f"--lora-rank {recipe.lora_rank}"] if recipe.lora_rank else []
    given += ["--initial-head probe"] if recipe.initial_head == "probe" else []
    if given and not is_trained:
        raise ValueError(
            "Low-rank updates and a head from a probe are for a trained model. Received: "
            f"{' and '.join(given)} with random weights of {run.model}. Pass --weights TAG, or a "
            "trained model as --model."
        )
    if options.get("pre_logits") and is_trained:
        raise ValueError(
            "Fine-tuning replaces the head and its hidden layer by one dense layer, as in section "
            f"3.2 of the paper. Received: --pre-logits {options['pre_logits']} with a trained "
            "model. Leave it out."
        )
    build_loss(recipe, data.training)  # a wrong one is refused before anything is written
    if data.transfer_test is not None and not (recipe.learning_rates and recipe.held_out):
        data = data._replace(transfer_test=None, final_test=data.transfer_test)  # no rate to choose
    if data.transfer_test is not None and data.validation is not None:
        raise ValueError(
            "With --test, a recipe with learning rates to choose from holds out images itself, and "
            f"none are validated on. Received: --validation {run.validation}, --test {run.test}, "
            f"learning_rates={recipe.learning_rates}, held_out={recipe.held_out}. Leave out "
            "--validation, or pass --held-out 0 to train once, with --learning-rate."
        )
    held_out_sets = (run.validation, data.validation, data.transfer_test)
    if run.recipe == AUTO and recipe.held_out and held_out_sets == (None, None, None):
        training, held_out = data.training.split(recipe.held_out, run.seed)
        data = data._replace(training=training, validation=held_out)
        run = dataclasses.replace(run, validation=str(recipe.held_out))
    return RunPlan(run, recipe, options, settings.preprocessing, data, is_trained)


def fit_recipe(plan: RunPlan, model: Model, settings: Settings) -> Recipe:
    """The recipe for the model that was opened: zeros where its head cannot start from a probe.

    Args:
        plan: The plan.
        model: Its model.
        settings: Settings of the run.

    Raises:
        ValueError: If the settings name a head from a probe, which cannot be fitted.
    """
    recipe, images = plan.recipe, plan.data.training
    has_two_heads = bool(field_value(model.config, "distillation_token", False))
    if recipe.initial_head != "probe" or (can_start(images) and not has_two_heads):
        return recipe
    if any("initial_head" in each for each in settings.recipe):
        raise ValueError(
            f"A head from a probe needs {NEEDED}. Received: {images.name}, task={images.task!r}, "
            f"{1 + has_two_heads} heads. Leave out --initial-head probe."
        )
    zeros = plan_training(0, pretrained=True, initial_head="zeros").recipe
    names = ("optimizer", "learning_rate", "initial_head")
    return recipe.replace(**{name: getattr(zeros, name) for name in names})


def _class_sizes(images: ImageSet, changes: list[dict[str, Any]]) -> list[int]:
    """Images of every class; none where they are not known, or where sampling balances them."""
    is_balanced = any(each.get("balanced_sampling") for each in changes)
    counts = None if is_balanced else images.class_counts
    return [] if counts is None else counts.tolist()


def build_model(plan: RunPlan) -> Model:
    """The model to train, before its head and its image size are adapted."""
    assert plan.run.model is not None  # since `make_plan`
    name, weights, options = plan.run.model, plan.run.weights, dict(plan.model_options)
    classes, size = plan.data.training.num_classes, plan.recipe.image_size
    if resolve_model(name).kind != "variant":
        if weights is not None:
            raise ValueError(
                f"--model {name} has weights already. Leave out --weights {weights}, or pass the "
                "name of an architecture as --model."
            )
        # Positions are resized once, from those of the checkpoint.
        model = open_model(name, None if size is None else (size, size))
        return _changed(model, classes, options, plan.preprocessing)
    config = find_config(name)
    has_own_shape = bool(size or "channels" in options)
    height, width = (size, size) if size else config.input_shape[:2]
    shape = (height, width, options.pop("channels", config.channels))
    if weights is not None:
        if has_own_shape:
            options["input_shape"] = shape
        model = create_model(name, weights=_weights_of(name, weights), classes=classes, **options)
        return _changed(model, classes, {}, plan.preprocessing)
    if plan.preprocessing:
        options["preprocessing"] = dataclasses.replace(config.preprocessing, **plan.preprocessing)
    options |= plan.recipe.options_for(config)
    return create_model(name, classes=classes, input_shape=shape, **options)


def _changed(
    model: Model, classes: int, options: dict[str, Any], preprocessing: dict[str, Any]
) -> Model:
    """A trained model with other options."""
    if preprocessing:
        config = model.config
        base = Preprocessing() if config is None else config.preprocessing
        changed = dataclasses.replace(base, **preprocessing)
        options = {**options, "preprocessing": changed}
    if not options:
        return model
    adapted = adapt_model(model, classes, **options)
    adapted.load_report = model.load_report
    return adapted


def patch_pixels(model: Model) -> int | None:
    """Pixels along a patch of a ViT for square images; `None` of other models."""
    config, size = getattr(model, "config", None), model.input_shape[1]
    if not isinstance(config, ViTConfig) or size is None or size != model.input_shape[2]:
        return None
    return config.patch_size[0] * (config.stem.stride if config.stem else 1)


def earlier_plan(plan: RunPlan) -> dict[str, Any]:
    """What the folder of a run says about the recipe that it began with; empty for a new run."""
    before = read_config(pathlib.Path(plan.run.output)).get("plan", {})
    return before if before.get("source", "").startswith(plan.recipe.source) else {}


def _is_tag(weights: str) -> bool:
    return weights.isidentifier() and not os.path.exists(weights)


def _weights_of(variant: str, weights: str) -> str:
    """The argument `weights` of `create_model`, from a tag or any form of a checkpoint."""
    if _is_tag(weights):
        return weights
    kind = resolve_model(weights).kind
    if kind == "checkpoint":
        return weights
    named, _, tag = weights.rpartition("/")
    if kind == "published" and find_variant(named) == find_variant(variant):
        return tag
    raise ValueError(
        f"--weights {weights} does not hold weights of --model {variant}. Pass it as --model, "
        "without --weights, to train that model."
    )
