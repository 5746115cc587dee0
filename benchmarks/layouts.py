"""What the devices of a mesh exchange for one block of a ViT, read from the compiled program.

    pip install ".[test]"
    python benchmarks/layouts.py --variant vit_b16 --model-devices 2 4

Compiles forward and backward passes for 8 virtual devices of the JAX backend, of which every
variant keeps one and two blocks; the difference is one block. Prints one JSON line a mesh: bytes
that each device holds of every exchange's result, in units of its activations (images of the device
x tokens x width x 4 bytes). Nothing is run; about half a minute of processor time a mesh.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import os
import re
import sys

DEVICES = 8
EXCHANGE = re.compile(
    r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def exchanged(config, shape: tuple[int, int], batch: int, training: bool) -> collections.Counter:
    """Bytes of the results of all exchanges in the compiled program, by kind."""
    import jax
    import keras
    import numpy as np

    import keras_vit

    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"])
    layouts = keras_vit.distribution.vit_layout_map(config, mesh)
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    with distribution.scope():
        model = keras_vit.build_vit(config)
        images = np.zeros((batch, *config.image_size, config.channels), "float32")
        images = jax.device_put(images, distribution.get_data_layout(images.shape).backend_layout)
        trained = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]

        def loss(trained, images):
            logits, _ = model.stateless_call(trained, others, images, training=True)
            return jax.numpy.sum(logits**2)

        function = jax.jit(jax.value_and_grad(loss) if training else loss)
        program = function.lower(trained, images).compile().as_text()
    found: collections.Counter = collections.Counter()
    for results, kind in EXCHANGE.findall(program):
        for sides in re.findall(r"f32\[([\d,]*)\]", results):
            found[kind] += 4 * math.prod(int(side) for side in sides.split(",") if side)
    return found


def measure(variant: str, shape: tuple[int, int], per_device: int) -> dict:
    import keras_vit

    config = keras_vit.find_config(variant)
    batch = per_device * shape[0]
    unit = 4 * per_device * (config.num_prefix_tokens + config.num_patches) * config.width
    row: dict = {"variant": variant, "mesh": shape, "images_per_device": per_device}
    for name, training in (("forward", False), ("forward and backward", True)):
        one, two = (
            exchanged(dataclasses.replace(config, depth=depth), shape, batch, training)
            for depth in (1, 2)
        )
        kinds = sorted(set(one) | set(two))
        row[name] = {kind: round((two[kind] - one[kind]) / unit, 3) for kind in kinds}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variant", default="vit_b16")
    parser.add_argument("--model-devices", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--images-per-device", type=int, default=2)
    arguments = parser.parse_args()
    import jax
    import keras

    for devices in arguments.model_devices:
        shape = (DEVICES // devices, devices)
        row = measure(arguments.variant, shape, arguments.images_per_device)
        versions = {"keras": keras.__version__, "jax": jax.__version__}
        print(json.dumps({**row, **versions, "device": jax.devices()[0].device_kind}), flush=True)


if __name__ == "__main__":
    if os.environ.get("KERAS_BACKEND") != "jax":  # fixed when Keras is imported: start again
        os.environ["KERAS_BACKEND"] = "jax"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
