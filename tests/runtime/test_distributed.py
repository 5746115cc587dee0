"""`fit` under `tf.distribute`: the numbers of one device, and what Keras itself does wrong."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.fixtures import tiny_config
from tests.runtime import distributed
from tests.runtime.upstream import FAULTS
from tests.workers import run, run_workers

MODULE = "tests.runtime.distributed"
QUICK = ("two_replicas", "labels")
SLOW = (
    *(
        "validation_and_prediction",
        "class_weights",
        "labels_with_xla",
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


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(**options):
    model = keras_vit.build_vit(tiny_config())
    model.compile("sgd", LOSS, **options)
    return model


def test_the_dtype_survives_saving_and_loading_without_a_strategy(tmp_path):
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = compiled(all_reduce_dtype="bfloat16")
    assert model.get_compile_config()["all_reduce_dtype"] == "bfloat16"
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_compile_config()["all_reduce_dtype"] == "bfloat16"
    loaded.compile("sgd", LOSS)
    assert "all_reduce_dtype" not in loaded.get_compile_config()


def test_only_bfloat16_is_offered():
    with (
        tf.distribute.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(ValueError, match=r"must be None .* or 'bfloat16'\. Received: 'float16'"),
    ):
        compiled(all_reduce_dtype="float16")


def test_no_strategy_is_an_error():
    with pytest.raises(ValueError, match=r"no effect .* under a strategy .* 'bfloat16'"):
        compiled(all_reduce_dtype="bfloat16")
