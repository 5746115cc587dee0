"""A recipe: everything about a training run but the model and the images, as a frozen row."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras

from keras_vit.checks import check_choice, check_positive
from keras_vit.data.augmentation import Augmentation
from keras_vit.train.losses import SigmoidCrossentropy
from keras_vit.train.optimizers import SGD, AdamW
from keras_vit.train.schedules import cosine, linear, staircase

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("cosine", "linear", "staircase")
LOSSES = ("softmax", "sigmoid")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A training set-up. `dataclasses.replace(recipe, batch_size=64)` changes one.

    Args:
        source: Where the numbers are from, and what is not known about them.
        optimizer: `"adam"` (decay apart from the gradient) or `"sgd"` (momentum 0.9, the learning
            rate outside of the velocity).
        learning_rate: Greatest rate, for `batch_size`.
        batch_size: Images of a step.
        steps: Steps of the optimizer; `None` where `epochs` counts.
        epochs: Passes over the images; `None` where `steps` counts.
        warmup_steps: Steps in which the rate rises from 0, the first of them with 0.
        warmup_epochs: The same in passes, where `warmup_steps` is 0.
        schedule: `"cosine"`, `"linear"` or `"staircase"` (a tenth after each of `drops`).
        end_learning_rate: Rate at the end of `"cosine"` and `"linear"`.
        drops: Shares of the run after which `"staircase"` falls.
        weight_decay: Multiplied by the learning rate of the moment, as in AdamW.
        decay_kernels_only: Whether biases, norms, tokens and positions are spared.
        clip_norm: Greatest norm of the gradients of all variables together, or `None`.
        loss: `"softmax"`, or `"sigmoid"` (summed over classes).
        sigmoid_smoothing: Label smoothing of the sigmoid loss, see `SigmoidCrossentropy`.
        averaging: Momentum of a moving average that takes the weights' place at the end (Polyak),
            or `None`.
        augmentation: What is done to training images.
        image_size: Pixels along both sides; `None` keeps the model's.
        dropout_rate: What the model is to be built with.
        stochastic_depth_rate: What the model is to be built with.
        head_bias: Start of the head's bias.
        learning_rates: Rates to choose from on held-out images.
        held_out: Share of the training images, or their number, to choose on.

    Raises:
        ValueError: If a value is out of its range, or not one of `steps` and `epochs` is given.
    """

    source: str
    optimizer: str
    learning_rate: float
    batch_size: int
    steps: int | None = None
    epochs: float | None = None
    warmup_steps: int = 0
    warmup_epochs: float = 0.0
    schedule: str = "cosine"
    end_learning_rate: float = 0.0
    drops: tuple[float, ...] = ()
    weight_decay: float = 0.0
    decay_kernels_only: bool = True
    clip_norm: float | None = None
    loss: str = "softmax"
    sigmoid_smoothing: float = 0.0
    averaging: float | None = None
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)
    image_size: int | None = None
    dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    head_bias: float = 0.0
    learning_rates: tuple[float, ...] = ()
    held_out: float = 0.0

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("loss", self.loss, LOSSES)
        check_positive("batch_size", self.batch_size)
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                "A recipe counts `steps` or `epochs`, one of them. Received: "
                f"steps={self.steps}, epochs={self.epochs}."
            )
        if self.learning_rate <= 0:
            raise ValueError(f"`learning_rate` must be above 0. Received: {self.learning_rate}.")

    @property
    def model_options(self) -> dict[str, Any]:
        """What a model is to be built with: `create_model(variant, **recipe.model_options)`."""
        return {
            "dropout_rate": self.dropout_rate,
            "stochastic_depth_rate": self.stochastic_depth_rate,
            "head_bias": self.head_bias,
        }

    def count_steps(self, num_images: int) -> int:
        """Steps of the run on so many images."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * num_images / self.batch_size))

    def count_warmup(self, num_images: int) -> int:
        """Steps of the rise."""
        return self.warmup_steps or round(self.warmup_epochs * num_images / self.batch_size)

    def build_schedule(self, num_images: int) -> Any:
        """The learning rate by the step, a schedule of Keras."""
        steps, warmup = self.count_steps(num_images), self.count_warmup(num_images)
        rate, end = self.learning_rate, self.end_learning_rate
        if self.schedule == "cosine":
            return cosine(rate, steps, warmup, end)
        if self.schedule == "linear":
            return linear(rate, steps, warmup, end)
        return staircase(rate, steps, warmup, self.drops)

    def build_optimizer(self, num_images: int) -> keras.optimizers.Optimizer:
        """The optimizer of a run on so many images, with its schedule."""
        options: dict[str, Any] = {
            "weight_decay": self.weight_decay or None,
            "decay_kernels_only": self.decay_kernels_only,
            "global_clipnorm": self.clip_norm,
            "use_ema": self.averaging is not None,
            "ema_momentum": 0.99 if self.averaging is None else self.averaging,
        }
        rate = self.build_schedule(num_images)
        if self.optimizer == "sgd":
            return SGD(rate, momentum=0.9, **options)
        options["weight_decay"] = self.weight_decay
        return AdamW(rate, beta_1=0.9, beta_2=0.999, epsilon=1e-8, **options)

    def build_loss(self) -> keras.losses.Loss:
        """The loss, of logits and one-hot labels."""
        if self.loss == "sigmoid":
            return SigmoidCrossentropy(self.sigmoid_smoothing)
        return keras.losses.CategoricalCrossentropy(from_logits=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dataclasses.asdict(self)
