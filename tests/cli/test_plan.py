"""Tests what a plan decides where the settings leave it open."""

from __future__ import annotations

import keras
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.cli.plan import build_model, fit_recipe, make_plan
from keras_vit.cli.settings import split_settings
from tests.models.test_hybrids import CONFIGS

WORDS = {"data": "train", "model": "vit_tiny", "weights": "tiny.npz"}


def planned(**flags):
    settings = split_settings({**WORDS, **flags})
    plan = make_plan(settings)
    return fit_recipe(plan.recipe, build_model(plan), settings)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, (8, "adam", 1e-3)),
        ({"lora_rank": 4}, (4, "adam", 1e-3)),
        ({"lora_rank": 0}, (0, "sgd", 0.001)),
        ({"optimizer": "sgd"}, (0, "sgd", 0.001)),
        ({"learning_rate": 0.01}, (0, "sgd", 0.01)),
        ({"weights": None}, (0, "adam", 1e-3)),  # from random weights
        ({"recipe": "finetune_pets"}, (0, "sgd", 0.003)),
    ],
)
def test_few_images_get_updates_where_nothing_speaks_against(place, flags, expected):
    recipe = planned(**flags)
    found = recipe.lora_rank, recipe.optimizer, recipe.learning_rate
    assert found == expected
    is_chosen = "lora_rank=8" in recipe.source
    assert is_chosen is ("because images are fewer than 5,000" in recipe.source) is (flags == {})


def test_a_network_without_blocks_is_trained_as_a_whole(place):
    model = keras_vit.models.build_resnet(CONFIGS["bit"])
    model.save(place / "resnet.keras")
    recipe = planned(model="resnet.keras", weights=None)
    assert (recipe.lora_rank, recipe.optimizer) == (0, "sgd")
    assert "lora" not in recipe.source and "low-rank" not in recipe.source
    keras.backend.clear_session()


def test_recipes_for_captions_are_refused(place, capsys):
    words = ["--data", "train", "--model", "vit_tiny", "--recipe", "clip", "--output", "runs/clip"]
    assert main(["train", *words]) == 2
    assert "which is for images with captions" in capsys.readouterr().err
    assert not (place / "runs").exists()
