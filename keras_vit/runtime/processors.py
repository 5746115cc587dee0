"""Facts about the processor, and memory that the process keeps.

Keras is imported by the functions that need it: `keras-vit env` describes machines without it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pathlib
import platform
from collections.abc import Iterator

# TensorFlow turns oneDNN's kernels on by itself on x86 processors with one of these features.
_ONEDNN_FEATURES = frozenset(
    ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")
)
_USE_BFC, _LIMIT = "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"
# Settings of glibc's `mallopt`, by the names of their environment variables without "_" at the end:
# the number of each in <malloc.h>, and its value in bytes.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD": (-3, 1 << 25),  # the most that glibc accepts: larger blocks are mapped
    "MALLOC_TRIM_THRESHOLD": (-1, (1 << 31) - 1),  # TensorFlow may lower it later
    "MALLOC_TOP_PAD": (-2, 1 << 26),  # kept of each heap: the size of a thread's heap
}
_CPUINFO = pathlib.Path("/proc/cpuinfo")
_PROCESS_CGROUPS = pathlib.Path("/proc/self/cgroup")
_CGROUP_ROOT = pathlib.Path("/sys/fs/cgroup")


def keep_buffers(for_children: bool = False) -> bool:
    """Lets TensorFlow and the C library keep host memory between steps.

    Call it at the start of a script, before TensorFlow's first operation and before a strategy is
    made; later it only reaches the C library. `keras-vit` calls it when it trains, evaluates and
    predicts.

    Memory that a step returns to the system costs the next step a page fault on every page.

    - Without oneDNN's kernels, TensorFlow returns every large buffer. The call makes it use its own
      allocator, by environment variables that TensorFlow reads when it starts:
      `TF_CPU_ALLOCATOR_USE_BFC`, and `TF_CPU_BFC_MEM_LIMIT_IN_MB`, which limits it to the memory of
      the machine or of the container, whichever is smaller. TensorFlow is started, and the
      variables are removed, so that processes started later do not inherit them. Where `TF_CONFIG`
      is set they stay, because a strategy of several workers must be the first to start TensorFlow.
    - TensorFlow 2.21 tells glibc to return free memory above 128 KiB once it makes a dataset of a
      generator, which the iterator of every strategy is. The call tells glibc to keep 64 MiB of
      each heap, and to take blocks up to 32 MiB from the heaps (`mallopt`).

    The process keeps the most memory that it needed until it ends: that can be gigabytes. Variables
    and settings of `malloc` that are in the environment already stay as they are. Configure devices
    (`tf.config.set_...`) before. Speed and memory: docs/performance.md.

    Args:
        for_children: Whether the settings are for the processes that this one starts too: all are
            left in the environment. TensorFlow is not started then.

    Returns:
        Whether anything was set: False on another backend of Keras, or where the environment
        decides.

    Example:
        import keras_vit

        keras_vit.runtime.keep_buffers()
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return False
    kept = _keep_heaps(for_children)
    if _USE_BFC in os.environ or onednn_is_on(_CPUINFO):
        return kept
    variables = {_USE_BFC: "true", _LIMIT: str(memory_bytes() // 2**20)}
    variables = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(variables)
    if not for_children and "TF_CONFIG" not in os.environ:
        import tensorflow as tf

        tf.config.list_logical_devices("CPU")  # starts TensorFlow, which reads the variables
        for name in variables:
            del os.environ[name]
    return True


def _keep_heaps(for_children: bool) -> bool:
    """Tells glibc to keep memory that is freed, and children by their environment."""
    tuned = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or platform.libc_ver()[0] != "glibc" or any(f"{n}_" in os.environ for n in _MALLOC):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    for name, (parameter, value) in _MALLOC.items():
        mallopt(parameter, value)
        if for_children:
            os.environ[f"{name}_"] = str(value)
    return True


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or the container's where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()])


def free_address_space() -> int | None:
    """Address space in bytes that this process may still take; `None` without `ulimit -v`."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):  # not Linux
        return None
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


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


def runs_on_processors_alone() -> bool:
    """Tells whether TensorFlow runs without accelerators and without a strategy."""
    import keras

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


def _first_processor(cpuinfo: str | os.PathLike[str]) -> list[str]:
    with open(cpuinfo) as file:  # there may be hundreds
        return list(itertools.takewhile(str.strip, file))


def onednn_is_on(cpuinfo: str | os.PathLike[str] = _CPUINFO) -> bool:
    """TensorFlow's own rule: the environment variable if it is set, else the CPU features."""
    setting = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    if setting is not None:
        return setting.lower() not in ("0", "false")
    try:
        return not _ONEDNN_FEATURES.isdisjoint("".join(_first_processor(cpuinfo)).split())
    except OSError:
        return True  # not Linux: XLA stays off, as in Keras
