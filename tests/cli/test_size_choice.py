"""Tests the choice of the image size by a probe."""

from __future__ import annotations

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.cli import size_choice, time_limit
from keras_vit.cli.main import main
from keras_vit.cli.plan import build_model, make_plan
from keras_vit.cli.settings import split_settings
from keras_vit.cli.size_choice import choose_size
from keras_vit.cli.time_limit import fit_into_time
from keras_vit.evaluate.feature_store import store_features
from keras_vit.train import starting_head
from keras_vit.train.starting_head import StartingImages
from tests.data.pictures import encoded
from tests.fixtures import tiny_vit
from tests.models.test_hybrids import CONFIGS


def write_stripes(root, count=20, side=32):
    """Grey images, and stripes of the same mean: at half of the size all are grey."""
    rng = np.random.default_rng(0)
    for name, contrast in (("plain", 0), ("stripes", 60)):
        (root / name).mkdir(parents=True)
        for index in range(count):
            x = np.full((side, side, 3), rng.integers(100, 150), "int64")
            x[:, ::2] += contrast
            x[:, 1::2] -= contrast
            (root / name / f"{index}.png").write_bytes(encoded(x.astype("uint8"), "png"))


def chosen(**flags):
    words = {"model": "vit_tiny", "weights": "tiny.npz", **flags}
    settings = split_settings(words)
    plan = make_plan(settings)
    start = StartingImages(plan.data.training)
    return plan, *choose_size(plan, build_model(plan), settings, start)


@pytest.mark.slow
def test_what_is_lost_at_the_size_of_the_checkpoint_is_seen_at_a_larger_one(place, monkeypatch):
    write_stripes(place / "fine")
    plan, larger, model = chosen(data="fine")
    assert larger.recipe.image_size == 24 and model.input_shape == (None, 24, 24, 3)
    said = larger.recipe.source.removeprefix(plan.recipe.source)
    assert said.startswith(
        "; 24 pixels and low-rank updates, because a probe of 32 images is right on 100% at 24"
    )
    assert (plan.recipe.lora_rank, plan.recipe.initial_head) == (0, "probe")
    assert (larger.recipe.lora_rank, larger.recipe.initial_head) == (8, "zeros")
    monkeypatch.setattr(size_choice, "runs_on_processors_alone", lambda: False)
    monkeypatch.setattr(size_choice, "_ACCELERATOR", 1)
    _, short, model_of_short = chosen(data="fine")
    assert model_of_short.input_shape == (None, 16, 16, 3) and short.recipe.image_size is None
    assert "; 16 pixels, because 24 need about" in short.recipe.source
    assert "try --image-size 24 --batch-size 8 --lora-rank 8" in short.recipe.source
    folder = place / plan.run.output
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"plan": larger.recipe.to_dict()}))
    _, again, same = chosen(data="fine")  # the run that continues does not choose again
    assert same.input_shape == model.input_shape
    assert fit_into_time(again, lambda _: same, 0.0)[0] == larger.recipe


@pytest.mark.parametrize(
    "task", ["multi_label", pytest.param("regression", marks=pytest.mark.slow)]
)
def test_labels_and_numbers_choose_a_size_as_well(place, task):
    write_stripes(place / "fine")
    files = sorted((place / "fine").rglob("*.png"))
    # Nothing tells whether the number of an image is odd.
    rows = [f"{file},{int('stripes' in str(file))},{i % 2}" for i, file in enumerate(files)]
    (place / "table.csv").write_text("\n".join(["file,stripes,odd", *rows]))
    flags = {"data": "table.csv", "data_dir": str(place), "task": task}
    plan, larger, model = chosen(**flags)
    assert larger.recipe.image_size == 24 and model.input_shape == (None, 24, 24, 3)
    said = larger.recipe.source.removeprefix(plan.recipe.source)
    assert "a probe of 32 images explains 49% of the variance at 24 pixels, 0% at 16" in said


@pytest.mark.slow
def test_a_larger_size_that_is_no_better_is_not_taken(place, monkeypatch):
    monkeypatch.setattr(size_choice, "_smaller_side", lambda _: 20)
    monkeypatch.setattr(size_choice, "_FEWEST", 10)
    _, same, model = chosen(data="train")
    assert same.recipe.image_size is None and model.input_shape == (None, 16, 16, 3)
    assert "; 16 pixels, because a probe of" in same.recipe.source


@pytest.mark.parametrize(
    "case", ["small", "size", "steps", "recipe", "time", "zeros", "head", "whole"]
)
def test_where_it_is_not_tried(place, monkeypatch, case):
    write_stripes(place / "fine", side=15 if case == "small" else 32)
    monkeypatch.setattr(size_choice, "cross_validate", None)
    flags = {
        "size": {"image_size": 16}, "steps": {"steps": 10}, "recipe": {"recipe": "finetune_pets"},
        "zeros": {"initial_head": "zeros"}, "head": {"initial_head": "probe"},
        "whole": {"lora_rank": 0}, "time": {"minutes": 1e-9},
    }.get(case, {})  # fmt: skip
    plan, same, _ = chosen(data="fine", **flags)
    assert same is plan


@pytest.fixture
def computed(place, monkeypatch):
    """Of 100 images in `fine`, sizes and files of those whose features are computed."""
    computed = []

    def store(model, images, *args, **options):
        computed.extend((model.input_shape[1], file) for file in images.file_names())
        return store_features(model, images, *args, **options)

    monkeypatch.setattr(starting_head, "store_features", store)
    monkeypatch.setattr(size_choice, "_MOST", 30)
    write_stripes(place / "fine", count=50)
    return computed


def test_the_head_starts_from_the_features_that_the_choice_computed(computed):
    settings = split_settings({"model": "vit_tiny", "weights": "tiny.npz", "data": "fine"})
    plan = make_plan(settings)
    start, model = StartingImages(plan.data.training), build_model(plan)
    choose_size(plan, model, settings, start)
    assert len(computed) == 60 and {size for size, _ in computed} == {16, 24}
    starting_head.start_head(model, start)
    assert len(computed) == len(set(computed)) == 80 + 30  # 80 train; 24 pixels as before
    found = model.layers[-1].get_weights()
    start.release()
    starting_head.start_head(model, start)  # computed in other batches
    for value, again in zip(found, model.layers[-1].get_weights(), strict=True):
        np.testing.assert_allclose(value, again, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_head_under_low_rank_updates_starts_from_these_features_too(computed, monkeypatch):
    heads = []

    def stop(model, *_):
        heads.append(model.layers[-1].get_weights()[0])
        raise ValueError("enough")

    monkeypatch.setattr("keras_vit.cli.training.train_as_built", stop)
    words = ["--lora-rank", "2", "--initial-head", "probe", "--output", "runs/updates"]
    words += ["--model", "vit_tiny", "--weights", "tiny.npz", "--data", "fine"]
    assert main(["train", *words]) == 2
    assert heads[0].any() and len(computed) == len(set(computed)) == 80 + 30


def test_other_sizes_are_of_whole_patches_behind_a_root():
    model = keras_vit.build_vit(CONFIGS["hybrid"])  # of 64 pixels, patches of 8
    assert size_choice._larger(model) == 112 and time_limit._sizes(model) == [
        (48, pytest.approx(0.5625)),
        (32, pytest.approx(0.25)),
    ]
    assert size_choice._larger(tiny_vit(image_size=24, patch_size=8)) == 40
