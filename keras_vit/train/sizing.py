"""Recipes by the number of images: BiT-HyperRule, and model and recipe for small data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_vit.data.augmentation import Augmentation
from keras_vit.train.hyperparameters import Recipe
from keras_vit.train.recipes import BIT


def hyper_rule(num_images: int, pixels: tuple[int, int]) -> Recipe:
    """BiT-HyperRule: a fine-tuning recipe from the number and size of the images.

    Args:
        num_images: Training images.
        pixels: Height and width of a typical image.

    Returns:
        A `Recipe`: crops of 128 from 160 pixels for images below 96 x 96, otherwise of 480 from
        512; 500, 10,000 or 20,000 steps; mixup for 20,000 images or more.
    """
    is_small = pixels[0] * pixels[1] < 96 * 96
    resized, size = (160, 128) if is_small else (512, 480)
    steps, warmup = 20_000, 500
    if num_images < 20_000:
        steps, warmup = 500, 100
    elif num_images < 500_000:
        steps = 10_000
    return Recipe(
        source=f"{BIT}, section 3.2, with the resolutions of its repository; the paper's are 448 "
        "and 384. Mixup as in big_vision.",
        optimizer="sgd",
        learning_rate=0.003,
        batch_size=512,
        steps=steps,
        warmup_steps=warmup,
        schedule="staircase",
        drops={500: (0.4, 0.6, 0.8)}.get(steps, (0.3, 0.6, 0.9)),
        image_size=size,
        augmentation=Augmentation(
            crop="resize",
            resize_size=(resized, resized),
            mixup=0.1 if num_images >= 20_000 else 0.0,
        ),
    )


FEW_IMAGES = 5_000
# Peak learning rates of a trained network by optimizer. With 3,000 images of CIFAR-10 and 200 steps
# at 224 pixels: 34 % right with either from a head of zeros, 80 % with AdamW from that of a probe,
# 75 % with low-rank updates (docs/few-labels.md).
_TUNING_RATES = {"adam": 3e-5, "sgd": 1e-3}
_LARGE_CROPS = Augmentation(area_range=(0.25, 1.0))
_UNEQUAL = 2  # times the images of the smallest class
# Windows change sizes, counts and shares, which are numbers to predict (docs/recipes.md).
WHOLE: dict[str, Any] = {"crop": "none", "area_range": Augmentation().area_range}
_FOR_OTHER_TASKS: dict[str, dict[str, Any]] = {
    "multi_label": {"loss": "sigmoid", "area_range": (0.5, 1.0), "label_smoothing": 0.0},
    "regression": {"loss": "huber", **WHOLE, "label_smoothing": 0.0},
}


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """A model and a recipe for a number of images. Made by `plan_training`.

    Args:
        model: Name of the architecture.
        model_options: Fields of its configuration that differ from that architecture.
        recipe: Hyperparameters; `recipe.held_out` is the share of images to validate on.
    """

    model: str
    model_options: dict[str, Any]
    recipe: Recipe


def plan_training(
    num_images: int,
    pretrained: bool = False,
    task: str = "single_label",
    class_sizes: Sequence[int] = (),
    lora_rank: int = 0,
    initial_head: str | None = None,
) -> TrainingPlan:
    """Chooses model and recipe by the number of images: "small, from scratch" or "fine-tune".

    From scratch: a small ViT behind a convolutional root, which learns from few images what patches
    alone do not (https://arxiv.org/abs/2106.14881; the hybrids of the ViT paper, section 4.4). For
    fewer than 5,000 images it has 4 blocks of width 128 and patches of 8 pixels, because more,
    smaller patches are worth more than a wider and deeper model of the same cost. The settings are
    those of the official code of https://arxiv.org/abs/2112.13492 for small data sets: AdamW with a
    rate of 1e-3 and a decay of 0.05, 100 epochs, a tenth of them warm-up, cosine, stochastic depth
    and label smoothing of 0.1; its mixing, AutoAugment and erasing are left out. The image size
    grows with the number of images.

    Fine-tuning: cosine, clipping and crops of the ViT paper's Table 4; crops of a quarter of the
    area at least for fewer than 5,000 images, as from scratch. Batches of 32 instead of 512,
    because that many images would be most of a small data set. Ten epochs, and BiT-HyperRule's 500
    steps at least. AdamW from the head of a probe, because a head of zeros makes the first steps
    change what the network has learnt (https://arxiv.org/abs/2202.10054). A head of zeros takes the
    paper's SGD, with a rate between those that linear and square-root scaling make of 0.01, a
    middle one of the paper's.

    Several labels take the sigmoid loss, regression Huber's, both without label smoothing. Crops
    for several labels have half of the area at least, because a label may depend on a part of an
    image. Numbers take whole images, because a number may be a size, a count or a share.

    Where the largest class has twice the images of the smallest or more, the loss weighs classes
    alike (`class_weights`): otherwise the smallest may never be predicted.

    Args:
        num_images: Training images, before validation images are split off.
        pretrained: Whether the model has trained weights.
        task: What the labels of the images are, see `ImageSet`.
        class_sizes: Training images of every class, where they are known.
        lora_rank: Rank of low-rank updates of a trained model; 0 trains all of it. Updates take
            AdamW with a rate of 1e-3 and a head of zeros: SGD moves them too little from theirs.
        initial_head: That of a trained model, see `Recipe`; `None` takes `"probe"` where all of it
            is trained. Several workers and a model with two heads need `"zeros"`.

    Returns:
        A `TrainingPlan`.

    Example:

    >>> plan = keras_vit.train.plan_training(600)
    >>> plan.recipe.image_size, plan.recipe.batch_size, plan.recipe.steps
    (64, 32, 1875)
    """
    held_out = 0.2 if num_images < 2_000 else 0.1
    changes = dict(_FOR_OTHER_TASKS.get(task, {}))
    there = [size for size in class_sizes if size]
    changes["class_weights"] = bool(there) and max(there) >= _UNEQUAL * min(there)
    if pretrained:
        steps = min(20_000, max(500, 10 * num_images // 32))
        if initial_head is None:
            initial_head = "zeros" if lora_rank else "probe"
        optimizer = "adam" if initial_head == "probe" else "sgd"
        recipe = Recipe(
            source=f"small, fine-tune: plan_training({num_images}, pretrained=True)",
            optimizer=optimizer,
            learning_rate=_TUNING_RATES[optimizer],
            batch_size=32,
            steps=steps,
            warmup_steps=steps // 10,
            clip_norm=1.0,
            augmentation=_LARGE_CROPS if num_images < FEW_IMAGES else Augmentation(),
            held_out=held_out,
            initial_head=initial_head,
        )
        if lora_rank:
            changes |= {"lora_rank": lora_rank, "optimizer": "adam", "learning_rate": 1e-3}
            changes["source"] = f"{recipe.source[:-1]}, lora_rank={lora_rank})"
        return TrainingPlan("vit_ti16", {}, recipe.replace(**changes))
    batch = 32 if num_images < FEW_IMAGES else 64 if num_images < 50_000 else 256
    steps = max(500, 100 * num_images // batch)
    recipe = Recipe(
        source=f"small, from scratch: plan_training({num_images})",
        optimizer="adam",
        learning_rate=1e-3,
        batch_size=batch,
        steps=steps,
        warmup_steps=steps // 10,
        weight_decay=0.05,
        clip_norm=1.0,
        image_size=64 if num_images < FEW_IMAGES else 96 if num_images < 50_000 else 128,
        dropout_rate=0.0,
        stochastic_depth_rate=0.1,
        augmentation=dataclasses.replace(_LARGE_CROPS, label_smoothing=0.1),
        held_out=held_out,
    )
    options: dict[str, Any] = {"patch_size": (4, 4), "depth": 6}
    if num_images < FEW_IMAGES:
        options = {"patch_size": (2, 2), "width": 128, "depth": 4, "num_heads": 4, "mlp_dim": 256}
    return TrainingPlan("r_vit_ti16", options, recipe.replace(**changes))
