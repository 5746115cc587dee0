"""The automatic choice of XLA on processors."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from keras_vit.models.processors import xla_pays
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config

WITH_ONEDNN, WITHOUT = "flags : fma avx2 avx512_vnni", "flags : fma avx2"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Writes what a processor tells of itself, and forgets the tests' own setting."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)

    def write(flags):
        path = tmp_path / "cpuinfo"
        path.write_text(flags)
        return path

    return write


def test_xla_pays_without_onednn_in_float32_alone(cpuinfo):
    assert xla_pays("float32", cpuinfo(WITHOUT))
    assert not xla_pays("float32", cpuinfo(WITH_ONEDNN))
    assert not xla_pays("bfloat16", cpuinfo(WITHOUT))
    assert not xla_pays("float32", cpuinfo(WITHOUT).with_name("missing"))


@pytest.mark.parametrize(("setting", "pays"), [("0", True), ("false", True), ("1", False)])
def test_the_users_setting_of_onednn_counts(setting, pays, cpuinfo, monkeypatch):
    path = cpuinfo(WITH_ONEDNN if pays else WITHOUT)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", setting)
    assert xla_pays("float32", path) is pays


def test_under_a_strategy_the_choice_is_left_to_keras(cpuinfo):
    path = cpuinfo(WITHOUT)
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        assert not xla_pays("float32", path)


@pytest.mark.parametrize(("setting", "jit_compile"), [("0", True), ("1", False)])
def test_compile_follows_it_and_saves_the_wish(setting, jit_compile, monkeypatch, tmp_path):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", setting)
    model = build_vit(tiny_config(depth=1))
    model.compile("sgd", "mse")
    assert model.jit_compile is jit_compile
    model.save(tmp_path / "model.keras")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.jit_compile is False  # "auto" was saved, not its outcome
    model.compile("sgd", "mse", jit_compile=False)
    assert model.jit_compile is False
    model.compile("sgd", "mse", run_eagerly=True)
    assert model.jit_compile is False
