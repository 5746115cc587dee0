"""Tests the time limit of a plan."""

from __future__ import annotations

import json
import types

import keras
import numpy as np
import pytest

from keras_vit.cli import time_limit
from keras_vit.cli.dry_run import Estimate
from keras_vit.cli.plan import build_model, make_plan
from keras_vit.cli.settings import split_settings
from keras_vit.cli.time_limit import KeepTime, fit_into_time, shorten
from keras_vit.train.schedules import decay_after_warmup
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


class Clock(keras.callbacks.Callback):
    """A clock that moves when a step or a validation ends, and notes the learning rates."""

    def __init__(self, monkeypatch, first, step, validation):
        super().__init__()
        self.now, self.first, self.step, self.validation = 100.0, first, step, validation
        self.rates = []
        monkeypatch.setattr(time_limit, "time", types.SimpleNamespace(monotonic=lambda: self.now))

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_train_batch_end(self, batch, logs=None):
        self.now += self.first if len(self.rates) == 1 else self.step

    def on_test_batch_end(self, batch, logs=None):
        self.now += self.validation


def train_in_time(monkeypatch, seconds, first=5, step=1.0, validation=2):
    """Trains for two epochs of ten steps; returns the end, the rates, and Keras's own rates."""
    schedule = decay_after_warmup("cosine", 0.1, 20, 2, end=0.0, drops=())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(schedule), "mse")
    clock = Clock(monkeypatch, first, step, validation)
    x, y = np.zeros((40, 2)), np.zeros((40, 1))
    callbacks = [clock, KeepTime(100.0 + seconds, 20, validation)]
    options = {"validation_data": (x[:4], y[:4]), "validation_batch_size": 4, "verbose": 0}
    model.fit(x, y, 4, epochs=2, callbacks=callbacks, **options)
    return clock.now - 100, clock.rates, [float(schedule(step)) for step in range(20)]


def test_steps_as_fast_as_estimated_keep_their_rates(monkeypatch, capsys):
    end, rates, planned = train_in_time(monkeypatch, 5 + 19 + 2 * 2)
    assert end == 28
    np.testing.assert_allclose(rates, planned, rtol=1e-5, atol=1e-6)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("step", [1.5, 2.0, 6.0])
def test_slower_steps_end_in_time_with_the_last_rates(step, monkeypatch, capsys):
    end, rates, planned = train_in_time(monkeypatch, 28, step=step)
    assert len(rates) < 20 and end <= 28 + step
    assert rates[0] == planned[0] and rates[-1] < 0.5 * max(rates)
    said = capsys.readouterr().err
    assert f"ends after {len(rates)} of 20 steps, because they took longer" in said


def test_a_validation_that_takes_longer_shortens_training(monkeypatch):
    end, rates, _ = train_in_time(monkeypatch, 40, validation=2)
    assert len(rates) == 20 and end == 28
    end, rates, _ = train_in_time(monkeypatch, 40, validation=11)
    assert len(rates) < 20 and end <= 41


def test_the_first_steps_decide(place, monkeypatch):
    monkeypatch.setattr(time_limit, "estimate_time", lambda *_: Estimate(60 * 60, 8, 32, 20.0))
    monkeypatch.setattr(time_limit, "time", types.SimpleNamespace(monotonic=lambda: 40.0))
    words = {"data": "train", "model": "vit_tiny", "weights": "tiny.npz"}

    def fitted(**flags):
        plan = make_plan(split_settings({**words, **flags}))
        model = build_model(plan)
        return plan, *fit_into_time(plan, lambda _: model, 40.0)

    plan, recipe, keeping = fitted()
    assert recipe == plan.recipe and not keeping  # so small that it is not timed
    monkeypatch.setattr(time_limit, "_SLOW", 0)
    plan, recipe, (keeping,) = fitted()
    assert (keeping.deadline, keeping.steps) == (40 + 30 * 60, recipe.steps)
    assert keeping.validation == 20
    assert recipe.steps == plan.recipe.steps // 2 - 1  # the head takes the time of the other
    assert "because 500 at 16 take about 60 minutes here, and --minutes is 30" in recipe.source
    folder = place / plan.run.output
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"plan": recipe.to_dict()}))
    monkeypatch.setattr(time_limit, "estimate_time", lambda *_: Estimate(7200, 8, 32))
    _, again, (keeping,) = fitted()
    assert again == recipe and keeping.steps == recipe.steps  # of the run that continues
    for flags in (
        {"minutes": None},
        {"steps": 500},
        {"recipe": "finetune_pets"},
        {"minutes": 121.0, "output": "runs/other"},
    ):
        plan, recipe, _ = fitted(**flags)
        assert recipe == plan.recipe, flags
