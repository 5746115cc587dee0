"""Tests the plan of a dry run."""

from __future__ import annotations

import re
import types

import numpy as np
import pytest

import keras_vit
from keras_vit.cli import dry_run
from keras_vit.evaluate.compute import training_memory
from tests.cli.test_training import train


def test_a_dry_run_describes_the_run(place, capsys):
    words = ["--validation", "test", "--output", "runs/none", "--preview", "sheet.png"]
    assert train("--dry-run", *words) == 0
    assert (place / "sheet.png").read_bytes().startswith(b"\x89PNG")
    facts = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines())
    assert facts["images"].strip() == "32 to train on, 8 to evaluate on"
    assert (
        facts["steps"]
        .strip()
        .startswith("24 of 8 images: 1 epochs of 24 steps, 6.0 times every image")
    )
    assert facts["size"].strip() == "16 x 16 x 3" and "crop=inception" in facts["augmentation"]
    assert "GiB on one device" in facts["memory"] and "exaFLOPs" in facts["computation"]
    assert re.search(r"about \d+ (seconds|minutes) here, from 53 steps of 8 images$", facts["time"])
    assert not (place / "runs").exists()


def test_a_plan_beyond_the_memory_of_the_machine_says_what_to_change(monkeypatch):
    model = keras_vit.create_model("vit_ti16")
    needed = training_memory(model, 64).total
    for there, expected in ((needed, 1), (needed - 1, 2), (2**30, 2)):
        monkeypatch.setattr(dry_run, "memory_bytes", lambda there=there: there)
        flags = ("--rematerialize", "--precision mixed_bfloat16")
        texts = [text for _, text in dry_run.describe_memory(model, 64, 2, 1, flags)]
        assert len(texts) == expected
        if there == needed - 1:
            half, remat, mixed = (
                training_memory(model, *options).total / 2**30
                for options in ((32,), (64, 2, 4, True), (64, 2, 2))
            )
            assert texts[1].startswith(
                f"more than the {needed / 2**30:.1f} GiB of this machine. --batch-size 32 needs "
                f"{half:.1f} GiB, --rematerialize needs {remat:.1f} GiB, --precision "
                f"mixed_bfloat16 needs {mixed:.1f} GiB, a smaller --image-size less. In Python"
            )
    (size,) = re.findall(r"--batch-size (\d+) needs", texts[1])
    fitting, double = (training_memory(model, int(size) * n).total for n in (1, 2))
    assert fitting <= 2**30 < double
    assert len(list(dry_run.describe_memory(model, 64, 2, replicas=64))) == 2  # all of one machine


@pytest.mark.parametrize("words", [(), ("--test", "test")])
def test_a_plan_of_low_rank_updates_counts_what_trains(place, capsys, monkeypatch, words):
    def stop(model, *_):
        raise ValueError(f"enough: {model.output_shape}")

    monkeypatch.setattr("keras_vit.cli.training._fit", stop)
    monkeypatch.setattr("keras_vit.cli.training._transfer", stop)
    assert train("--lora-rank", "2", "--output", "runs/lora", *words) == 2
    printed = capsys.readouterr()
    assert "enough: (None, 2)" in printed.err
    facts = dict(line.split(":", 1) for line in printed.out.splitlines())
    width = keras_vit.find_config("vit_tiny").width
    trained = 2 * (width + 3 * width) + 2 * width + 2
    end = f", of which {trained:,} train: updates of rank 2 for qkv; the head"
    assert facts["model"].endswith(end)
    assert facts["classes"].strip() == "2"


def test_the_dry_run_times_steps_after_the_first_ones(monkeypatch):
    """The first steps trace and compile: extrapolated, they gave 3.3 hours for 71 seconds."""
    times = iter([0, 8, 10, 11, *np.arange(11.1, 50, 0.1)])
    monkeypatch.setattr(dry_run.time, "perf_counter", lambda: next(times))
    timer = dry_run._TimeSteps()
    timer.set_model(types.SimpleNamespace(stop_training=False))
    steps = 0
    while not timer.model.stop_training:
        timer.on_train_batch_end(steps)
        steps += 1
    assert (steps, timer.first) == (53, 11) and timer.each == pytest.approx(0.1)
