"""`Recipe`: the hyperparameters of a training run, and the objects of Keras made from them.

Keras is imported where its objects are made: the command line makes its flags from the fields, and
`keras-vit --help` must not wait for Keras.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_vit.checks import check_choice, check_names, check_positive, check_rate
from keras_vit.config import field_names, field_value
from keras_vit.data.augmentation import Augmentation

if TYPE_CHECKING:
    import keras

OPTIMIZERS = ("adam", "sgd")
_RATES = ("dropout_rate", "stochastic_depth_rate")  # of the model
SCHEDULES = ("cosine", "linear", "staircase")
INITIAL_HEADS = ("zeros", "probe")
# Losses, and the tasks that they are for.
LOSSES = {
    "softmax": ("single_label",),
    "sigmoid": ("multi_label", "single_label"),
    "mse": ("regression",),
    "huber": ("regression",),
    "contrastive": ("pairs",),
    "contrastive_sigmoid": ("pairs",),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training run: all but the model and the images.

    `recipe.replace(batch_size=64, mixup=0.2)` returns a changed copy.

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
        beta_2: Decay of the second moment of `"adam"`.
        epsilon: Added to the root of the second moment by `"adam"`.
        layer_decay: Ratio of the learning rates of successive blocks, for `"adam"`, or `None`: see
            `layerwise_decay`.
        decay_kernels_only: Whether biases, norms, tokens and positions have no weight decay.
        clip_norm: Largest global norm of the gradients, or `None`.
        loss: `"softmax"`; `"sigmoid"` (summed over classes), for one or several labels; `"mse"` or
            `"huber"` for regression, see `RegressionLoss`; `"contrastive"` or
            `"contrastive_sigmoid"` for images with captions, see `ContrastiveLoss`.
        sigmoid_smoothing: Label smoothing of the sigmoid loss, see `SigmoidCrossentropy`.
        averaging: Momentum of a moving average of the weights (Polyak), which replaces the weights
            at the end of training, or `None`.
        augmentation: Augmentation of the training images.
        image_size: Pixels along both sides; `None` keeps the model's.
        progressive_sizes: Image sizes of stages of equal length, rising to `image_size`, such as
            `(128, 160, 224)`: training begins with small images, which are cheaper. Empty for one
            size.
        dropout_rate: Dropout rate of the model; `None` keeps the model's.
        stochastic_depth_rate: Stochastic depth rate of the model; `None` keeps the model's.
        head_bias: Initial value of the head's bias.
        initial_head: `"zeros"`, or `"probe"`: `fine_tune` starts from a head that it fitted to
            features of about 1,000 training images, so that first steps keep what the model has
            learnt (https://arxiv.org/abs/2202.10054).
        learning_rates: Learning rates that `transfer` tries on held-out images.
        held_out: Share of the training images to hold out, or their number.
        early_stopping: Epochs without a better validation accuracy after which training stops; 0
            for never.
        class_weights: Whether the loss weighs every image by the inverse of its class's share of
            the training images, so that all classes count alike.
        balanced_sampling: Whether training draws images, with replacement, so that all classes are
            equally frequent.
        lora_rank: Rank of low-rank updates, which `fine_tune` trains with the head in place of the
            whole model (`keras_vit.models.add_lora`); 0 for none.
        lora_targets: Products of the blocks that get an update.

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
    beta_2: float = 0.999
    epsilon: float = 1e-8
    layer_decay: float | None = None
    decay_kernels_only: bool = True
    clip_norm: float | None = None
    loss: str = "softmax"
    sigmoid_smoothing: float = 0.0
    averaging: float | None = None
    augmentation: Augmentation = dataclasses.field(default=Augmentation())
    image_size: int | None = None
    progressive_sizes: tuple[int, ...] = ()
    dropout_rate: float | None = None
    stochastic_depth_rate: float | None = None
    head_bias: float = 0.0
    initial_head: str = "zeros"
    learning_rates: tuple[float, ...] = ()
    held_out: float = 0.0
    early_stopping: int = 0
    class_weights: bool = False
    balanced_sampling: bool = False
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ("qkv",)

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("loss", self.loss, tuple(LOSSES))
        check_choice("initial_head", self.initial_head, INITIAL_HEADS)
        check_positive("batch_size", self.batch_size)
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                "A recipe needs either `steps` or `epochs`. Received: "
                f"steps={self.steps}, epochs={self.epochs}."
            )
        _check_numbers(vars(self))
        if self.averaging is not None:
            check_rate("averaging", self.averaging)
        if self.layer_decay is not None and not (
            0 < self.layer_decay <= 1 and self.optimizer == "adam"
        ):
            raise ValueError(
                '`layer_decay` must be in (0, 1], with optimizer="adam". Received: '
                f"layer_decay={self.layer_decay}, optimizer={self.optimizer!r}."
            )
        sizes = self.progressive_sizes
        are_wrong = list(sizes) != sorted({*sizes}) or min(sizes, default=1) < 1 or len(sizes) == 1
        if are_wrong or (sizes and sizes[-1] != self.image_size):
            raise ValueError(
                "`progressive_sizes` must be two rising sizes or more, and the last of them "
                f"`image_size`. Received: {sizes}, image_size={self.image_size}."
            )
        if self.lora_rank < 0 or (self.lora_rank and sizes):
            raise ValueError(
                "`lora_rank` must be 0 or more, and 0 with `progressive_sizes`, whose stages are "
                f"models of their own. Received: lora_rank={self.lora_rank}, "
                f"progressive_sizes={sizes}."
            )
        if self.class_weights and self.balanced_sampling:
            raise ValueError(
                "`class_weights` and `balanced_sampling` both make classes count alike; together "
                "they favour rare classes. Set one of them."
            )

    def replace(self, **changes: Any) -> Recipe:
        """Returns a copy with other values.

        With other `steps` or `epochs`, the other of the two is `None`, and the warm-up and the
        moving average keep their share of the run unless `changes` have them. A warm-up of steps in
        a recipe of epochs is at most a fifth of the new `steps`. A new warm-up replaces the old
        one, in steps or epochs. With other `progressive_sizes`, the last of them is `image_size`.

        Args:
            **changes: Fields of the recipe and of its `Augmentation`.

        Raises:
            ValueError: If a name is unknown, a value is out of range, or the share of a moving
                average of steps in a number of epochs is not known.
        """
        _check_numbers(changes)
        random = field_names(Augmentation)
        check_names("field of a recipe", changes, {*field_names(Recipe), *random})
        if changes.get("progressive_sizes"):
            changes.setdefault("image_size", changes["progressive_sizes"][-1])
        augmentation = {name: changes.pop(name) for name in random if name in changes}
        if augmentation:
            base = changes.get("augmentation", self.augmentation)
            changes["augmentation"] = dataclasses.replace(base, **augmentation)
        return dataclasses.replace(self, **{**self._scale(changes), **changes})

    def _scale(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Other fields that follow from a change of the length or of the warm-up."""
        scaled: dict[str, Any] = {}
        length = "steps" if changes.get("steps") is not None else "epochs"
        new, old = changes.get(length), getattr(self, length)
        if new is not None:
            scaled = {"steps": None, "epochs": None}
            if old is not None:
                scaled["warmup_steps"] = int(self.warmup_steps * new / old)
                scaled["warmup_epochs"] = self.warmup_epochs * new / old
            elif self.steps is not None:
                if self.warmup_steps:
                    scaled["warmup_epochs"] = self.warmup_steps / self.steps * new
                    scaled["warmup_steps"] = 0
            elif self.warmup_steps:
                scaled |= {"warmup_steps": min(self.warmup_steps, new // 5), "warmup_epochs": 0.0}
            else:
                assert self.epochs is not None
                scaled["warmup_steps"] = int(self.warmup_epochs * new / self.epochs)
                scaled["warmup_epochs"] = 0.0
            if self.averaging is not None and "averaging" not in changes:
                scaled["averaging"] = self._scale_averaging(length, new, old)
        if changes.keys() & {"warmup_steps", "warmup_epochs"}:
            scaled |= {"warmup_steps": 0, "warmup_epochs": 0.0}
        return scaled

    def _scale_averaging(self, length: str, new: float, old: float | None) -> float:
        """The momentum that averages over the same share of a longer or shorter run."""
        assert self.averaging is not None
        if old is None:
            raise ValueError(
                f"The moving average of this recipe, averaging={self.averaging}, is made for its "
                f"{'epochs' if length == 'steps' else 'steps'}. Received: {length}={new}. Pass "
                "`averaging` too: 1 - 2 / (steps of the run) averages over the last half."
            )
        return max(0.0, 1 - (1 - self.averaging) * old / new)

    @property
    def model_options(self) -> dict[str, Any]:
        """Options for `create_model(variant, **recipe.model_options)`, without rates of `None`."""
        rates = {name: getattr(self, name) for name in _RATES if getattr(self, name) is not None}
        return {**rates, "head_bias": self.head_bias}

    def with_rates_of(self, config: Any) -> Recipe:
        """Returns a copy with a model's rates where the recipe has none.

        Args:
            config: Configuration of the model; a rate that it does not have is 0.
        """
        rates = {
            name: field_value(config, name, 0.0) for name in _RATES if getattr(self, name) is None
        }
        return self.replace(**rates)

    def options_for(self, config: Any) -> dict[str, Any]:
        """`model_options` of an architecture: BiT ResNets have no dropout and no stochastic depth.

        Args:
            config: A `ViTConfig` or a `ResNetConfig`; `None` of other models, which have all.

        Raises:
            ValueError: If the recipe has a rate that the architecture has not.
        """
        if config is None:
            return self.model_options
        missing = [name for name in self.model_options if name not in field_names(config)]
        needed = [f"{name}={self.model_options[name]}" for name in missing if getattr(self, name)]
        if needed:
            raise ValueError(
                f"This architecture has no such rate. Received: {', '.join(needed)}. Set it to 0: "
                f"`recipe.replace({missing[0]}=0)`."
            )
        return {name: x for name, x in self.model_options.items() if name not in missing}

    def for_images(self, num_images: int, replicas: int = 1) -> Recipe:
        """Returns a copy for so many images, of which an epoch has a whole batch or more.

        Batches of more images than there are would read the images several times in one step, and
        the epochs of the recipe would be fewer. A recipe of `steps` stays as it is.

        Args:
            num_images: Training images.
            replicas: Devices that share a batch evenly.
        """
        size = num_images // replicas * replicas
        if self.epochs is None or self.batch_size <= num_images or not size:
            return self
        source = f"{self.source}; batches of {size}, as there are no more images"
        return self.replace(batch_size=size, source=source)

    def count_steps(self, num_images: int) -> int:
        """Steps of a run on `num_images` training images."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * num_images / self.batch_size))

    def count_warmup(self, num_images: int) -> int:
        """Steps of the warm-up; a fifth of the run if there are too few images for more."""
        warmup = self.warmup_steps or round(self.warmup_epochs * num_images / self.batch_size)
        steps = self.count_steps(num_images)
        return warmup if warmup < steps or self.steps is not None else steps // 5

    def build_schedule(self, num_images: int) -> keras.optimizers.schedules.LearningRateSchedule:
        """The learning rate schedule, a schedule of Keras."""
        from keras_vit.train.schedules import decay_after_warmup

        steps, warmup = self.count_steps(num_images), self.count_warmup(num_images)
        options = (self.learning_rate, steps, warmup, self.end_learning_rate, self.drops)
        return decay_after_warmup(self.schedule, *options)

    def build_optimizer(
        self, num_images: int, rate_factors: Mapping[str, float] | None = None
    ) -> keras.optimizers.Optimizer:
        """The optimizer with its learning rate schedule.

        Args:
            num_images: Training images.
            rate_factors: Factors of the learning rate by variable, as for `AdamW`; for `"adam"`.
        """
        from keras_vit.train.optimizers import SGD, AdamW

        options: dict[str, Any] = {
            "decay_kernels_only": self.decay_kernels_only,
            "global_clipnorm": self.clip_norm,
            "use_ema": self.averaging is not None,
            "ema_momentum": 0.99 if self.averaging is None else self.averaging,
        }
        if rate_factors is not None:
            options["rate_factors"] = rate_factors
        rate = self.build_schedule(num_images)
        if self.optimizer == "sgd":
            return SGD(rate, momentum=0.9, weight_decay=self.weight_decay or None, **options)
        options |= {"beta_2": self.beta_2, "epsilon": self.epsilon}
        return AdamW(rate, beta_1=0.9, weight_decay=self.weight_decay, **options)

    def build_loss(self) -> keras.losses.Loss:
        """The loss for logits and one-hot labels, or for images with captions.

        Raises:
            ValueError: If it is one of regression, which needs the targets too.
        """
        import keras

        from keras_vit.train.losses import ContrastiveLoss, SigmoidCrossentropy

        if LOSSES[self.loss] == ("pairs",):
            return ContrastiveLoss("softmax" if self.loss == "contrastive" else "sigmoid")
        if LOSSES[self.loss] == ("regression",):
            raise ValueError(
                f"The loss {self.loss!r} depends on the targets: `fine_tune` and `pretrain` make "
                "it, or `RegressionLoss` with their mean and standard deviation."
            )
        if self.loss == "sigmoid":
            return SigmoidCrossentropy(self.sigmoid_smoothing)
        return keras.losses.CategoricalCrossentropy(from_logits=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dataclasses.asdict(self)


def _check_numbers(fields: Mapping[str, Any]) -> None:
    """Raises ValueError for lengths and rates of 0 or less, and for numbers below 0."""
    for name in ("steps", "epochs", "learning_rate"):
        value = fields.get(name, 1)
        if value is None and name != "learning_rate":
            continue  # the other one decides
        if value is None or not value > 0:  # nor NaN
            raise ValueError(f"`{name}` must be above 0. Received: {name}={value}.")
    for name in ("warmup_steps", "warmup_epochs", "early_stopping"):
        if fields.get(name, 0) < 0:
            raise ValueError(f"`{name}` must be 0 or more. Received: {name}={fields[name]}.")
