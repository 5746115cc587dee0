"""The automatic choice of XLA on processors, and buffers that TensorFlow keeps there."""

from __future__ import annotations

import os
import platform
import re
import types

import keras
import pytest
import tensorflow as tf

from keras_vit.models.vit import build_vit
from keras_vit.runtime import processors
from keras_vit.runtime.processors import count_cores, keep_buffers, onednn_is_on
from tests.fixtures import tiny_config
from tests.runtime.other_packages import pages_are_always_huge
from tests.workers import run

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
WITH_ONEDNN, WITHOUT = "flags : fma avx2 avx512_vnni", "flags : fma avx2"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Writes the features of a processor, and removes the setting of the test run."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)

    def write(flags):
        path = tmp_path / "cpuinfo"
        path.write_text(flags)
        return path

    return write


def test_onednn_is_on_as_in_tensorflow(cpuinfo, monkeypatch):
    assert onednn_is_on(cpuinfo(WITH_ONEDNN)) and not onednn_is_on(cpuinfo(WITHOUT))
    assert onednn_is_on(cpuinfo(WITHOUT).with_name("missing"))
    for setting, is_on in (("0", False), ("false", False), ("1", True)):
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", setting)
        assert onednn_is_on(cpuinfo(WITHOUT if is_on else WITH_ONEDNN)) is is_on


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert count_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert count_cores() == 64


@pytest.mark.parametrize(("setting", "jit_compile"), [("0", True), ("1", False)])
def test_compile_chooses_xla_and_saves_auto(setting, jit_compile, monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_VIT_XLA")
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


HEAPS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
BUFFERS, LIMIT = "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def machine(tmp_path, monkeypatch, cpuinfo):
    """A processor without oneDNN, no variables, and control groups to write."""
    for name in (BUFFERS, LIMIT, *HEAPS, "TF_CONFIG", "GLIBC_TUNABLES"):
        monkeypatch.setenv(name, "")  # so that it is restored at the end
        monkeypatch.delenv(name)
    library = types.SimpleNamespace(mallopt=lambda parameter, value: 1)  # not of this process
    monkeypatch.setattr(processors, "ctypes", types.SimpleNamespace(CDLL=lambda name: library))
    monkeypatch.setattr(processors, "_CPUINFO", cpuinfo(WITHOUT))
    monkeypatch.setattr(processors, "_PROCESS_CGROUPS", tmp_path / "groups of the process")
    monkeypatch.setattr(processors, "_CGROUP_ROOT", tmp_path / "cgroup")
    return tmp_path


def test_buffers_are_kept_where_onednn_is_off(machine, cpuinfo, monkeypatch):
    assert keep_buffers(for_children=True)
    assert os.environ[BUFFERS] == "true"
    assert int(os.environ[LIMIT]) == MACHINE // 2**20
    assert all(int(os.environ[name]) > 0 for name in HEAPS)
    assert not keep_buffers()  # all are set
    for name in (BUFFERS, *HEAPS):
        monkeypatch.delenv(name)
    monkeypatch.setattr(processors, "_CPUINFO", cpuinfo(WITH_ONEDNN))
    assert keep_buffers()  # the heaps alone
    assert not {BUFFERS, *HEAPS} & set(os.environ)


@pytest.mark.parametrize(
    ("name", "value"), [(HEAPS[1], "1000000"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1")]
)
def test_settings_of_malloc_that_users_made_stay(machine, name, value, cpuinfo, monkeypatch):
    monkeypatch.setattr(processors, "_CPUINFO", cpuinfo(WITH_ONEDNN))
    monkeypatch.setenv(name, value)
    assert not keep_buffers(for_children=True)
    assert os.environ[name] == value and not set(HEAPS) - {name} & set(os.environ)


def test_other_c_libraries_keep_their_heaps(machine, cpuinfo, monkeypatch):
    monkeypatch.setattr(processors, "_CPUINFO", cpuinfo(WITH_ONEDNN))
    monkeypatch.setattr(processors.platform, "libc_ver", lambda: ("", ""))
    assert not keep_buffers(for_children=True)


def test_a_strategy_of_workers_finds_tensorflow_not_started(machine, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert keep_buffers()
    assert os.environ[BUFFERS] == "true"  # for TensorFlow, which the strategy starts


def test_children_do_not_inherit_the_variables(machine, monkeypatch):
    assert keep_buffers()
    assert BUFFERS not in os.environ and LIMIT not in os.environ
    monkeypatch.setenv(LIMIT, "1000")
    assert keep_buffers()
    assert BUFFERS not in os.environ and os.environ[LIMIT] == "1000"


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/", {"memory.max": "1073741824\n"}, 1 << 30),
        ("0::/pod/container", {"pod/memory.max": "1073741824", "memory.max": "max"}, 1 << 30),
        ("0::/pod/container", {"pod/container/memory.max": "max\n"}, MACHINE),
        ("0::/", {"memory.max": str(MACHINE * 4)}, MACHINE),
        (
            "5:cpu:/a\n4:memory:/a\n0::/",
            {"memory/a/memory.limit_in_bytes": "1073741824", "a/memory.max": "1"},
            1 << 30,
        ),
        # Inside a container, v1 shows the path of the host.
        ("4:memory:/docker/1f", {"memory/memory.limit_in_bytes": "1073741824"}, 1 << 30),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, MACHINE),
    ],
)
def test_the_limit_is_that_of_the_container(machine, groups, files, limit):
    (machine / "groups of the process").write_text(groups + "\n")
    for name, text in files.items():
        file = machine / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert keep_buffers(for_children=True)
    assert int(os.environ[LIMIT]) == limit // 2**20


def test_variables_that_users_set_stay(machine, monkeypatch):
    monkeypatch.setenv(HEAPS[0], "1000000")
    monkeypatch.setenv(BUFFERS, "true")
    monkeypatch.setenv(LIMIT, "1000")
    assert not keep_buffers()
    assert os.environ[LIMIT] == "1000"
    monkeypatch.delenv(BUFFERS)
    assert keep_buffers(for_children=True)
    assert os.environ[LIMIT] == "1000"
    monkeypatch.setenv(BUFFERS, "false")
    assert not keep_buffers()
    assert os.environ[BUFFERS] == "false"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the default path prints on a processor with AVX2: without oneDNN, with XLA."""
    variables = {
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "KERAS_VIT_XLA": "1",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa=AVX2",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in (BUFFERS, LIMIT, *HEAPS):
            patch.delenv(name, raising=False)
        folder = tmp_path_factory.mktemp("default_path")
        try:
            return run("tests.runtime.default_path", "check", folder, **variables)
        except AssertionError as error:
            if "Unknown flags in XLA_FLAGS: --xla_cpu_max_isa" not in str(error):
                raise
            pytest.skip("XLA of this TensorFlow takes whatever instructions there are")


def page_faults(printed: str, what: str) -> int:
    return int(re.search(rf"page faults {what}: (\d+)", printed).group(1))


@pytest.mark.slow
def test_a_processor_without_onednn_trains_predicts_and_saves_with_xla(printed):
    assert "trained, predicted, saved" in printed


@pytest.mark.slow
def test_one_call_keeps_the_buffers(printed):
    assert page_faults(printed, "of products") < 10_000


@pytest.mark.slow
@glibc
def test_a_replica_keeps_the_memory_of_its_threads(printed):
    assert page_faults(printed, "of a replica") < 20_000


@glibc
@pytest.mark.slow
@pytest.mark.skipif(tf.__version__ < "2.21", reason="not known before")
@pytest.mark.skipif(pages_are_always_huge(), reason="a page fault brings 2 MiB")
def test_tensorflow_still_returns_the_memory_of_its_threads(monkeypatch):
    """When this fails, TensorFlow no longer lowers glibc's trim threshold: see `keep_buffers`."""
    for name in (BUFFERS, LIMIT, *HEAPS):
        monkeypatch.delenv(name, raising=False)
    printed = run("tests.runtime.default_path", "fit_one_replica", TF_ENABLE_ONEDNN_OPTS="0")
    assert page_faults(printed, "of a replica") > 100_000
