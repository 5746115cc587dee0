"""One measurement of one contestant, in a process of its own: what benchmarks/gpu.py starts.

    python benchmarks/gpu_contestants.py '{"who": "keras_vit", "task": "train", ...}'

Prints one line of JSON. A process that runs out of memory takes nothing with it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np
from contestants.torch_models import timm_name
from contestants.worker import CLASSES

SIGNS = ("resource_exhausted", "out of memory", "resourceexhausted", "cudnn_status_alloc_failed")


def random_batch(request: dict) -> tuple[np.ndarray, np.ndarray]:
    """Images in [-1, 1], channels last, and labels."""
    rng = np.random.default_rng(0)
    size = request["image_size"]
    images = rng.uniform(-1, 1, (request["batch"], size, size, 3)).astype("float32")
    return images, rng.integers(0, CLASSES, request["batch"])


def measure(step, finish, request: dict) -> dict:
    """Seconds of steps: the median of groups, each waited for at its end."""
    begin = time.perf_counter()
    step()
    finish()
    compiled = time.perf_counter() - begin
    for _ in range(2):
        step()
    finish()
    seconds: list[float] = []
    while sum(seconds) * request["group"] < request["seconds"] or len(seconds) < 3:
        begin = time.perf_counter()
        for _ in range(request["group"]):
            step()
        finish()
        seconds.append((time.perf_counter() - begin) / request["group"])
    middle = float(np.median(seconds))
    return {
        "images_per_second": request["batch"] / middle,
        "seconds": [round(value, 6) for value in seconds],
        "first_step_seconds": round(compiled, 2),
    }


def build_keras(request: dict):
    """Ours, for normalised images, with its logits."""
    import keras

    import keras_vit

    keras.config.set_dtype_policy(request["policy"])
    size = request["image_size"]
    options = dict(request.get("options", {}))
    if request["who"] == "keras_vit plain":  # one chunk of all queries, not Keras's fused attention
        options["query_chunk_size"] = 1_000_000
    return keras_vit.create_model(
        request["variant"],
        classes=CLASSES,
        input_shape=(size, size, 3),
        include_preprocessing=False,
        **options,
    )


def keras_train(request: dict) -> dict:
    """Through `fit`, on one batch that lies on the device; an epoch is a group of steps."""
    import jax
    import keras

    model = build_keras(request)
    model.compile(
        keras.optimizers.AdamW(1e-4, weight_decay=0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    batch = tuple(map(jax.device_put, random_batch(request)))

    def endless():
        while True:
            yield batch

    times: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: times.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: times.append(time.perf_counter()),  # has waited
    )
    options = {"steps_per_epoch": request["group"], "verbose": 0, "callbacks": [note]}
    history = model.fit(endless(), epochs=2, **options)
    first, second = times[1] - times[0], times[3] - times[2]
    epochs = max(3, int(request["seconds"] / second) + 1)
    times.clear()
    model.fit(endless(), epochs=epochs, **options)
    seconds = np.diff(np.reshape(times, (-1, 2)))[:, 0] / request["group"]
    return {
        "images_per_second": request["batch"] / float(np.median(seconds)),
        "seconds": [round(value, 6) for value in seconds.tolist()],
        "first_step_seconds": round(first, 2),
        "loss": history.history["loss"][0],
        "peak_bytes": jax_peak(),
    }


def keras_infer(request: dict) -> dict:
    import jax

    model = build_keras(request)
    variables = [
        [v.value for v in part]
        for part in (model.trainable_variables, model.non_trainable_variables)
    ]
    call = jax.jit(lambda a, b, x: model.stateless_call(a, b, x, training=False)[0])
    images = jax.device_put(random_batch(request)[0])
    results: list = []

    def step():
        results[:] = [call(*variables, images)]

    return measure(step, lambda: results[0].block_until_ready(), request) | {
        "peak_bytes": jax_peak()
    }


def jax_peak() -> int:
    """Most bytes in use on the device, or of the process where that is the processor."""
    import jax

    statistics = jax.local_devices()[0].memory_stats() or {}
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return statistics.get("peak_bytes_in_use", process)


def timm_model(request: dict):
    import timm
    import torch

    torch.set_float32_matmul_precision("high" if request["policy"] != "float32" else "highest")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = timm_name(request["variant"])
    model = timm.create_model(name, num_classes=CLASSES, img_size=request["image_size"]).to(device)
    images, labels = random_batch(request)
    images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)
    return torch, model, images, torch.from_numpy(labels).to(device), device


def timm_train(request: dict) -> dict:
    torch, model, images, labels, device = timm_model(request)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.1, fused=True)
    compiled = torch.compile(model) if request["compile"] else model
    losses = []

    def step():
        half = request["policy"] != "float32"
        with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
            loss = torch.nn.functional.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())

    result = measure(step, lambda: losses[-1].item(), request)
    return result | {"loss": losses[0].item(), "peak_bytes": torch_peak(torch)}


def timm_infer(request: dict) -> dict:
    torch, model, images, _, _ = timm_model(request)
    model.eval()
    if request["policy"] != "float32":
        model, images = model.bfloat16(), images.bfloat16()
    compiled = torch.compile(model) if request["compile"] else model
    results: list = []

    def step():
        with torch.inference_mode():
            results[:] = [compiled(images)]

    result = measure(step, lambda: results[0].sum().item(), request)
    return result | {"peak_bytes": torch_peak(torch)}


def torch_peak(torch) -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check(request: dict) -> dict:
    """Writes logits and gradients for the same weights and images, whatever the precision."""
    import jax
    import keras

    model = build_keras(request)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if weight.dtype == "float32":
            is_scale = weight.path.endswith("gamma")
            start = rng.normal(1.0 if is_scale else 0.0, 0.05, weight.shape)
            weight.assign(start.astype("float32"))
    images, labels = random_batch(request)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainable = [v.value for v in model.trainable_variables]
    rest = [v.value for v in model.non_trainable_variables]

    def loss_and_logits(trainable):
        logits, _ = model.stateless_call(trainable, rest, images, training=False)
        return loss_of(labels, logits), logits

    gradients, logits = jax.jit(jax.grad(loss_and_logits, has_aux=True))(trainable)
    parts = {"logits": logits} | {str(index): part for index, part in enumerate(gradients)}
    arrays: dict = {k: np.asarray(v, "float32") for k, v in parts.items()}
    np.savez(request["output"], **arrays)
    return {"device": str(jax.devices()[0])}


def matmul(request: dict) -> dict:
    """Rate of a plain bf16 matrix product on random data: the ceiling."""
    import jax
    import jax.numpy as jnp

    side = request["side"]
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (side, side), jnp.bfloat16) for key in keys)
    product = jax.jit(jnp.matmul)
    results: list = []

    def step():
        results[:] = [product(a, b)]

    result = measure(step, lambda: results[0].block_until_ready(), {**request, "batch": 1})
    device = jax.devices()[0]
    facts = {"device": str(device), "kind": device.device_kind, "devices": jax.device_count()}
    facts["capability"] = getattr(device, "compute_capability", None)
    return {"flops": 2 * side**3 * result["images_per_second"], **facts}


TASKS: dict[str, Any] = {
    "matmul": matmul,
    "check": check,
    "train": {"keras_vit": keras_train, "timm": timm_train},
    "infer": {"keras_vit": keras_infer, "timm": timm_infer},
}


def main() -> None:
    request = json.loads(sys.argv[1])
    task = TASKS[request["task"]]
    run = task if callable(task) else task[request["who"].split()[0]]
    try:
        result = run(request)
    except Exception as error:  # each library has its own
        if not any(sign in f"{type(error).__name__}: {error}".lower() for sign in SIGNS):
            raise
        result = {"out_of_memory": True}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
