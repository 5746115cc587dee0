"""One measurement, for a process of its own, which `keras_vit.evaluate.throughput` starts.

`main` prints one line of JSON. A process that runs out of memory may be killed by the system or
leave the device unusable; the one that asked lives on.
"""

from __future__ import annotations

import json
import time
from typing import Any

import keras
import numpy as np

from keras_vit.evaluate.contestants import build_contestant

_SIGNS = ("resourceexhausted", "resource_exhausted", "out of memory", "bad_alloc", "memoryerror")


def ran_out_of_memory(text: str) -> bool:
    """Whether an error's words tell of memory."""
    return any(sign in text.lower() for sign in _SIGNS)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Images a second of one model at one size and batch.

    Args:
        request: `model`, `image_size`, `batch_size`, `training`, `precision` (a Keras dtype
            policy), `seconds` to measure, and `memory_limit`: bytes of main memory beyond those
            that the process has when the model is built, or `None`.

    Returns:
        `images_per_second`, and the seconds of each `step` measured.
    """
    keras.config.set_dtype_policy(request["precision"])
    model = build_contestant(request["model"], request["image_size"])
    if request["memory_limit"]:
        limit_memory(request["memory_limit"])
    batch_size = request["batch_size"]
    images = np.zeros((batch_size, *model.input_shape[1:]), "float32")
    step = _training_step(model, images) if request["training"] else _inference(model, images)
    step()  # compiles
    step()
    times: list[float] = []
    while sum(times) < request["seconds"] or len(times) < 3:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return {"images_per_second": batch_size / float(np.median(times)), "steps": len(times)}


def _inference(model: keras.Model, images: np.ndarray):
    x = keras.ops.convert_to_tensor(images)  # on the device once
    return lambda: model.predict_on_batch(x)  # waits for its result


def _training_step(model: keras.Model, images: np.ndarray):
    last = model.layers[-1]
    from_logits = getattr(last, "activation", None) is keras.activations.linear
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile(optimizer=keras.optimizers.Adam(1e-4), loss=loss)
    x, labels = keras.ops.convert_to_tensor(images), np.zeros(len(images), "int32")
    return lambda: model.train_on_batch(x, labels)


def limit_memory(extra_bytes: int) -> None:
    """Lets this process have so much more address space than it has now (Linux)."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(argument: str) -> None:
    """Measures, and prints the result or that memory did not suffice."""
    try:
        result = measure(json.loads(argument))
    except Exception as error:  # frameworks raise many kinds for the same thing
        if not ran_out_of_memory(f"{type(error).__name__}: {error}"):
            raise
        result = {"out_of_memory": True}
    print(json.dumps(result), flush=True)
