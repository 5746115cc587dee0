"""Recipes for segmentation heads: the learning rates of their sources, and one step of training."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.models.vit import build_vit
from keras_vit.segmentation.mask_pipeline import mask_batches
from keras_vit.segmentation.masks import read_mask_arrays
from keras_vit.segmentation.model import build_segmenter
from keras_vit.segmentation.recipes import SEGMENTATION_RECIPES, find_segmentation_recipe
from tests.fixtures import tiny_config

FALLS = {"linear": lambda x: 1 - x, "cosine": lambda x: (1 + np.cos(np.pi * x)) / 2}


@pytest.mark.parametrize("name", SEGMENTATION_RECIPES)
def test_the_learning_rate_is_within_four_percent_of_the_source(name):
    recipe = find_segmentation_recipe(name)
    rate = recipe.optimizer()._learning_rate
    assert float(rate(0)) == 0 and float(rate(750)) == pytest.approx(5e-4)
    for step in (1_500, 10_000, 25_000, 40_000):
        there = 1e-3 * FALLS[recipe.schedule](step / 40_000)
        assert 0 <= float(rate(step)) - there <= 4e-5
    assert float(rate(40_000)) == pytest.approx(0, abs=1e-9)
    short = recipe.replace(steps=400, batch_size=4)
    assert (short.warmup_steps, short.batch_size) == (15, 4)
    assert float(short.optimizer()._learning_rate(15)) == pytest.approx(1e-3)
    assert recipe.replace(steps=400, warmup_steps=1).warmup_steps == 1
    with pytest.raises(ValueError, match=r"more steps than its warm-up.* steps=400"):
        dataclasses.replace(recipe, steps=400).optimizer()
    assert recipe.optimizer().weight_decay == {"dinov2": 1e-4, "dinov3": 1e-3}[name[:6]]


@pytest.mark.slow
def test_a_recipe_trains_a_head():
    recipe = dataclasses.replace(find_segmentation_recipe("dinov3_ade20k_linear"), batch_size=2)
    backbone = build_vit(tiny_config(depth=1, classes=None))
    backbone.trainable = False
    model = build_segmenter(
        backbone, 2, recipe.head, recipe.blocks, dropout_rate=recipe.dropout_rate
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
    model.compile(recipe.optimizer(), loss, jit_compile=False)
    masks = read_mask_arrays(
        np.zeros((2, 40, 40, 3), "uint8"), np.ones((2, 40, 40), int), ["a", "b"]
    )
    data = mask_batches(masks, model, recipe.batch_size, True, recipe.augmentation)
    head = model.get_layer("segmentation_head").kernel
    before = np.array(head)
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    # AdamW moves every weight by its learning rate: nothing in the first step, then 1 / 1,500.
    moved = np.abs(np.array(head) - before)
    assert 1e-7 < moved.max() < 1e-6


def test_an_unknown_recipe_is_an_error():
    with pytest.raises(
        ValueError, match=r"no recipe for segmentation `dinov4`.*dinov2_ade20k_linear"
    ):
        find_segmentation_recipe("dinov4")
