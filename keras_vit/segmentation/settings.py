"""Settings of `keras-vit segment train`: each is a flag, and a key of its `--config`.

Nothing here imports Keras, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses

from keras_vit.checks import check_choice, check_positive
from keras_vit.cli.run_settings import MODEL_FORMS
from keras_vit.cli.settings import settings_of_fields
from keras_vit.fields import documented
from keras_vit.train.recipes import DENSE

COMMAND = "segment train"
# Learning rates of heads on a frozen model, of all weights of a trained model, and of a model of
# random weights by head, measured on drawn pictures (docs/benchmarks/dense_heads.jsonl).
FROZEN_RATES = {"linear": 1e-2, "mlp": 3e-3, "dpt": 1e-3}
TRAINED_RATE = 1e-4
RANDOM_RATES = {"linear": 1e-3, "mlp": 1e-3, "dpt": 5e-4}


def _by_head(rates: dict[str, float]) -> str:
    return ", ".join(f"{rate:g} ({head})" for head, rate in rates.items())


@documented
@dataclasses.dataclass(frozen=True)
class SegmentSettings:
    """Settings of a run that trains a segmentation head."""

    _descriptions = f"""
    images: Folder of images.
    masks: Folder of PNG masks of the same names.
    classes: Text file with a class per line, such as `road`, or `road 128 64 128` for coloured
        masks; by default the values of the masks.
    model: Model to train a head on: {MODEL_FORMS}; by default a small one with random weights, by
        the number of images.
    head: linear, mlp or dpt, see docs/dense.md.
    output: Folder of the run.
    validation: Share of the images to hold out, or 0.
    image_size: Pixels along both sides; by default those of the model.
    epochs: Number of epochs.
    batch_size: Images per step.
    learning_rate: Peak of a cosine schedule; by default {TRAINED_RATE:g} for trained models, with
        --freeze {_by_head(FROZEN_RATES)}, and for random weights {_by_head(RANDOM_RATES)}.
    warmup_steps: Steps of linear warm-up; by default the share of the recipe `dense`.
    clip_norm: Largest global norm of the gradients, or none.
    class_weights: Whether the loss weighs every pixel by the inverse of its class's share of the
        training masks, so that all classes count alike.
    layer_decay: Ratio of the learning rates of successive blocks.
    freeze: Whether to train the head alone.
    first_value: Value of the first class in the masks.
    ignored: Values of no class, or colours such as 224,224,192.
    mask_suffix: What follows the name of an image in that of its mask.
    seed: Random seed.
    """
    images: str | None = None
    masks: str | None = None
    classes: str | None = None
    model: str | None = None
    head: str = "linear"
    output: str = "runs/segment"
    validation: float = 0.2
    image_size: int | None = None
    epochs: int = 20
    batch_size: int = 8
    learning_rate: float | None = None
    warmup_steps: int | None = None
    clip_norm: float | None = DENSE.clip_norm
    class_weights: bool = False
    layer_decay: float | None = None
    freeze: bool = False
    first_value: int = 0
    ignored: tuple[int | tuple[int, int, int], ...] = (255,)
    mask_suffix: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("head", self.head, ("linear", "mlp", "dpt"))
        check_positive("epochs", self.epochs)
        check_positive("batch_size", self.batch_size)

    def with_learning_rate(self, is_trained: bool) -> SegmentSettings:
        """Returns a copy with the default of the learning rate.

        Args:
            is_trained: Whether the model has trained weights.
        """
        if self.learning_rate is not None:
            return self
        if self.freeze:
            rate = FROZEN_RATES[self.head]
        else:
            rate = TRAINED_RATE if is_trained else RANDOM_RATES[self.head]
        return dataclasses.replace(self, learning_rate=rate)


SETTINGS = settings_of_fields((SegmentSettings, "run", "", ()))
