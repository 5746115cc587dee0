"""Table of published training recipes (ViT, AugReg, BiT, DeiT, CLIP), each with its source."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from keras_vit.data.augmentation import AUGREG, Augmentation
from keras_vit.train.hyperparameters import Recipe

_PAPER = "https://arxiv.org/abs/2010.11929"
_AUGREG = "https://arxiv.org/abs/2106.10270"
BIT = "https://arxiv.org/abs/1912.11370"
_NO_DROPOUT: dict[str, Any] = {"dropout_rate": 0.0, "stochastic_depth_rate": 0.0}
_DECAY_UNKNOWN = (
    "The paper does not say which weights decay; kernels only, as in the authors' big_vision."
)


def _pretrain(data: str, rate: float, epochs: float, **changes: Any) -> Recipe:
    """A row of Table 3: batch 4096, Adam, 10,000 steps of warm-up, 224 pixels."""
    fields: dict[str, Any] = {
        "source": f"{_PAPER}, Table 3, {data}. {_DECAY_UNKNOWN} Loss, head bias and end of the "
        "linear fall: the authors, in issues 2 and 34 of google-research/vision_transformer.",
        "optimizer": "adam",
        "learning_rate": rate,
        "batch_size": 4096,
        "epochs": epochs,
        "warmup_steps": 10_000,
        "schedule": "linear",
        "end_learning_rate": 1e-5,
        "weight_decay": 0.1,
        "loss": "sigmoid",
        "head_bias": -10.0,
        "image_size": 224,
        **_NO_DROPOUT,
    }
    return Recipe(**{**fields, **changes})


_IN21K: dict[str, Any] = {"weight_decay": 0.03, "dropout_rate": 0.1}

# Table 3. The name of a recipe holds its data and models; `_14` and `_30` are epochs.
PRETRAINING: dict[str, Recipe] = {
    "paper_jft_b": _pretrain("JFT-300M", 8e-4, 7),  # B/16 and B/32
    "paper_jft_l32": _pretrain("JFT-300M", 6e-4, 7),
    "paper_jft_l16": _pretrain("JFT-300M", 4e-4, 7),
    "paper_jft_l16_14": _pretrain("JFT-300M", 4e-4, 14),
    "paper_jft_h14": _pretrain("JFT-300M", 3e-4, 14),
    "paper_jft_r50": _pretrain("JFT-300M", 1e-3, 7),  # R50x1 and R50x2
    "paper_jft_r101": _pretrain("JFT-300M", 8e-4, 7),
    "paper_jft_r152": _pretrain("JFT-300M", 6e-4, 7),  # R152x1 and R152x2
    "paper_jft_r50_b": _pretrain("JFT-300M", 8e-4, 7),  # R50+ViT-B/16 and B/32
    "paper_jft_r50_l32": _pretrain("JFT-300M", 2e-4, 7),
    "paper_jft_r50_l16": _pretrain("JFT-300M", 4e-4, 7),
    "paper_jft_r50_l16_14": _pretrain("JFT-300M", 4e-4, 14),
    "paper_in21k_b": _pretrain("ImageNet-21k", 1e-3, 90, **_IN21K),
    "paper_in21k_l": _pretrain("ImageNet-21k", 1e-3, 90, **_IN21K),
    "paper_in21k_l_30": _pretrain("ImageNet-21k", 1e-3, 30, **_IN21K),
    "paper_in1k": _pretrain(
        "ImageNet",
        3e-3,
        300,
        schedule="cosine",
        end_learning_rate=0.0,
        weight_decay=0.3,
        dropout_rate=0.1,
        clip_norm=1.0,
        sigmoid_smoothing=2e-4,  # labels of 1 - 1e-4 and 1e-4
    ),
}


def _finetune(
    data: str, steps: int, rates: tuple[float, ...], held_out: float, rate: float, **changes: Any
) -> Recipe:
    """A row of Table 4: SGD with momentum 0.9, batch 512, cosine, no decay, clipped at 1.

    It states no dropout: the published configurations of the variants do, see `variants.py`.
    """
    fields: dict[str, Any] = {
        "source": f"{_PAPER}, Table 4, {data}. Warm-up: vision_transformer's 500 steps, "
        "big_vision's 100 of 500. `learning_rate`: big_vision's for B/32.",
        "optimizer": "sgd",
        "learning_rate": rate,
        "learning_rates": rates,
        "held_out": held_out,
        "batch_size": 512,
        "steps": steps,
        "warmup_steps": 100 if steps <= 500 else 500,
        "clip_norm": 1.0,
        "image_size": 384,
    }
    return Recipe(**{**fields, **changes})


_RATES = (0.001, 0.003, 0.01, 0.03)
_IMAGENET_RATES = (0.003, 0.01, 0.03, 0.06)

# Table 4.
FINE_TUNING: dict[str, Recipe] = {
    "finetune_imagenet": _finetune("ImageNet", 20_000, _IMAGENET_RATES, 0.01, 0.03),
    # Table 2 of the paper: 512 pixels (L/16; 518 for H/14) and averaged weights.
    "finetune_imagenet_512": _finetune(
        "ImageNet as in Table 2", 20_000, _IMAGENET_RATES, 0.01, 0.03,
        image_size=512, averaging=0.9999,
    ),
    "finetune_cifar10": _finetune("CIFAR-10", 10_000, _RATES, 0.02, 0.003),
    "finetune_cifar100": _finetune("CIFAR-100", 10_000, _RATES, 0.02, 0.01),
    "finetune_pets": _finetune("Oxford-IIIT Pets", 500, _RATES, 0.1, 0.003),
    "finetune_flowers": _finetune("Oxford Flowers-102", 500, _RATES, 0.1, 0.003),
    "finetune_vtab": _finetune(
        "VTAB, 1,000 images", 2_500, (0.01,), 200, 0.01, warmup_steps=200
    ),
}  # fmt: skip


def _augreg(data: str, epochs: int, setting: str, decay: float, rate: float) -> Recipe:
    """One of the 28 settings of AugReg's grid for a model and a data set."""
    return Recipe(
        source=f"{_AUGREG}, section 3, and big_vision's configs, where the loss is the sigmoid's "
        "and its decay of 1e-4 is 0.1 here.",
        optimizer="adam",
        learning_rate=1e-3,
        batch_size=4096,
        epochs=epochs,
        warmup_steps=10_000,
        weight_decay=decay,
        clip_norm=1.0,
        loss="sigmoid",
        head_bias=-10.0 if data == "in21k" else -6.9,
        image_size=224,
        augmentation=AUGREG[setting],
        dropout_rate=rate,
        stochastic_depth_rate=rate,
    )


# All of AugReg's grid: data and epochs, augmentation, decay, dropout and stochastic depth.
AUGREG_PRETRAINING: dict[str, Recipe] = {
    f"augreg_{data}_{epochs}_{setting}_wd{decay}_do{rate}": _augreg(
        data, epochs, setting, decay, rate
    )
    for data, epochs in (("in1k", 300), ("in21k", 30), ("in21k", 300))
    for setting in AUGREG
    for decay in (0.03, 0.1)
    for rate in (0.0, 0.1)
}


def _augreg_finetune(data: str, steps: int, warmup: int, rates: tuple[float, ...]) -> Recipe:
    return _finetune(
        *(data, steps, rates, 0.02, rates[-1]),
        source=f"{_AUGREG}, section 3, {data}; also at 224 pixels. Held-out share: ours.",
        warmup_steps=warmup,
        **_NO_DROPOUT,  # vision_transformer's `augreg` config
    )


_AUGREG_RATES = (0.001, 0.003, 0.01)
AUGREG_FINE_TUNING: dict[str, Recipe] = {
    "augreg_finetune_imagenet": _augreg_finetune("ImageNet", 20_000, 500, (0.01, 0.03)),
    "augreg_finetune_pets": _augreg_finetune("Pets, KITTI", 500, 100, _AUGREG_RATES),
    "augreg_finetune_pets_long": _augreg_finetune("Pets, KITTI", 2_500, 200, _AUGREG_RATES),
    "augreg_finetune_cifar100": _augreg_finetune("CIFAR-100, Resisc45", 2_500, 200, _AUGREG_RATES),
    "augreg_finetune_cifar100_long": _augreg_finetune(
        "CIFAR-100, Resisc45", 10_000, 500, _AUGREG_RATES
    ),
    # big_vision's transfer of B/32: means of 5 runs of 98.55 and 91.35 %.
    **{
        f"big_vision_{name}": dataclasses.replace(
            FINE_TUNING[name],
            source="big_vision, configs/transfer.py",
            augmentation=Augmentation(crop="resize_small", resize_size=(448, 448)),
            **_NO_DROPOUT,
        )
        for name in ("finetune_cifar10", "finetune_cifar100")
    },
}

_PLAIN = Recipe(
    source="https://arxiv.org/abs/2205.01580 and big_vision's config; its first moment is "
    "bfloat16, ours is float32. S/16 with sin-cos positions and mean pooling, 99 % of the images.",
    optimizer="adam",
    learning_rate=1e-3,
    batch_size=1024,
    epochs=90,
    warmup_steps=10_000,
    weight_decay=0.1,
    clip_norm=1.0,
    image_size=224,
    augmentation=AUGREG["light2"],
    **_NO_DROPOUT,
)
_BIT_FIELDS: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 0.48,  # 0.03 for every 256 images
    "batch_size": 4096,
    "warmup_steps": 5_000,
    "weight_decay": 1e-3,
    "image_size": 224,
}
# Heads for segmentation and detection, and short runs of whole models with them.
DENSE = Recipe(
    source="ours, measured (docs/benchmarks/dense_heads.jsonl): warm-up and clipping let every "
    "head train at three times this rate. Decay as in DINOv2's linear heads.",
    optimizer="adam",
    learning_rate=1e-3,
    batch_size=8,
    epochs=20,
    warmup_epochs=2,
    weight_decay=1e-4,
    clip_norm=1.0,
)
_DEIT = Recipe(
    source="https://arxiv.org/abs/2012.12877, Table 9, and its repository. Differences: no "
    "repeated augmentation; RandAugment has AugReg's operations with magnitude 9, not timm's; "
    "the learning rate changes every step, not every epoch.",
    optimizer="adam",
    learning_rate=1e-3,  # 5e-4 for every 512 images
    batch_size=1024,
    epochs=300,
    warmup_epochs=5,
    end_learning_rate=1e-5,
    weight_decay=0.05,
    image_size=224,
    dropout_rate=0.0,
    stochastic_depth_rate=0.1,
    augmentation=Augmentation(
        area_range=(0.08, 1.0),
        interpolation="bicubic",
        rand_augment=(2, 9),
        erasing=0.25,
        label_smoothing=0.1,
        mixup=0.8,
        cutmix=1.0,
        mixing="timm",
    ),
)
_MAE = "https://arxiv.org/abs/2111.06377"
_MAE_TUNING = dataclasses.replace(
    _DEIT,
    source=f"{_MAE}, Table 9, and FINETUNE.md of its repository, whose rates and stochastic depth "
    "these are. RandAugment as in deit. Features are the mean of the patches.",
    learning_rate=2e-3,  # 5e-4 for every 256 images
    epochs=100,
    end_learning_rate=1e-6,
    layer_decay=0.65,
)
_LIT_COCO = Recipe(
    source="big_vision, configs/proj/image_text/lit_coco.py: a locked image tower, and a text "
    "tower of BERT; scale 10 at first. Its decay of 0.01 is not multiplied by the learning rate: "
    "10 here.",
    optimizer="adam",
    learning_rate=1e-3,
    batch_size=512,
    steps=5_000,
    warmup_steps=150,
    weight_decay=10.0,
    clip_norm=1.0,
    loss="contrastive",
    image_size=224,
    augmentation=Augmentation(crop="resize", resize_size=(224, 224), rand_augment=(2, 10)),
    **_NO_DROPOUT,
)
RECIPES: dict[str, Recipe] = {
    **PRETRAINING,
    **FINE_TUNING,
    **AUGREG_PRETRAINING,
    **AUGREG_FINE_TUNING,
    "plain_vit_90": _PLAIN,  # 76.5 % top-1
    "plain_vit_150": dataclasses.replace(_PLAIN, epochs=150),
    "plain_vit_300": dataclasses.replace(_PLAIN, epochs=300),  # 80.0 %
    "deit": _DEIT,
    # Without labels: for `keras-vit pretrain` and `keras_vit.self_supervised`.
    "mae": Recipe(
        source=f"{_MAE}, Table 8, and PRETRAIN.md of its repository. The paper's table of the "
        "linear probe needs LARS, which this package has not.",
        optimizer="adam",
        learning_rate=2.4e-3,  # 1.5e-4 for every 256 images
        batch_size=4096,
        epochs=800,
        warmup_epochs=40,
        weight_decay=0.05,
        beta_2=0.95,
        image_size=224,
        augmentation=Augmentation(area_range=(0.2, 1.0), interpolation="bicubic"),
        **_NO_DROPOUT,
    ),
    "mae_finetune_b": _MAE_TUNING,  # 83.6 % top-1
    "mae_finetune_l": dataclasses.replace(
        _MAE_TUNING, learning_rate=4e-3, epochs=50, layer_decay=0.75, stochastic_depth_rate=0.2
    ),
    "mae_finetune_h": dataclasses.replace(
        _MAE_TUNING, learning_rate=4e-3, epochs=50, layer_decay=0.75, stochastic_depth_rate=0.3
    ),
    "bit_s": Recipe(
        source=f"{BIT}, section 3; also BiT-M. Its decay of 1e-4 is part of the gradient, "
        "where a momentum of 0.9 multiplies it by ten: about 1e-3 here.",
        epochs=90,
        schedule="staircase",
        drops=(30 / 90, 60 / 90, 80 / 90),
        **_BIT_FIELDS,
    ),
    "bit_l": Recipe(
        source=f"{BIT}, section 3, BiT-L on JFT-300M; decay as in bit_s.",
        epochs=40,
        schedule="staircase",
        drops=(10 / 40, 23 / 40, 30 / 40, 37 / 40),
        **_BIT_FIELDS,
    ),
    "bit_in21k": Recipe(
        source="big_vision's config bit_i21k, whose decay of 4.8e-4 is 1e-3 here.",
        epochs=90,
        clip_norm=1.0,
        loss="sigmoid",
        head_bias=-10.0,
        **_BIT_FIELDS,
    ),
    "dense": DENSE,
    # Images with captions: for `keras_vit.image_text.contrastive_model`.
    "clip": Recipe(
        source="https://arxiv.org/abs/2103.00020, appendix F, B/32 and B/16. Crop: open_clip's, in "
        "place of random square crops.",
        optimizer="adam",
        learning_rate=5e-4,
        batch_size=32_768,
        epochs=32,
        warmup_steps=2_000,
        weight_decay=0.2,
        beta_2=0.98,
        epsilon=1e-6,
        loss="contrastive",
        image_size=224,
        augmentation=Augmentation(area_range=(0.9, 1.0), flip=False),
        **_NO_DROPOUT,
    ),
    "lit_coco": _LIT_COCO,
    "siglip_lit_coco": dataclasses.replace(
        _LIT_COCO,
        source=_LIT_COCO.source.replace("lit_coco", "siglip_lit_coco").replace(
            "scale 10 at first", "scale 10 and bias -2.71 at first"
        ),
        loss="contrastive_sigmoid",
    ),
}


def find_recipe(name: str) -> Recipe:
    """Finds a recipe by its name.

    Args:
        name: A name of `list_recipes()`.

    Returns:
        A `Recipe`; its method `replace` returns a changed copy.

    Raises:
        ValueError: If there is no recipe with that name.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=5, cutoff=0.4)
        raise ValueError(
            f"There is no recipe {name!r}. Similar names: {', '.join(near) or 'none'}. "
            "`keras_vit.train.list_recipes()` lists all."
        )
    return RECIPES[name]


def list_recipes() -> list[str]:
    """Lists the names of all recipes."""
    return list(RECIPES)
