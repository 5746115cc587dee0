"""Settings of `keras-vit segment train`: each is a flag, and a key of its `--config`.

Nothing here imports Keras, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses

from keras_vit.checks import check_choice, check_positive
from keras_vit.cli.settings import settings_of_fields

COMMAND = "segment train"


@dataclasses.dataclass(frozen=True)
class SegmentSettings:
    """Settings of a run that trains a segmentation head.

    Args:
        images: Folder of images.
        masks: Folder of PNG masks of the same names.
        classes: Text file with a class per line, such as `road`, or `road 128 64 128` for coloured
            masks.
        model: Model to train a head on: {MODEL_FORMS}.
        head: linear, mlp or dpt, see docs/dense.md.
        output: Folder of the run.
        validation: Share of the images to hold out, or 0.
        image_size: Pixels along both sides; by default those of the model.
        epochs: Number of epochs.
        batch_size: Images per step.
        learning_rate: Peak of a cosine schedule.
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
    learning_rate: float = 1e-3
    layer_decay: float | None = None
    freeze: bool = False
    first_value: int = 0
    ignored: tuple[int | tuple[int, int, int], ...] = (255,)
    mask_suffix: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        missing = [x for x in ("images", "masks", "classes", "model") if getattr(self, x) is None]
        if missing:
            raise ValueError(
                f"Pass --{missing[0]}, or `{missing[0]}` in --config. `keras-vit {COMMAND} --help` "
                "says what it is."
            )
        check_choice("head", self.head, ("linear", "mlp", "dpt"))
        check_positive("epochs", self.epochs)
        check_positive("batch_size", self.batch_size)


SETTINGS = settings_of_fields((SegmentSettings, "run", "", ()))
