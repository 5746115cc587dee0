"""The automatic choice of XLA on processors, and memory that TensorFlow keeps there."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from keras_vit.models.vit import build_vit
from keras_vit.trainers.processors import keep_buffers, xla_pays
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_xla_pays_without_onednn(dtype, cpuinfo):
    assert xla_pays(dtype, cpuinfo(WITHOUT))
    assert not xla_pays(dtype, cpuinfo(WITH_ONEDNN))


def test_xla_is_left_to_keras_where_it_was_not_measured(cpuinfo):
    assert not xla_pays("float16", cpuinfo(WITHOUT))
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
    assert keras.saving.load_model(tmp_path / "model.keras").jit_compile is jit_compile
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.jit_compile is False  # "auto" was saved, not its outcome
    model.compile("sgd", "mse", jit_compile=False)
    assert model.jit_compile is False
    model.compile("sgd", "mse", run_eagerly=True)
    assert model.jit_compile is False


BUFFERS, LIMIT = "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"


@pytest.fixture
def no_variables(monkeypatch):
    for name in (BUFFERS, LIMIT):
        monkeypatch.setenv(name, "")  # so that it is taken back at the end
        monkeypatch.delenv(name)


def test_tensorflow_keeps_memory_where_onednn_does_not_do_it(no_variables, cpuinfo):
    keep_buffers(cpuinfo(WITH_ONEDNN))
    assert BUFFERS not in os.environ
    keep_buffers(cpuinfo(WITHOUT))
    assert os.environ[BUFFERS] == "true"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert int(os.environ[LIMIT]) * 2**20 >= max(2**36, 1.9 * memory)


def test_what_the_user_set_of_memory_stays(no_variables, cpuinfo, monkeypatch):
    monkeypatch.setenv(BUFFERS, "true")
    monkeypatch.setenv(LIMIT, "1000")
    keep_buffers(cpuinfo(WITHOUT))
    assert os.environ[LIMIT] == "1000"
    monkeypatch.setenv(BUFFERS, "false")
    monkeypatch.delenv(LIMIT)
    keep_buffers(cpuinfo(WITHOUT))
    assert os.environ[BUFFERS] == "false"
    assert LIMIT not in os.environ


PAGES_OF_A_STEP = """
import resource, {module}
import tensorflow as tf
make = lambda: tf.fill((1 << 25,), 1.0).shape
make()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    make()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_of_a_step(module: str, **variables: str) -> int:
    """Pages that four tensors of 128 MiB asked the system for, after a first."""
    environment = {k: v for k, v in os.environ.items() if k not in (BUFFERS, LIMIT)}
    code = PAGES_OF_A_STEP.format(module=module)
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "TF_ENABLE_ONEDNN_OPTS": "0", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(shown.stdout)


def test_importing_the_package_is_enough():
    assert pages_of_a_step("keras_vit") < 10_000


def pages_are_always_huge() -> bool:
    setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[always]" in setting.read_text()


@pytest.mark.skipif(pages_are_always_huge(), reason="the system gives huge pages: too few to tell")
def test_upstream_tensorflow_alone_returns_large_buffers():
    """When this fails, TensorFlow keeps them by itself and `keep_buffers` can go."""
    assert pages_of_a_step("keras") > 10_000
    assert pages_of_a_step("keras_vit", **{BUFFERS: "false"}) > 10_000
