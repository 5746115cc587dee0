"""Settings that depend on the processor: XLA, and large buffers that TensorFlow keeps."""

from __future__ import annotations

import itertools
import os
import pathlib
import platform
from collections.abc import Iterator

import keras

# TensorFlow turns oneDNN's kernels on by itself on x86 processors with one of these features.
_ONEDNN_FEATURES = frozenset(
    ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")
)
_MEASURED = ("float32", "bfloat16")
_USE_BFC, _LIMIT = "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"
_CPUINFO = pathlib.Path("/proc/cpuinfo")
_PROCESS_CGROUPS = pathlib.Path("/proc/self/cgroup")
_CGROUP_ROOT = pathlib.Path("/sys/fs/cgroup")


def keep_buffers(for_children: bool = False) -> bool:
    """Lets TensorFlow keep large host buffers between steps.

    Call it before TensorFlow's first operation; later it has no effect. `keras-vit` calls it when
    it trains, evaluates and predicts.

    Without oneDNN's kernels, TensorFlow returns every large buffer to the system after each step,
    and the next step waits for a page fault on every page. ViT-S/16 on one such processor, at
    batches of 8 and 32: `fit` is 1.22 and 1.23 times as fast with this call, `predict` 1.03 times,
    and the process needs up to 4 % more memory at its peak (`benchmarks/kept_buffers.py`).
    The process keeps the most memory that it needed until it ends: that can be gigabytes, see
    docs/performance.md.

    TensorFlow reads two environment variables when it starts: `TF_CPU_ALLOCATOR_USE_BFC` chooses
    its own allocator, and `TF_CPU_BFC_MEM_LIMIT_IN_MB` limits the allocator to the memory of the
    machine or of the container, whichever is smaller. The call sets them, starts TensorFlow, and
    removes them again, so that processes started later do not inherit them. Variables that are set
    already stay. Configure devices (`tf.config.set_...`) before.

    Args:
        for_children: Whether the variables stay, for this process and those that it starts;
            TensorFlow is not started then.

    Returns:
        Whether the variables were set: False with oneDNN, on another backend of Keras, or where
        `TF_CPU_ALLOCATOR_USE_BFC` was set before.

    Example:
        import keras_vit

        keras_vit.trainers.keep_buffers()
    """
    if keras.backend.backend() != "tensorflow" or _USE_BFC in os.environ or _onednn_is_on(_CPUINFO):
        return False
    variables = {_USE_BFC: "true", _LIMIT: str(memory_bytes() // 2**20)}
    variables = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(variables)
    if not for_children:
        import tensorflow as tf

        tf.config.list_logical_devices("CPU")  # starts TensorFlow, which reads the variables
        for name in variables:
            del os.environ[name]
    return True


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or the container's where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """Memory limits in bytes of this process's control groups and their parents, v1 and v2."""
    try:
        lines = _PROCESS_CGROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        # v2 has one hierarchy without names of controllers; v1 has one for memory.
        root = _CGROUP_ROOT / "memory" if controllers else _CGROUP_ROOT
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = root / path.lstrip("/")
        for folder in [group, *group.parents]:
            try:
                limit = (folder / name).read_text().strip()
            except OSError:  # a container may not see the groups of its host
                limit = "max"
            if limit.isdecimal():
                yield int(limit)
            if folder == root:
                break


def xla_pays(compute_dtype: str, cpuinfo: str | os.PathLike[str] = _CPUINFO) -> bool:
    """Tells whether a ViT trains faster with XLA than without on this machine's processor.

    `benchmarks/suite.py` measures it. TensorFlow has two sets of kernels for processors: those of
    oneDNN, which fuse a product with its bias and GELU and which XLA does not reach, and its own,
    which are slower than XLA's fused loops. On accelerators, and under `tf.distribute`, Keras
    chooses.

    Args:
        compute_dtype: The dtype that the model computes in.
        cpuinfo: The file that lists the processor's features.

    Returns:
        True where TensorFlow runs on processors alone, without oneDNN, in float32 or bfloat16.
    """
    if compute_dtype not in _MEASURED or not runs_on_processors_alone():
        return False
    return not _onednn_is_on(pathlib.Path(cpuinfo))


def runs_on_processors_alone() -> bool:
    """Tells whether TensorFlow runs without accelerators and without a strategy."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    if tf.distribute.has_strategy():
        return False
    return all(device.device_type == "CPU" for device in tf.config.list_physical_devices())


def count_cores() -> int:
    """Counts the processor cores that this process may use: `taskset` and cpusets allow fewer."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_processor() -> str:
    """Returns the name and the features of the processor, one in a line."""
    try:
        lines = _first_processor(_CPUINFO)
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    kept = ("vendor_id", "cpu family", "model", "model name", "flags", "Features")
    return "".join(line for line in lines if line.partition(":")[0].strip() in kept)


def _first_processor(cpuinfo: pathlib.Path) -> list[str]:
    with open(cpuinfo) as file:  # there may be hundreds
        return list(itertools.takewhile(str.strip, file))


def _onednn_is_on(cpuinfo: pathlib.Path) -> bool:
    """TensorFlow's own rule: the environment variable if it is set, else the CPU features."""
    setting = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    if setting is not None:
        return setting.lower() not in ("0", "false")
    try:
        return bool(_ONEDNN_FEATURES & set("".join(_first_processor(cpuinfo)).split()))
    except OSError:
        return True  # not Linux: XLA stays off, as in Keras
