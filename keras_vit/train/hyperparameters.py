"""`Recipe`: the hyperparameters of a training run, and the objects of Keras made from them."""

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
    """Hyperparameters of a training run: all but the model and the images.

    `dataclasses.replace(recipe, batch_size=64)` returns a changed copy.

    Args:
        source: Source of the numbers, and what the source does not say.
        optimizer: `"adam"` (`AdamW`, decoupled weight decay) or `"sgd"` (`SGD`, momentum 0.9, the
            learning rate is not part of the velocity).
        learning_rate: Peak learning rate, for `batch_size`.
        batch_size: Images per step.
        steps: Steps of the optimizer; `None` if `epochs` is given.
        epochs: Epochs; `None` if `steps` is given.
        warmup_steps: Steps of linear warm-up from a learning rate of 0.
        warmup_epochs: Warm-up in epochs, used where `warmup_steps` is 0.
        schedule: `"cosine"`, `"linear"` or `"staircase"` (divides by ten after each of `drops`).
        end_learning_rate: Final learning rate of `"cosine"` and `"linear"`.
        drops: Shares of the run after which `"staircase"` divides the learning rate.
        weight_decay: Factor that is multiplied by the current learning rate, as in AdamW.
        decay_kernels_only: Whether biases, norms, tokens and positions have no weight decay.
        clip_norm: Largest global norm of the gradients, or `None`.
        loss: `"softmax"`, or `"sigmoid"` (summed over classes).
        sigmoid_smoothing: Label smoothing of the sigmoid loss, see `SigmoidCrossentropy`.
        averaging: Momentum of a moving average of the weights (Polyak), which replaces the weights
            at the end of training, or `None`.
        augmentation: Augmentation of the training images.
        image_size: Pixels along both sides; `None` keeps the model's.
        dropout_rate: Dropout rate of the model.
        stochastic_depth_rate: Stochastic depth rate of the model.
        head_bias: Initial value of the head's bias.
        learning_rates: Learning rates that `transfer` tries on held-out images.
        held_out: Share of the training images to hold out, or their number.

    Raises:
        ValueError: If a value is out of range, or not exactly one of `steps` and `epochs` is given.
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
                "A recipe needs either `steps` or `epochs`. Received: "
                f"steps={self.steps}, epochs={self.epochs}."
            )
        if self.learning_rate <= 0:
            raise ValueError(f"`learning_rate` must be above 0. Received: {self.learning_rate}.")

    @property
    def model_options(self) -> dict[str, Any]:
        """Options for `create_model(variant, **recipe.model_options)`."""
        return {
            "dropout_rate": self.dropout_rate,
            "stochastic_depth_rate": self.stochastic_depth_rate,
            "head_bias": self.head_bias,
        }

    def count_steps(self, num_images: int) -> int:
        """Steps of a run on `num_images` training images."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * num_images / self.batch_size))

    def count_warmup(self, num_images: int) -> int:
        """Steps of the warm-up."""
        return self.warmup_steps or round(self.warmup_epochs * num_images / self.batch_size)

    def build_schedule(self, num_images: int) -> keras.optimizers.schedules.LearningRateSchedule:
        """The learning rate schedule, a schedule of Keras."""
        steps, warmup = self.count_steps(num_images), self.count_warmup(num_images)
        rate, end = self.learning_rate, self.end_learning_rate
        if self.schedule == "cosine":
            return cosine(rate, steps, warmup, end)
        if self.schedule == "linear":
            return linear(rate, steps, warmup, end)
        return staircase(rate, steps, warmup, self.drops)

    def build_optimizer(self, num_images: int) -> keras.optimizers.Optimizer:
        """The optimizer with its learning rate schedule."""
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
        """The loss for logits and one-hot labels."""
        if self.loss == "sigmoid":
            return SigmoidCrossentropy(self.sigmoid_smoothing)
        return keras.losses.CategoricalCrossentropy(from_logits=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dataclasses.asdict(self)
