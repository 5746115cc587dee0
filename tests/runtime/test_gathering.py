"""The rows of all replicas: contrastive losses and their gradients are those of one device."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.runtime.gathering import gather_rows
from tests.runtime import gathering
from tests.workers import run, run_workers

MODULE = "tests.runtime.gathering"


def test_one_device_has_all_rows():
    x = np.ones((2, 3))
    assert gather_rows(x) == (x, 0)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("labels",), tuple(gathering.CASES)])
def test_two_replicas_have_the_gradients_of_one_device(names):
    printed = run(MODULE, "check_replicas", *names, TF_ENABLE_ONEDNN_OPTS="0")
    for name in names:
        assert f"passed: {name} 8\n" in printed
        assert f"passed: {name} 5\n" in printed


@pytest.mark.slow
def test_the_gradients_need_that_of_the_gather():
    printed = run(MODULE, "check_without_gradient", TF_ENABLE_ONEDNN_OPTS="0")
    assert float(printed.partition("errors: ")[2].splitlines()[0]) > 0.1


@pytest.mark.slow
def test_two_workers_have_the_gradients_of_one_device(tmp_path):
    run_workers(MODULE, "check_workers", tmp_path, count=2, timeout=600)
    for name, case in gathering.CASES.items():
        expected = gathering.train(**case)
        for index in range(2):
            found = np.load(tmp_path / f"{name}-{index}.npy", allow_pickle=True)
            gathering.assert_same(list(found), expected)
