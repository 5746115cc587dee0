"""The plain flax ViT of benchmarks/flax_vit.py, compiled by XLA for the processor."""

from __future__ import annotations

import os

from contestants.worker import CLASSES, Run, normalized, random_batch, repeat, serve


def load(cell: dict) -> Run:
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax_vit import FlaxViT

    jax.clear_caches()
    config = dict(cell["config"])
    patch_size = (config.pop("patch_size"),) * 2
    model = FlaxViT(patch_size, **config, classes=CLASSES, dtype=getattr(jnp, cell["precision"]))
    images, labels = random_batch(cell)
    images = normalized(images)
    parameters = jax.jit(model.init)(jax.random.key(0), images)
    if cell["task"] == "train":
        return train(model, parameters, images, labels)
    function = jax.jit(model.apply)
    return repeat(lambda: np.asarray(function(parameters, images)))


def train(model, parameters, images, labels) -> Run:
    import jax
    import numpy as np
    import optax

    optimizer = optax.adamw(1e-4, weight_decay=0.1)
    state = [parameters, jax.jit(optimizer.init)(parameters)]

    def loss_of(parameters):
        logits = model.apply(parameters, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def update(parameters, moments):
        loss, gradients = jax.value_and_grad(loss_of)(parameters)
        changes, moments = optimizer.update(gradients, moments, parameters)
        return optax.apply_updates(parameters, changes), moments, loss

    update = jax.jit(update, donate_argnums=(0, 1))

    def step():
        state[0], state[1], loss = update(*state)
        return np.asarray(loss)

    return repeat(step)


if __name__ == "__main__":
    serve(load)
