"""Whether XLA pays on a machine without accelerators."""

from __future__ import annotations

import os
import pathlib

import keras

# What TensorFlow looks for on x86 before it turns oneDNN's kernels on by itself.
_ONEDNN_FEATURES = frozenset(
    ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")
)


def xla_pays(compute_dtype: str, cpuinfo: str | os.PathLike = "/proc/cpuinfo") -> bool:
    """Whether a ViT runs faster with XLA than without on this machine's processor.

    `benchmarks/suite.py` measures it. TensorFlow has two sets of kernels for
    processors: oneDNN's, which join a product with its bias and GELU and which XLA does not
    reach, and its own, which XLA's joined loops beat in float32. On accelerators, and under
    `tf.distribute`, the choice is left to Keras.

    Args:
        compute_dtype: The type that the model computes in.
        cpuinfo: The file that lists the processor's features.

    Returns:
        True where TensorFlow runs on processors alone, without oneDNN and in float32.
    """
    if keras.backend.backend() != "tensorflow" or compute_dtype != "float32":
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
        return bool(_ONEDNN_FEATURES & set(cpuinfo.read_text().split()))
    except OSError:
        return True  # not Linux: leave XLA off, as Keras does
