"""Tests what a plan decides where the settings leave it open."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.cli.plan import build_model, fit_recipe, make_plan
from keras_vit.cli.settings import split_settings
from tests.fixtures import tiny_vit
from tests.models.test_hybrids import CONFIGS

WORDS = {"data": "train", "model": "vit_tiny", "weights": "tiny.npz"}


def planned(**flags):
    settings = split_settings({**WORDS, **flags})
    plan = make_plan(settings)
    return fit_recipe(plan, build_model(plan), settings)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, (0, "adam", 3e-5, "probe")),
        ({"lora_rank": 4}, (4, "adam", 1e-3, "zeros")),
        ({"lora_rank": 4, "initial_head": "probe"}, (4, "adam", 1e-3, "probe")),
        ({"initial_head": "zeros"}, (0, "sgd", 0.001, "zeros")),
        ({"optimizer": "sgd"}, (0, "sgd", 0.001, "zeros")),
        ({"learning_rate": 0.01}, (0, "sgd", 0.01, "zeros")),
        ({"weights": None}, (0, "adam", 1e-3, "zeros")),  # from random weights
        ({"recipe": "finetune_pets"}, (0, "sgd", 0.003, "zeros")),
    ],
)
def test_a_trained_network_starts_from_a_probe_where_nothing_speaks_against(place, flags, expected):
    recipe = planned(**flags)
    found = recipe.lora_rank, recipe.optimizer, recipe.learning_rate, recipe.initial_head
    assert found == expected


def test_a_head_that_cannot_start_from_a_probe_starts_from_zeros(place):
    keras_vit.models.build_resnet(CONFIGS["bit"]).save(place / "resnet.keras")
    tiny_vit(distillation_token=True, image_size=16).save(place / "deit.keras")
    heads = {"resnet.keras": ("adam", "probe"), "deit.keras": ("sgd", "zeros")}
    for name, expected in heads.items():
        recipe = planned(model=name, weights=None)
        assert (recipe.optimizer, recipe.initial_head) == expected, name
    with pytest.raises(ValueError, match=r"2 heads\. Leave out --initial-head probe"):
        planned(model="deit.keras", weights=None, initial_head="probe")
    (place / "numbers.csv").write_text(
        "file,price\n"
        + "".join(f"{path},{i}\n" for i, path in enumerate(sorted((place / "train").rglob("*.*"))))
    )
    numbers = {"data": "numbers.csv", "data_dir": str(place), "task": "regression"}
    for flags in ({}, {"recipe": "finetune_pets", "validation": "0.25"}):
        assert planned(**numbers, **flags).augmentation.crop == "none"
    windows = planned(**numbers, area_range=(0.5, 1.0)).augmentation
    assert (windows.crop, windows.area_range) == ("inception", (0.5, 1.0))
    recipe = planned(**numbers)
    assert (recipe.optimizer, recipe.initial_head, recipe.loss) == ("adam", "probe", "huber")
    plan = make_plan(split_settings(WORDS))
    one = plan.data._replace(training=plan.data.training.subset(np.arange(2)))
    recipe = fit_recipe(
        dataclasses.replace(plan, data=one), build_model(plan), split_settings(WORDS)
    )
    assert (recipe.optimizer, recipe.initial_head) == ("sgd", "zeros")
    with pytest.raises(ValueError, match="a head from a probe are for a trained model"):
        make_plan(split_settings({**WORDS, "weights": None, "initial_head": "probe"}))
    keras.backend.clear_session()


def test_recipes_for_captions_are_refused(place, capsys):
    words = ["--data", "train", "--model", "vit_tiny", "--recipe", "clip", "--output", "runs/clip"]
    assert main(["train", *words]) == 2
    assert "which is for images with captions" in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_the_plan_says_how_many_of_each_class_are_held_out(place):
    def held_out(**flags):
        return make_plan(split_settings({**WORDS, **flags})).held_out

    assert held_out(validation="0.25") == "blue 4 of 16, red 4 of 16"
    assert held_out(recipe="finetune_pets", test="test", held_out=0.25) == held_out(
        validation="0.25"
    )
    assert held_out(validation="test") == ""
