"""Processes that are killed, alone and in pairs, and started again."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.resume.runs import BATCHES, EPOCHS, images
from tests.resume.worker import read_outcome
from tests.workers import cluster

ROOT = pathlib.Path(keras_vit.__file__).parents[1]
STEPS = EPOCHS * BATCHES
SECONDS = 240  # for a machine that does other work


def start(*arguments, **variables):
    environment = {
        **os.environ,
        "PYTHONPATH": os.fspath(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    environment.pop("TF_CONFIG", None)
    environment |= variables
    return subprocess.Popen(
        [sys.executable, "-m", "tests.resume.worker", *map(os.fspath, map(str, arguments))],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes):
    """The exit statuses and what the processes said; none may hang."""
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], said


def start_pair(folder, outcomes, kill_after=(0, 0), how="SIGKILL", **variables):
    return [
        start(outcomes / f"{i}.npz", folder, kill_after[i], how, TF_CONFIG=config, **variables)
        for i, config in enumerate(cluster(2))
    ]


def random_steps(seed, count):
    return sorted(np.random.default_rng(seed).choice(np.arange(1, STEPS), count, replace=False))


@pytest.mark.slow
def test_one_process(tmp_path):
    broken = tmp_path / "broken"
    killed, told = random_steps(3, 2)
    statuses, said = finish(start(tmp_path / "broken.npz", broken, killed))
    assert statuses == [-signal.SIGKILL], said
    statuses, said = finish(start(tmp_path / "broken.npz", broken, told, "SIGTERM"))
    assert statuses == [128 + signal.SIGTERM], said
    assert "Stopped: the state is in" in said[0]
    uninterrupted = (0, "SIGKILL", tmp_path / "whole.npz", tmp_path / "whole")
    statuses, said = finish(start(tmp_path / "broken.npz", broken, *uninterrupted))
    assert statuses == [0], said
    assert f"Continuing after {told // BATCHES} epochs and {told % BATCHES} batches" in said[0]
    assert read_outcome(tmp_path / "broken.npz") == read_outcome(tmp_path / "whole.npz")


@pytest.mark.slow
def test_two_workers(tmp_path):
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    one, both = random_steps(4, 2)
    broken = tmp_path / "states of broken"
    statuses, said = finish(*start_pair(tmp_path / "states of whole", tmp_path / "whole"))
    assert statuses == [0, 0], said
    statuses, said = finish(*start_pair(broken, tmp_path / "broken", (0, one)))
    assert statuses[1] == -signal.SIGKILL, said
    assert statuses[0] not in (0, -signal.SIGKILL), said
    statuses, said = finish(*start_pair(broken, tmp_path / "broken", (both, both)))
    # Killed at the same step: where one is a little earlier, the other fails within that step.
    assert -signal.SIGKILL in statuses and 0 not in statuses, said
    statuses, said = finish(*start_pair(broken, tmp_path / "broken"))
    assert statuses == [0, 0], said
    assert "Continuing after" in said[0]
    wholes = [read_outcome(tmp_path / "whole" / f"{i}.npz") for i in range(2)]
    assert wholes[0] == wholes[1]
    assert [read_outcome(tmp_path / "broken" / f"{i}.npz") for i in range(2)] == wholes


@pytest.mark.slow
def test_sigterm_to_one_of_two_workers(tmp_path):
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    (step,) = random_steps(5, 1)
    broken = tmp_path / "states"
    statuses, said = finish(*start_pair(broken, tmp_path / "broken", (0, step), "SIGTERM"))
    assert statuses == [128 + signal.SIGTERM] * 2, said
    statuses, said = finish(*start_pair(broken, tmp_path / "broken"))
    assert statuses == [0, 0], said
    statuses, said = finish(*start_pair(tmp_path / "other", tmp_path / "whole"))
    assert statuses == [0, 0], said
    outcomes = [
        read_outcome(tmp_path / n / f"{i}.npz") for n in ("whole", "broken") for i in (0, 1)
    ]
    assert all(outcome == outcomes[0] for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_two_workers_resume_in_the_middle_of_shards(tmp_path, how):
    for name in ("whole", "broken", "shards"):
        (tmp_path / name).mkdir()
    write_shards(tmp_path / "shards")
    shards = {"SHARDS": str(tmp_path / "shards")}
    step = BATCHES + 3  # within an epoch
    states = tmp_path / "states"
    statuses, said = finish(*start_pair(states, tmp_path / "broken", (0, step), how, **shards))
    assert 0 not in statuses, said
    statuses, said = finish(*start_pair(states, tmp_path / "broken", **shards))
    assert statuses == [0, 0], said
    # After SIGTERM the workers agree on where to end, here between two epochs.
    batches = "[1-4]" if how == "SIGKILL" else r"\d"
    assert re.search(rf"Continuing after [12] epochs and {batches} batches", said[0]), said
    statuses, said = finish(*start_pair(tmp_path / "other", tmp_path / "whole", **shards))
    assert statuses == [0, 0], said
    for index in range(2):
        whole = read_outcome(tmp_path / "whole" / f"{index}.npz")
        assert read_outcome(tmp_path / "broken" / f"{index}.npz") == whole


def write_shards(folder):
    """The images of a run, in files of different lengths."""
    x, y = images()
    for index, part in enumerate(np.split(np.arange(len(y)), [9, 9, 12])):
        with tf.io.TFRecordWriter(os.fspath(folder / f"{index}.tfrecord")) as writer:
            for place in part:
                writer.write(x[place].tobytes() + bytes([y[place]]))


@pytest.mark.slow
def test_two_replicas_in_one_process(tmp_path):
    (step,) = random_steps(6, 1)
    targets = [tmp_path / "whole.npz", tmp_path / "broken.npz"]
    statuses, said = finish(
        start(targets[0], tmp_path / "whole", REPLICAS="2"),
        start(targets[1], tmp_path / "broken", step, REPLICAS="2"),
    )
    assert statuses == [0, -signal.SIGKILL], said
    statuses, said = finish(start(targets[1], tmp_path / "broken", REPLICAS="2"))
    assert statuses == [0], said
    assert read_outcome(targets[0]) == read_outcome(targets[1])
    statuses, said = finish(start(targets[1], tmp_path / "broken"))
    assert statuses == [1]
    assert "replicas was 2, is 1" in said[0]
