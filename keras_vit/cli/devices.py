"""Which devices of this machine a run trains on."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

STRATEGIES = ("auto", "none", "mirrored")


def strategy_scope(name: str) -> Any:
    """The scope to build a model in, to train it on the devices that are meant.

    Args:
        name: `"mirrored"` takes all GPUs of this machine, or where there are none all CPU devices
            of TensorFlow; `"auto"` does so where there are several GPUs; `"none"` leaves the choice
            of one device to TensorFlow.

    Returns:
        A context manager.

    Raises:
        ValueError: If `TF_CONFIG` names several workers, which only a script can start.
    """
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    count = len(cluster.get("worker", ())) + len(cluster.get("chief", ()))
    if count > 1:
        raise ValueError(
            f"TF_CONFIG names {count} workers, and `keras-vit train` trains on one machine. Unset "
            "it, or train with `fit` in a script: see docs/scaling.md."
        )
    if name == "none":
        return contextlib.nullcontext()
    import tensorflow as tf

    gpus = tf.config.list_logical_devices("GPU")
    if name == "auto" and len(gpus) < 2:
        return contextlib.nullcontext()
    devices = gpus or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices]).scope()
