"""Settings of `keras-vit pretrain`: each is a flag, and a key of its `--config`.

Nothing here imports Keras, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses

from keras_vit.checks import check_choice, check_positive
from keras_vit.cli.run_settings import MODEL_FORMS, PRECISIONS, STRATEGIES, UNREADABLE
from keras_vit.cli.settings import settings_of_fields
from keras_vit.fields import documented

COMMAND = "pretrain"
METHODS = ("mae",)


@documented
@dataclasses.dataclass(frozen=True)
class PretrainSettings:
    """Settings of a run that trains a ViT on images without labels."""

    _descriptions = f"""
    images: Folder of images; their folders are no classes.
    method: mae, a masked autoencoder.
    model: ViT to train: {MODEL_FORMS}.
    output: Folder of the run.
    image_size: Pixels along both sides; by default those of the model.
    epochs: Number of epochs.
    batch_size: Images per step.
    base_rate: Peak of the learning rate for 256 images a step.
    warmup_epochs: Epochs of linear warm-up.
    weight_decay: As in AdamW.
    mask_rate: Share of the patches that are hidden.
    decoder_width: Dimension of the decoder's tokens.
    decoder_depth: Blocks of the decoder.
    decoder_heads: Attention heads of the decoder.
    normalize_pixels: Whether patches are predicted with mean 0 and variance 1.
    unreadable: Treatment of files that cannot be read: error or skip.
    precision: Dtype policy of the layers: {", ".join(PRECISIONS)}.
    strategy: Devices, as for `train`.
    seed: Random seed.
    """
    images: str | None = None
    method: str = "mae"
    model: str = "vit_ti16"
    output: str = "runs/pretrain"
    image_size: int | None = None
    epochs: int = 100
    batch_size: int = 64
    base_rate: float = 1.5e-4
    warmup_epochs: float = 5.0
    weight_decay: float = 0.05
    mask_rate: float = 0.75
    decoder_width: int = 192
    decoder_depth: int = 4
    decoder_heads: int = 3
    normalize_pixels: bool = True
    unreadable: str = "error"
    precision: str = "float32"
    strategy: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_choice("unreadable", self.unreadable, UNREADABLE)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("strategy", self.strategy, STRATEGIES)
        check_positive("epochs", self.epochs)
        check_positive("batch_size", self.batch_size)


SETTINGS = settings_of_fields((PretrainSettings, "run", "", ()))
