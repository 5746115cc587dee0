"""A plain ViT in flax, a peer of our models on the JAX backend: as few lines as it takes.

Pre-norm blocks, GELU by tanh, a class token, learned places; attention by
`jax.nn.dot_product_attention`, which uses cuDNN where asked to. Computes in `dtype`, keeps float32.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class Block(nn.Module):
    num_heads: int
    mlp_dim: int
    dtype: Any
    attention: str | None

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        y = nn.LayerNorm(dtype=self.dtype)(x)
        qkv = nn.DenseGeneral((3, self.num_heads, width // self.num_heads), dtype=self.dtype)(y)
        y = jax.nn.dot_product_attention(
            qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], implementation=self.attention
        )
        x = x + nn.DenseGeneral(width, axis=(-2, -1), dtype=self.dtype)(y)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.gelu(nn.Dense(self.mlp_dim, dtype=self.dtype)(y), approximate=True)
        return x + nn.Dense(width, dtype=self.dtype)(y)


class FlaxViT(nn.Module):
    """From images `(B, H, W, 3)` to float32 logits `(B, classes)`."""

    patch_size: tuple[int, int]
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    classes: int = 1000
    dtype: Any = jnp.float32
    attention: str | None = None

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(self.width, self.patch_size, self.patch_size, dtype=self.dtype)(images)
        x = x.reshape(len(x), -1, self.width)
        token = self.param("token", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)).astype(x.dtype), x], axis=1)
        places = self.param("places", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = x + places.astype(x.dtype)
        for _ in range(self.depth):
            x = Block(self.num_heads, self.mlp_dim, self.dtype, self.attention)(x)
        x = nn.LayerNorm(dtype=self.dtype)(x)[:, 0]
        return nn.Dense(self.classes, kernel_init=nn.initializers.zeros)(x.astype(jnp.float32))


def training_step(model: FlaxViT, parameters, images, labels):
    """A function that takes a step of AdamW on one batch at every call, and returns the loss."""
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
        return loss

    return step
