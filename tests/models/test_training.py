"""`fit` under `tf.distribute`: the numbers of one device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.workers import run, run_workers

MODULE = "tests.models.distributed"


@pytest.mark.parametrize(
    "check",
    [
        "strategies",
        "optimizers",
        pytest.param("precision", marks=pytest.mark.slow),
        pytest.param("fit_arguments", marks=pytest.mark.slow),
        "single_batches",
        "the_end_of_the_data",
        "own_models",
        "random_numbers",
        pytest.param("rematerialization", marks=pytest.mark.slow),
    ],
)
def test_two_replicas_train_as_one_device(check):
    run(MODULE, f"check_{check}")


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_workers_train_as_one_device(tmp_path, count):
    run_workers(MODULE, "check_workers", tmp_path, count=count)
    run(MODULE, "check_alone", tmp_path)
    for file in tmp_path.glob("*-0.npy"):
        first = np.load(file, allow_pickle=True).item()
        for index in range(1, count):
            other = np.load(tmp_path / file.name.replace("-0", f"-{index}"), allow_pickle=True)
            pairs = zip(first["weights"], other.item()["weights"], strict=True)
            assert all(np.array_equal(x, y) for x, y in pairs)
    assert len(list(tmp_path.glob("*.npy"))) == 4 * count
