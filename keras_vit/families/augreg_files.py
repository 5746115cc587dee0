"""Names of the files of "How to train your ViT?", from how each was trained."""

from __future__ import annotations

import dataclasses

FOLDER = "gs://vit_models/augreg"

# Stems of the files, by variant; https://github.com/google-research/vision_transformer
MODELS = {
    "vit_ti16": "Ti_16",
    "vit_s16": "S_16",
    "vit_s32": "S_32",
    "vit_b8": "B_8",
    "vit_b16": "B_16",
    "vit_b32": "B_32",
    "vit_l16": "L_16",
    "r_vit_ti16": "R_Ti_16",
    "r26_vit_s32": "R26_S_32",
    "r26_vit_b32": "R26_B_32",
    "r50_vit_l32": "R50_L_32",
}
DATASETS = ("i1k", "i21k", "i21k_30")
AUGMENTATIONS = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")
ADAPTED_TO = ("imagenet2012", "cifar100", "oxford_iiit_pet", "kitti", "resisc45")
# Classes of the pre-training data; of the fine-tuned ones in the order above. KITTI's task there
# is the distance to the nearest vehicle, in four steps.
_CLASSES = {"i1k": 1000, "i21k": 21843, "i21k_30": 21843}
_ADAPTED_CLASSES = dict(zip(ADAPTED_TO, (1000, 100, 37, 4, 45), strict=True))


@dataclasses.dataclass(frozen=True)
class AugRegFile:
    """One file of `gs://vit_models/augreg`, by how it was trained.

    Numbers are the words of the file's name (`"0.001"`, `"20k"`), so that it is written again as
    it was read.

    Args:
        model: Stem of the model: `"B_16"`, `"R26_S_32"`.
        dataset: `"i1k"`, `"i21k"` (300 epochs) or `"i21k_30"`.
        epochs: Epochs of pre-training.
        learning_rate: Of pre-training.
        augmentation: `"none"`, `"light0"`, ... `"strong2"`.
        weight_decay: Of pre-training, as in AdamW.
        dropout: Rate.
        stochastic_depth: Rate of the last block.
        adapted_to: What it was fine-tuned on, or `None`.
        steps: Steps of fine-tuning. `"0k"` means 500.
        adapted_learning_rate: Of fine-tuning.
        image_size: Pixels of fine-tuning; pre-training has 224.
    """

    model: str
    dataset: str
    epochs: int
    learning_rate: str
    augmentation: str
    weight_decay: str
    dropout: str
    stochastic_depth: str
    adapted_to: str | None = None
    steps: str | None = None
    adapted_learning_rate: str | None = None
    image_size: int = 224

    @property
    def name(self) -> str:
        """The file's name, with its `.npz`."""
        pretrained = (
            f"{self.model}-{self.dataset}-{self.epochs}ep-lr_{self.learning_rate}"
            f"-aug_{self.augmentation}-wd_{self.weight_decay}-do_{self.dropout}"
            f"-sd_{self.stochastic_depth}"
        )
        if self.adapted_to is None:
            return f"{pretrained}.npz"
        return (
            f"{pretrained}--{self.adapted_to}-steps_{self.steps}-lr_{self.adapted_learning_rate}"
            f"-res_{self.image_size}.npz"
        )

    @property
    def address(self) -> str:
        """Where it is published."""
        return f"{FOLDER}/{self.name}"

    @property
    def variant(self) -> str:
        """The name of its architecture."""
        return next(variant for variant, stem in MODELS.items() if stem == self.model)

    @property
    def classes(self) -> int:
        """Outputs of its head."""
        return _ADAPTED_CLASSES[self.adapted_to] if self.adapted_to else _CLASSES[self.dataset]
