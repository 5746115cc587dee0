"""Memory of a compiled training step, beside what `training_memory` estimates.

    python benchmarks/training_memory.py --variants vit_s16 vit_b16 --batches 4 8

Compiles one AdamW step with XLA through the JAX backend of Keras and reads the compiler's own
account of its buffers. Nothing runs and no batch is allocated, so a model needs little more than
its weights. Prints one JSON line for each model: bytes of weights and optimizer (`state`), of what
the step needs beside them (`step`: gradients and activations) by batch, what each more image takes
(`per_image`), and the ratio of the estimate to each. A minute or two a model on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from machine import require

require("jax", "jaxlib")
os.environ["KERAS_BACKEND"] = "jax"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402

import keras_vit  # noqa: E402
import keras_vit.evaluate  # noqa: E402


def compiled_memory(model, batch_size):
    """Bytes of state and of everything else at the peak of one training step."""
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(trained, fixed, slots, images, labels):
        def forward(trained):
            logits, updated = model.stateless_call(trained, fixed, images, training=True)
            return loss(labels, logits), updated

        (value, updated), gradients = jax.value_and_grad(forward, has_aux=True)(trained)
        trained, slots = optimizer.stateless_apply(slots, gradients, trained)
        return trained, updated, slots, value

    state = [
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
        )
    ]
    images = jax.ShapeDtypeStruct((batch_size, *model.input_shape[1:]), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch_size, *model.output_shape[1:-1]), jnp.int32)
    compiled = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*state, images, labels).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    inputs = images.size * 4 + labels.size * 4
    kept = memory.argument_size_in_bytes - inputs
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return kept, memory.temp_size_in_bytes + inputs + fresh


def compare(variant, batches, precision, options):
    keras.config.set_dtype_policy(precision)
    size = 2 if precision.startswith("mixed") else 4
    model = keras_vit.create_model(variant, **options)
    start = time.perf_counter()
    steps = {}
    for batch_size in batches:
        state, steps[batch_size] = compiled_memory(model, batch_size)
    estimates = {b: keras_vit.evaluate.training_memory(model, b, 2, size) for b in batches}
    few, many = min(batches), max(batches)
    slope = (steps[many] - steps[few]) / (many - few)
    guess = (estimates[many].activations - estimates[few].activations) / (many - few)
    return {
        "model": variant,
        **options,
        "precision": precision,
        "state_mib": round(state / 2**20, 1),
        "state_ratio": round((estimates[few].weights + estimates[few].optimizer) / state, 3),
        "step_mib": {b: round(x / 2**20, 1) for b, x in steps.items()},
        "step_ratio": {b: round(estimates[b].step / x, 3) for b, x in steps.items()},
        "per_image_mib": round(slope / 2**20, 2),
        "per_image_ratio": round(guess / slope, 3),
        "seconds": round(time.perf_counter() - start, 1),
        "versions": {"jax": jax.__version__, "keras": keras.__version__},
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", nargs="+", default=["vit_s16", "vit_b16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--options", type=json.loads, default={}, help="of create_model, as JSON")
    options = parser.parse_args(arguments)
    for variant in options.variants:
        row = compare(variant, options.batches, options.precision, options.options)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
