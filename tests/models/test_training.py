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
        "precision",
        "fit_arguments",
        "single_batches",
        "the_end_of_the_data",
        "own_models",
        "random_numbers",
        "rematerialization",
    ],
)
def test_two_replicas_train_as_one_device(check):
    run(MODULE, f"check_{check}")


def test_two_workers_train_as_one_device(tmp_path):
    run_workers(MODULE, "check_workers", tmp_path, count=2)
    run(MODULE, "check_alone", tmp_path)
    for file in tmp_path.glob("*-0.npy"):
        other = tmp_path / file.name.replace("-0", "-1")
        first, second = (np.load(f, allow_pickle=True).item() for f in (file, other))
        assert all(
            np.array_equal(x, y) for x, y in zip(first["weights"], second["weights"], strict=True)
        )
    assert len(list(tmp_path.glob("*-1.npy"))) == 4
