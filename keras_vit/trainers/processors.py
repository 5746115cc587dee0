"""What pays on a machine's processors: XLA, and memory that TensorFlow keeps."""

from __future__ import annotations

import itertools
import os
import pathlib

import keras

# What TensorFlow looks for on x86 before it turns oneDNN's kernels on by itself.
_ONEDNN_FEATURES = frozenset(
    ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")
)
_MEASURED = ("float32", "bfloat16")
_BUFFERS, _LIMIT = "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"
_LIMIT_OF_TENSORFLOW = 64 * 1024


def keep_buffers(cpuinfo: str | os.PathLike = "/proc/cpuinfo") -> None:
    """Has TensorFlow keep the memory of large tensors for the next step.

    With oneDNN's kernels TensorFlow does so by itself. Without them it takes large buffers from
    the C library, which gives them back to the system after every step, and the next step waits
    for every page of them anew: a sixth of a training step, and more
    (`benchmarks/kept_buffers.py`). This asks for TensorFlow's own allocator, by its
    variable `TF_CPU_ALLOCATOR_USE_BFC`, and lets it grow to twice the machine's memory, at least
    its own 64 GiB. What the user has set stays, and nothing changes where TensorFlow has run
    an operation already, which makes its allocator.

    Args:
        cpuinfo: The file that lists the processor's features.
    """
    if keras.backend.backend() != "tensorflow" or _BUFFERS in os.environ:
        return
    if not _onednn_is_on(pathlib.Path(cpuinfo)):
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        os.environ[_BUFFERS] = "true"
        os.environ.setdefault(_LIMIT, str(max(_LIMIT_OF_TENSORFLOW, 2 * machine)))


def xla_pays(compute_dtype: str, cpuinfo: str | os.PathLike = "/proc/cpuinfo") -> bool:
    """Whether a ViT runs faster with XLA than without on this machine's processor.

    `benchmarks/suite.py` measures it. TensorFlow has two sets of kernels for
    processors: oneDNN's, which join a product with its bias and GELU and which XLA does not
    reach, and its own, which XLA's joined loops beat. On accelerators, and under
    `tf.distribute`, the choice is left to Keras.

    Args:
        compute_dtype: The type that the model computes in.
        cpuinfo: The file that lists the processor's features.

    Returns:
        True where TensorFlow runs on processors alone, without oneDNN, in float32 or bfloat16.
    """
    if keras.backend.backend() != "tensorflow" or compute_dtype not in _MEASURED:
        return False
    import tensorflow as tf

    if tf.distribute.has_strategy():
        return False
    if any(device.device_type != "CPU" for device in tf.config.list_physical_devices()):
        return False
    return not _onednn_is_on(pathlib.Path(cpuinfo))


def _onednn_is_on(cpuinfo: pathlib.Path) -> bool:
    """TensorFlow's own rule: the variable where it is set, else the processor's features."""
    setting = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    if setting is not None:
        return setting.lower() not in ("0", "false")
    try:
        with open(cpuinfo) as file:  # the first processor's lines: there may be hundreds
            first = "".join(itertools.takewhile(str.strip, file))
        return bool(_ONEDNN_FEATURES & set(first.split()))
    except OSError:
        return True  # not Linux: leave XLA off, as Keras does
