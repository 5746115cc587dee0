"""Fields of a recipe: how changes of one follow from others, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

import keras_vit
from keras_vit.train.hyperparameters import Recipe
from tests.train.test_recipes import row

SGD = Recipe("a test", "sgd", 0.1, 8, steps=20, warmup_steps=5)


def test_the_warm_up_keeps_its_share_of_the_run():
    pets = keras_vit.train.find_recipe("finetune_pets")  # 500 steps, 100 of warm-up
    assert row(pets.replace(steps=50), "steps", "warmup_steps") == (50, 10)
    assert row(pets.replace(steps=50, warmup_steps=20), "warmup_steps") == (20,)
    epochs = pets.replace(epochs=3)
    assert row(epochs, "steps", "epochs", "warmup_steps") == (None, 3, 0)
    assert (epochs.count_steps(40_960), epochs.count_warmup(40_960)) == (240, 48)
    assert epochs.replace(steps=500).warmup_steps == 100
    assert pets.replace(epochs=3, warmup_steps=50).count_warmup(40_960) == 50
    for none in ({"warmup_steps": 0}, {"warmup_epochs": 0}):
        assert pets.replace(epochs=3, **none).count_warmup(40_960) == 0
    assert pets.replace(warmup_epochs=0.5).count_warmup(40_960) == 40  # not the 100 steps
    long = SGD.replace(epochs=4, warmup_epochs=2)
    assert row(long.replace(steps=20), "warmup_steps", "warmup_epochs") == (10, 0)
    deit = keras_vit.train.find_recipe("deit")
    assert deit.replace(epochs=30).warmup_epochs == 0.5
    paper = keras_vit.train.find_recipe("paper_in1k")  # 300 epochs, 10,000 steps of warm-up
    assert deit.replace(steps=1000).count_warmup(100_000) == 16  # 5 of 300 epochs
    assert row(paper.replace(epochs=30), "epochs", "warmup_steps") == (30, 1000)
    assert row(paper.replace(steps=100), "steps", "epochs", "warmup_steps") == (100, None, 20)
    assert paper.count_warmup(1_281_167) == 10_000
    assert paper.count_steps(600) == 44 and paper.count_warmup(600) == 8  # not 10,000
    mixed = deit.replace(batch_size=64, mixup=0.5, erasing=0.0)
    assert (mixed.augmentation.mixup, mixed.augmentation.cutmix, mixed.batch_size) == (0.5, 1, 64)
    assert deit.augmentation.erasing == 0.25 and pets.replace() == pets
    with pytest.raises(ValueError, match=r"no field of a recipe `mix_up`. Did you mean mixup"):
        deit.replace(mix_up=1.0)


def test_wrong_fields():
    with pytest.raises(ValueError, match=r"needs either `steps` or `epochs`"):
        dataclasses.replace(SGD, epochs=3)
    for rate in (0, None, float("nan")):
        with pytest.raises(ValueError, match=rf"`learning_rate` must be above 0. .*={rate}\."):
            SGD.replace(learning_rate=rate)
    with pytest.raises(ValueError, match=r"`loss` must be one of 'softmax', 'sigmoid'"):
        dataclasses.replace(SGD, loss="hinge")
