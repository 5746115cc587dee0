"""`fit` under `tf.distribute`: the numbers of one device, and what Keras itself does wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime import distributed
from tests.runtime.upstream import FAULTS
from tests.workers import run, run_workers

MODULE = "tests.runtime.distributed"
QUICK = ("two_replicas", "labels")
SLOW = (
    *(
        "validation_and_prediction",
        "class_weights",
        "single_batches",
        "own_models",
        "keras_itself",
        "xla",
        "optimizers",
        "precision",
        "fit_arguments",
        "the_end_of_the_data",
    ),
    *("random_numbers", "rematerialization", "bfloat16_exchange"),
)


@pytest.fixture(scope="module")
def quick():
    """What the quick checks print, in one process with two CPUs."""
    return run(MODULE, "check", *QUICK, TF_ENABLE_ONEDNN_OPTS="0")


@pytest.fixture(scope="module")
def slow():
    return run(MODULE, "check", *SLOW, timeout=1200)


@pytest.mark.xdist_group(__name__)  # the fixture has no part in the collection
@pytest.mark.parametrize(
    ("check", "printed"),
    [(name, "quick") for name in QUICK]
    + [pytest.param(name, "slow", marks=pytest.mark.slow) for name in SLOW],
)
def test_two_replicas_train_as_one_device(check, printed, request):
    text = request.getfixturevalue(printed)
    assert f"passed: {check}\n" in text, text.partition(f"failed: {check}")[2][:5000]


@pytest.mark.slow
@pytest.mark.xdist_group(__name__)
def test_keras_still_has_the_faults(slow):
    assert [fault for fault in FAULTS if f"{fault.__name__} " not in slow] == []


@pytest.mark.parametrize(
    ("count", "cases"),
    [
        pytest.param(2, "WORKER_CASES", marks=pytest.mark.slow),
        pytest.param(4, "WORKER_CASES", marks=pytest.mark.slow),
        pytest.param(2, "MORE_WORKER_CASES", marks=pytest.mark.slow),
        pytest.param(2, "BFLOAT16_CASES", marks=pytest.mark.slow),
    ],
)
def test_workers_train_as_one_device(tmp_path, count, cases):
    printed = run_workers(MODULE, "check_workers", tmp_path, cases, count=count, timeout=600)
    assert all("several_workers " in text for text in printed)  # the fault of Keras
    distributed.check_alone(tmp_path, cases)
    names = sorted(file.name.removesuffix("-0.npy") for file in tmp_path.glob("*-0.npy"))
    assert names == sorted(getattr(distributed, cases))
    for name in names:
        weights = [
            np.load(tmp_path / f"{name}-{index}.npy", allow_pickle=True).item()["weights"]
            for index in range(count)
        ]
        for other in weights[1:]:
            assert all(np.array_equal(x, y) for x, y in zip(weights[0], other, strict=True))
