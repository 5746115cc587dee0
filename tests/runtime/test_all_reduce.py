"""Tests `compile(all_reduce_dtype=...)`; test_distributed.py compares what it trains."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import keras_vit
from tests.fixtures import tiny_config

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
