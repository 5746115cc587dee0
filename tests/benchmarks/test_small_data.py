"""benchmarks/small_data.py: which images and cells there are, what is timed, and the tables."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest

import keras_vit
from tests.data.pictures import write_colours
from tests.fixtures import tiny_config


def test_training_ends_in_time(load, monkeypatch):
    small_data = load("small_data")
    clock = iter([15.0, 55.0, 110.0])
    monkeypatch.setattr(small_data.time, "process_time", lambda: next(clock))
    watch = small_data.watch_time(10.0, 100.0, 1e-3)
    optimizer = types.SimpleNamespace(learning_rate=None)
    watch.set_model(types.SimpleNamespace(stop_training=False, optimizer=optimizer))
    rates = []
    for _ in range(3):
        assert not watch.model.stop_training
        watch.on_train_batch_end(0)
        rates.append(optimizer.learning_rate)
    middle = 0.5 + 0.5 * np.cos(np.pi * 0.35 / 0.9)
    np.testing.assert_allclose(rates, [0.5e-3, middle * 1e-3, 0], atol=1e-9)  # warm-up, cosine
    assert watch.model.stop_training


def test_no_image_is_in_both_sets(load, tmp_path):
    small_data = load("small_data")
    write_colours(tmp_path, 8)
    pool, test = small_data.read_sets("textile", tmp_path).values()
    assert (pool.num_images, test.num_images) == (12, 4)
    assert not {*pool.file_names()} & {*test.file_names()}
    np.testing.assert_array_equal(np.bincount(test.labels), [2, 2])


def test_the_last_blocks_train(load):
    model = keras_vit.build_vit(tiny_config(depth=3))
    load("small_data").freeze(model)
    blocks = {v.path.partition("/")[0] for v in model.trainable_variables}
    assert blocks == {"block_1", "block_2", "encoder_norm", "head"}


def test_low_rank_updates_are_those_of_the_plan(load):
    recipe_of = load("small_data").recipe_of
    for method, rank in (("lora", 8), ("full", 0)):
        recipe = recipe_of({"method": method, "changes": {}}, 150)
        assert (recipe.lora_rank, recipe.steps) == (rank, 100)
    assert recipe_of({"method": "full", "changes": {"steps": 7}}, 150).steps == 7


def row(method, seed, accuracy, size=25):
    facts = {"recall": {"cat": 0.5, "dog": accuracy}, "processor_s": 7.4, "peak_mb": 1200}
    facts |= {"set": "cifar10", "per_class": size, "kept_bytes": 4000}
    return {"method": method, "seed": seed, "accuracy": accuracy, **facts}


def test_only_missing_cells_run(load, tmp_path):
    small_data = load("small_data")
    words = ["folder", "--work", "w", "--output", "o", "--cifar10", "images"]
    options = small_data.parse([*words, "--methods", "knn", "lora", "--per-class", "5", "25"])
    jobs = list(small_data.cells(options, [row("lora", 0, 0.5), row("lora", 2, 0.5)]))
    assert [(job["method"], job["per_class"], job["seeds"]) for job in jobs] == [
        ("knn", 5, [0, 1, 2]),
        ("knn", 25, [0, 1, 2]),
        ("lora", 5, [0, 1, 2]),
        ("lora", 25, [1]),
    ]
    output = tmp_path / "rows.jsonl"
    known = [
        {"set": "cifar10", "method": "features", "part": part, "images": 9}
        for part in ("pool", "more", "test")
    ]
    output.write_text("".join(json.dumps(each) + "\n" for each in known))
    for size, parts in ((100, ["pool", "test"]), (300, ["pool", "more", "test"])):
        found = small_data.features_of({"set": "cifar10", "per_class": size}, output)
        assert list(found) == parts  # not computed again
    of_textile = small_data.parse([*words[:5], "--sets", "textile"])
    assert {job["set"] for job in small_data.cells(of_textile, [])} == {"textile"}


def test_what_did_not_run_is_named(load):
    rows = [row("lora", 0, 0.3), row("lora", 1, 0.5), row("knn", 0, 0.4, size=300)]
    accuracy, cost, *_ = load("small_data").tables(rows)
    assert "| LoRA, rank 8 | not run | 40.0 ± 10.0 | not run | not run |" in accuracy
    assert "| nearest neighbours | not run | not run | not run | 40.0 (one seed) |" in accuracy
    assert cost[2:] == ["| LoRA, rank 8 | 40.0 | 40 | 7 | 1,200 | 4 kB |"]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--methods", "svm"], "invalid choice: 'svm'"), ([], "--cifar10 is missing; --sets textile")],
)
def test_arguments_that_do_not_fit_are_errors(words, message, load, capsys):
    with pytest.raises(SystemExit):
        load("small_data").parse(["folder", "--work", "w", "--output", "o", *words])
    assert message in capsys.readouterr().err
