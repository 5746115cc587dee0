"""`fit` under `tf.distribute`: the numbers of one device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers import distributed
from tests.workers import run, run_workers

MODULE = "tests.trainers.distributed"


@pytest.mark.parametrize(
    "check",
    [
        "strategies",
        pytest.param("optimizers", marks=pytest.mark.slow),
        pytest.param("precision", marks=pytest.mark.slow),
        pytest.param("fit_arguments", marks=pytest.mark.slow),
        "single_batches",
        pytest.param("the_end_of_the_data", marks=pytest.mark.slow),
        "own_models",
        pytest.param("random_numbers", marks=pytest.mark.slow),
        pytest.param("rematerialization", marks=pytest.mark.slow),
    ],
)
def test_two_replicas_train_as_one_device(check):
    run(MODULE, f"check_{check}")


@pytest.mark.parametrize(
    ("count", "cases"),
    [
        (2, "WORKER_CASES"),
        pytest.param(4, "WORKER_CASES", marks=pytest.mark.slow),
        pytest.param(2, "MORE_WORKER_CASES", marks=pytest.mark.slow),
    ],
)
def test_workers_train_as_one_device(tmp_path, count, cases):
    run_workers(MODULE, "check_workers", tmp_path, cases, count=count, timeout=600)
    run(MODULE, "check_alone", tmp_path, cases, timeout=600)
    names = sorted(file.name.removesuffix("-0.npy") for file in tmp_path.glob("*-0.npy"))
    assert names == sorted(getattr(distributed, cases))
    for name in names:
        weights = [
            np.load(tmp_path / f"{name}-{index}.npy", allow_pickle=True).item()["weights"]
            for index in range(count)
        ]
        for other in weights[1:]:
            assert all(np.array_equal(x, y) for x, y in zip(weights[0], other, strict=True))
