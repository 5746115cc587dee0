"""The plain flax ViT of benchmarks/flax_vit.py, compiled by XLA for the processor."""

from __future__ import annotations

import os

from contestants.worker import CLASSES, Run, normalized, random_batch, repeat, serve


def load(cell: dict) -> Run:
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax_vit import FlaxViT, training_step

    jax.clear_caches()
    config = dict(cell["config"])
    patch_size = (config.pop("patch_size"),) * 2
    model = FlaxViT(patch_size, **config, classes=CLASSES, dtype=getattr(jnp, cell["precision"]))
    images, labels = random_batch(cell)
    images = normalized(images)
    parameters = jax.jit(model.init)(jax.random.key(0), images)
    if cell["task"] == "train":
        step = training_step(model, parameters, images, labels)
        return repeat(lambda: np.asarray(step()))
    function = jax.jit(model.apply)
    return repeat(lambda: np.asarray(function(parameters, images)))


if __name__ == "__main__":
    serve(load)
