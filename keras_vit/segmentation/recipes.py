"""Table of published recipes for segmentation heads on frozen features, each with its source."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_vit.checks import check_names
from keras_vit.segmentation.mask_pipeline import MaskAugmentation
from keras_vit.train.hyperparameters import Recipe

_FALL = (
    "Here the learning rate falls from the end of the warm-up on, there from its beginning: it is "
    "at most 4 % of its peak higher here. Colours change in every image, there each change in "
    "half of them. The scale is drawn evenly there, on a logarithmic scale here, and crops of "
    "which one class covers more than three quarters are drawn again there (`cat_max_ratio`)."
)


@dataclasses.dataclass(frozen=True)
class SegmentationRecipe:
    """Hyperparameters for training a segmentation head on frozen features.

    Args:
        source: Source of the numbers, and what differs here.
        image_size: Pixels along both sides of the crops, and of the windows of evaluation.
        stride: Pixels between the windows of evaluation, for `evaluate_masks`.
        dropout_rate: Before the last convolution, for `build_segmenter`.
        weight_decay: Factor that is multiplied by the current learning rate, of all variables.
        schedule: `"linear"` or `"cosine"`, to 0.
        augmentation: Random transforms of `mask_batches`.
        head: The head of `build_segmenter`.
        blocks: The blocks that it reads, as for `build_segmenter`.
        learning_rate: Peak learning rate of AdamW.
        batch_size: Images per step.
        steps: Steps of the optimizer.
        warmup_steps: Steps of linear warm-up from a learning rate of 0.
    """

    source: str
    image_size: int
    stride: int
    dropout_rate: float
    weight_decay: float
    schedule: str
    augmentation: MaskAugmentation
    head: str = "linear"
    blocks: int = 1
    learning_rate: float = 1e-3
    batch_size: int = 16
    steps: int = 40_000
    warmup_steps: int = 1_500

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Makes the optimizer, with the schedule of the learning rate."""
        names = "source", "learning_rate", "batch_size", "steps", "warmup_steps", "weight_decay"
        fields: dict[str, Any] = {name: getattr(self, name) for name in (*names, "schedule")}
        recipe = Recipe(optimizer="adam", decay_kernels_only=False, **fields)
        return recipe.build_optimizer(0)  # of the steps of the recipe

    def replace(self, **changes: Any) -> SegmentationRecipe:
        """Returns a copy with other values.

        Args:
            **changes: Fields. With other `steps`, the warm-up keeps its share of the run, unless
                `warmup_steps` is one of them.
        """
        steps = changes.get("steps", self.steps)
        warmup = self.warmup_steps * steps // self.steps
        return dataclasses.replace(self, **{"warmup_steps": warmup, **changes})


_DINOV2 = SegmentationRecipe(
    source="The configuration in DINOv2's heads for ADE20K, as stored in BrianPulfer/"
    "robustness-tokens (b1af51e, configs/eval/segmentation/original_confs): 8 GPUs with 2 images "
    f"each. {_FALL}",
    image_size=512,
    stride=341,
    dropout_rate=0.0,
    weight_decay=1e-4,
    schedule="linear",
    augmentation=MaskAugmentation(scale=(0.5, 2.0), hue=0.1),
)
SEGMENTATION_RECIPES: dict[str, SegmentationRecipe] = {
    "dinov2_ade20k_linear": _DINOV2,
    "dinov3_ade20k_linear": _DINOV2.replace(
        source="facebookresearch/dinov3 (6876159), dinov3/eval/segmentation/configs/"
        f"config-ade20k-linear-training.yaml: 8 GPUs with 2 images each. Dropout "
        f"leaves out whole channels there, single values here. {_FALL}",
        dropout_rate=0.1,
        weight_decay=1e-3,
        schedule="cosine",
        augmentation=MaskAugmentation(scale=(0.5, 2.0), hue=0.5),
    ),
}


def find_segmentation_recipe(name: str) -> SegmentationRecipe:
    """Finds a recipe for a segmentation head by its name.

    Args:
        name: `"dinov2_ade20k_linear"` or `"dinov3_ade20k_linear"`.

    Raises:
        ValueError: If there is no recipe with that name.
    """
    check_names("recipe for segmentation", [name], SEGMENTATION_RECIPES)
    return SEGMENTATION_RECIPES[name]
