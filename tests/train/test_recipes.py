"""Recipes against the tables of their papers."""

from __future__ import annotations

import pytest

import keras_vit
from keras_vit.data.augmentation import AUGREG
from keras_vit.train.recipes import AUGREG_FINE_TUNING, AUGREG_PRETRAINING, FINE_TUNING, RECIPES


def row(recipe, *fields):
    return tuple(getattr(recipe, field) for field in fields)


RATES = ("dropout_rate", "stochastic_depth_rate")
PRETRAINING = ("learning_rate", "epochs", "schedule", "weight_decay", "dropout_rate", "clip_norm")


@pytest.mark.parametrize(
    ("name", "numbers"),
    {
        "paper_jft_b": (8e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_l32": (6e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_l16": (4e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_l16_14": (4e-4, 14, "linear", 0.1, 0, None),
        "paper_jft_h14": (3e-4, 14, "linear", 0.1, 0, None),
        "paper_jft_r50": (1e-3, 7, "linear", 0.1, 0, None),
        "paper_jft_r101": (8e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r152": (6e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r50_b": (8e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r50_l32": (2e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r50_l16": (4e-4, 7, "linear", 0.1, 0, None),
        "paper_jft_r50_l16_14": (4e-4, 14, "linear", 0.1, 0, None),
        "paper_in21k_b": (1e-3, 90, "linear", 0.03, 0.1, None),
        "paper_in21k_l": (1e-3, 90, "linear", 0.03, 0.1, None),
        "paper_in21k_l_30": (1e-3, 30, "linear", 0.03, 0.1, None),
        "paper_in1k": (3e-3, 300, "cosine", 0.3, 0.1, 1.0),
    }.items(),
)
def test_table_3(name, numbers):
    recipe = keras_vit.train.find_recipe(name)
    assert row(recipe, *PRETRAINING) == numbers
    assert row(recipe, "batch_size", "warmup_steps", "image_size", "head_bias", "loss") == (
        4096, 10_000, 224, -10.0, "sigmoid",
    )  # fmt: skip
    assert recipe.stochastic_depth_rate == 0


@pytest.mark.parametrize(
    ("name", "numbers"),
    {
        "finetune_imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
        "finetune_cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
        "finetune_cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
        "finetune_pets": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
        "finetune_flowers": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
        "finetune_vtab": (2_500, (0.01,), 200),
    }.items(),
)
def test_table_4(name, numbers):
    recipe = FINE_TUNING[name]
    assert row(recipe, "steps", "learning_rates", "held_out") == numbers
    assert row(recipe, "optimizer", "batch_size", "schedule", "weight_decay", "clip_norm") == (
        "sgd", 512, "cosine", 0.0, 1.0,
    )  # fmt: skip
    assert row(recipe, "image_size", "loss", "head_bias") == (384, "softmax", 0.0)
    assert row(recipe, *RATES) == (None, None)  # those of the variant
    assert recipe.learning_rate in recipe.learning_rates


def test_the_other_recipes():
    assert len(AUGREG_PRETRAINING) == 28 * 3
    strong = keras_vit.train.find_recipe("augreg_in21k_300_strong2_wd0.03_do0.1")
    assert strong.augmentation == AUGREG["strong2"]
    assert strong.augmentation.rand_augment == (2, 20) and strong.augmentation.mixup == 0.8
    assert row(strong, "learning_rate", "weight_decay", "dropout_rate") == (1e-3, 0.03, 0.1)
    assert row(strong, "stochastic_depth_rate", "clip_norm", "epochs") == (0.1, 1.0, 300)
    plain = keras_vit.train.find_recipe("plain_vit_90")
    assert row(plain, "batch_size", "learning_rate", "weight_decay") == (1024, 1e-3, 0.1)
    assert plain.augmentation.rand_augment == (2, 10) and plain.augmentation.mixup == 0.2
    deit = keras_vit.train.find_recipe("deit")
    assert deit.count_warmup(1_281_167) == 6256 and deit.count_steps(1_281_167) == 375_342
    assert row(deit, "learning_rate", "weight_decay", "end_learning_rate") == (1e-3, 0.05, 1e-5)
    assert row(deit, *RATES) == (0.0, 0.1) and row(plain, *RATES) == (0.0, 0.0)
    for recipe in AUGREG_FINE_TUNING.values():
        assert row(recipe, *RATES) == (0.0, 0.0)
    averaged = keras_vit.train.find_recipe("finetune_imagenet_512")  # over 10,000 of 20,000 steps
    assert averaged.averaging == averaged.replace(steps=20_000).averaging == 0.9999
    assert averaged.replace(steps=200).averaging == pytest.approx(0.99)
    assert averaged.replace(epochs=3, averaging=0.9).averaging == 0.9
    with pytest.raises(ValueError, match=r"for its steps. Received: epochs=3. Pass `averaging`"):
        averaged.replace(epochs=3)
    clip = keras_vit.train.find_recipe("clip")
    assert row(clip, "learning_rate", "batch_size", "epochs", "warmup_steps", "weight_decay") == (
        *(5e-4, 32_768, 32, 2_000, 0.2),
    )
    assert clip.build_loss().kind == "softmax" and not clip.augmentation.flip
    adam = clip.build_optimizer(400_000_000)
    assert (adam.beta_2, adam.epsilon) == (0.98, 1e-6)
    lit = keras_vit.train.find_recipe("siglip_lit_coco")  # 0.01 of the weights in a step
    assert row(lit, "learning_rate", "weight_decay", "steps") == (1e-3, 10.0, 5_000)
    assert lit.build_loss().kind == "sigmoid" and "bias -2.71" in lit.source
    assert all(recipe.source for recipe in RECIPES.values())
    assert set(keras_vit.train.list_recipes()) == set(RECIPES)


@pytest.mark.parametrize(
    ("images", "pixels", "expected"),
    [
        (1_000, (300, 400), (500, 100, 480, (0.4, 0.6, 0.8), 0.0)),
        (50_000, (32, 32), (10_000, 500, 128, (0.3, 0.6, 0.9), 0.1)),
        (1_281_167, (400, 500), (20_000, 500, 480, (0.3, 0.6, 0.9), 0.1)),
    ],
)
def test_bit_hyper_rule(images, pixels, expected):
    recipe = keras_vit.train.hyper_rule(images, pixels)
    found = row(recipe, "steps", "warmup_steps", "image_size", "drops")
    assert (*found, recipe.augmentation.mixup) == expected
    assert row(recipe, "learning_rate", "batch_size", "weight_decay") == (0.003, 512, 0.0)


def test_wrong_names():
    with pytest.raises(ValueError, match=r"no recipe 'finetune_pet'. Similar names: finetune_pets"):
        keras_vit.train.find_recipe("finetune_pet")
