"""Tests the time limit of a plan."""

from __future__ import annotations

import json

import pytest

from keras_vit.cli import time_limit
from keras_vit.cli.dry_run import Estimate
from keras_vit.cli.plan import build_model, make_plan
from keras_vit.cli.settings import split_settings
from keras_vit.cli.time_limit import fit_into_time, shorten
from keras_vit.train.sizing import plan_training


@pytest.mark.parametrize(
    ("limit", "steps", "size"),
    [
        (500, 500, None),
        (499, 499, None),
        (100, 100, None),  # as few steps as the first size may have
        (99, 176, 168),
        (50, 200, 112),
        (20, 80, 112),
    ],
)
def test_steps_are_fewer_before_images_are_smaller(limit, steps, size):
    recipe = plan_training(100, pretrained=True).recipe.replace(steps=500)
    shorter = shorten(recipe, 500, limit, [(168, 0.5625), (112, 0.25)])
    assert (shorter.steps, shorter.image_size) == (steps, size)
    assert shorter.warmup_steps == steps // 10


def test_the_first_steps_decide(place, monkeypatch):
    monkeypatch.setattr(time_limit, "estimate_time", lambda *_: Estimate(60 * 60, 8, 32))
    words = {"data": "train", "model": "vit_tiny", "weights": "tiny.npz"}

    def fitted(**flags):
        plan = make_plan(split_settings({**words, **flags}))
        model = build_model(plan)
        return plan, fit_into_time(plan, lambda _: model)

    plan, recipe = fitted()
    assert recipe == plan.recipe  # so small that it is not timed
    monkeypatch.setattr(time_limit, "_SLOW", 0)
    plan, recipe = fitted()
    assert recipe.steps == plan.recipe.steps // 2
    assert "because 500 at 16 take about 60 minutes here, and --minutes is 30" in recipe.source
    folder = place / plan.run.output
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"plan": recipe.to_dict()}))
    monkeypatch.setattr(time_limit, "estimate_time", lambda *_: Estimate(7200, 8, 32))
    assert fitted()[1] == recipe  # of the run that continues
    for flags in (
        {"minutes": None},
        {"steps": 500},
        {"recipe": "finetune_pets"},
        {"minutes": 120.0, "output": "runs/other"},
    ):
        plan, recipe = fitted(**flags)
        assert recipe == plan.recipe, flags
