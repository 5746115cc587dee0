"""Our ViT beside keras-hub's on this machine: `predict`, and a step of `fit`.

    pip install ".[benchmarks]"
    python benchmarks/beside_keras_hub.py --output docs/benchmarks/beside_keras_hub.jsonl

Both are the same network (class token, 1,000 classes; keras-hub has the exact GELU) on the same
random images, with the same optimizer, in one process and interleaved: every round runs each
contender once, so what else the machine does meets all alike. Prints one JSON line a contender,
warm-up apart, with medians over the rounds; `speed` is images/s over keras-hub's in the same cell,
`processor_speed` the same of the processor's own seconds, which other work on the machine disturbs
less. About 40 minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time

import numpy as np

IMAGE_SIZE = 224
CLASSES = 1000


def build_ours(variant: str, jit_compile: bool | str):
    import keras_vit

    return compile_model(keras_vit.create_model(variant, classes=CLASSES), jit_compile)


def build_keras_hub(variant: str, jit_compile: bool | str = "auto"):
    import keras
    import keras_hub

    import keras_vit

    config = keras_vit.find_config(variant)
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(IMAGE_SIZE, IMAGE_SIZE, 3),
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_dim,
        layer_norm_epsilon=1e-6,
    )
    logits = keras.layers.Dense(CLASSES, dtype="float32")(backbone.output[:, 0])
    return compile_model(keras.Model(backbone.input, logits), jit_compile)


CONTENDERS = {
    "keras_vit": lambda variant: build_ours(variant, "auto"),
    "keras_vit graph": lambda variant: build_ours(variant, False),
    "keras_vit xla": lambda variant: build_ours(variant, True),
    "keras_hub": build_keras_hub,
    "keras_hub xla": lambda variant: build_keras_hub(variant, True),
}


def compile_model(model, jit_compile: bool | str):
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=jit_compile)
    return model


def measure_cell(variant: str, policy: str, mode: str, arguments) -> list[dict]:
    """One size, precision and mode: every contender, interleaved."""
    import keras

    keras.config.set_dtype_policy(policy)
    batch = arguments.batch
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (batch, IMAGE_SIZE, IMAGE_SIZE, 3)).astype("float32")
    labels = rng.integers(0, CLASSES, batch)
    runs, seconds = {}, {}
    for name in arguments.contenders:
        model = CONTENDERS[name](variant)

        def run(model=model):
            start = time.perf_counter(), time.process_time()
            if mode == "predict":
                model.predict(images, batch_size=batch, verbose=0)
            else:
                model.fit(images, labels, batch_size=batch, verbose=0)
            return time.perf_counter() - start[0], time.process_time() - start[1]

        runs[name], seconds[name] = run, []
        run(), run()  # warm-up: traces, compiles, fills caches
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            seconds[name].append(run())
    medians = {name: np.median(times, axis=0) for name, times in seconds.items()}
    base = medians.get("keras_hub", (np.nan, np.nan))
    return [
        {
            "contender": name,
            "variant": variant,
            "policy": policy,
            "mode": mode,
            "batch": batch,
            "images_per_second": round(batch / medians[name][0], 3),
            "speed": round(base[0] / medians[name][0], 3),
            "processor_speed": round(base[1] / medians[name][1], 3),
            "seconds": [round(wall, 4) for wall, _ in seconds[name]],
            "processor_seconds": [round(processor, 4) for _, processor in seconds[name]],
        }
        for name in runs
    ]


def describe_machine() -> dict:
    import keras
    import keras_hub
    import tensorflow as tf

    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":")[1].strip() for line in file if "model name" in line), "")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_hub": keras_hub.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=["vit_s16", "vit_b16"])
    parser.add_argument("--policies", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--modes", nargs="+", default=["predict", "fit"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", help="a file that the JSON lines are added to")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        machine = describe_machine()
        for row in measure_cell(*arguments.cell, arguments):
            print(json.dumps({**row, **machine}), flush=True)
        return
    for variant in arguments.variants:
        for policy in arguments.policies:
            for mode in arguments.modes:  # each cell in a process of its own
                command = [sys.executable, __file__, "--cell", variant, policy, mode]
                command += ["--batch", str(arguments.batch), "--rounds", str(arguments.rounds)]
                command += ["--contenders", *arguments.contenders]
                lines = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
                print(lines.stdout, end="", flush=True)
                if arguments.output:
                    with open(arguments.output, "a") as file:
                        file.write(lines.stdout)


if __name__ == "__main__":
    main()
