"""The attentive probe: one learned query attends to the tokens of a frozen model.

As the attentive probes of AIM (https://arxiv.org/abs/2401.08541) and V-JEPA, with the attention
pooling of this package: cross-attention of the query, an MLP, and a linear classifier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_vit.layers.float32 import Float32Policy
from keras_vit.layers.pooling import AttentionPooling

STEPS = 300  # of AdamW, with cosine decay of the rate
_BATCH = 64
_HEAD_DIM = 64  # of the attention heads, about
_WEIGHT_DECAY = 0.05
_STDDEV_FLOOR = 1e-5  # as in few-shot evaluation
_ROWS = 256  # images at a time


def attentive_scores(
    tokens: np.ndarray,
    labels: np.ndarray,
    test_tokens: np.ndarray,
    classes: int,
    rates: Sequence[float],
) -> Iterator[np.ndarray]:
    """Computes class scores of test images by attentive probes, one for each learning rate.

    Args:
        tokens: Tokens of the labelled images, array of shape `(n, T, D)`.
        labels: Classes of the labelled images, integers of shape `(n,)` in [0, classes).
        test_tokens: Tokens of the test images, array of shape `(M, T, D)`.
        classes: Number of classes `K`.
        rates: Learning rates.

    Yields:
        Array of shape `(M, K)` for every rate.
    """
    for model, mean, stddev in _train(tokens, labels, classes, rates):
        yield batched(model, (test_tokens - mean) / stddev)


def attentive_head(
    tokens: np.ndarray, labels: np.ndarray, classes: int, rate: float
) -> keras.Sequential:
    """Trains an attentive probe, with the standardisation of the tokens in its weights.

    Args:
        tokens: As for `attentive_scores`.
        labels: As for `attentive_scores`.
        classes: Number of classes `K`.
        rate: Learning rate.

    Returns:
        A model from tokens `(B, T, D)` to logits `(B, K)`, of the layers `probe_pooling`, an
        `AttentionPooling`, and `head`.
    """
    model, mean, stddev = next(_train(tokens, labels, classes, [rate]))
    # Tokens are read by the kernel of keys and values alone.
    dense = model.layers[0].key_value
    kernel, bias = (np.asarray(x, "float64") for x in dense.get_weights())
    kernel = kernel / stddev[:, None]
    dense.set_weights([kernel.astype("float32"), (bias - mean @ kernel).astype("float32")])
    return model


def batched(model: keras.Layer, x: np.ndarray) -> np.ndarray:
    """Calls a model or layer on a few rows at a time."""
    parts = (x[i : i + _ROWS] for i in range(0, len(x), _ROWS))
    return np.concatenate([keras.ops.convert_to_numpy(model(part)) for part in parts])


def _train(
    tokens: np.ndarray, labels: np.ndarray, classes: int, rates: Sequence[float]
) -> Iterator[tuple[keras.Sequential, np.ndarray, np.ndarray]]:
    """Trains one probe from the start for each learning rate, on standardised tokens.

    Yields the probe, and the mean and deviation of the tokens.
    """
    width = tokens.shape[-1]
    flat = tokens.reshape(-1, width)
    mean, stddev = flat.mean(axis=0), flat.std(axis=0) + _STDDEV_FLOOR
    x = ((tokens - mean) / stddev).astype("float32")
    heads = next(n for n in range(max(width // _HEAD_DIM, 1), 0, -1) if width % n == 0)
    options = {"mlp_dim": width, "dtype": Float32Policy(), "name": "probe_pooling"}
    pooling = AttentionPooling(heads, **options)
    head = keras.layers.Dense(classes, dtype=Float32Policy(), name="head")
    model = keras.Sequential([keras.Input(tokens.shape[1:]), pooling, head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=_WEIGHT_DECAY), loss)
    model.optimizer.build(model.trainable_variables)
    for rate in rates:
        _fit(model, x, labels, rate)
        yield model, mean, stddev


def _fit(model: keras.Sequential, x: np.ndarray, y: np.ndarray, rate: float) -> None:
    """Trains from the same initial weights, with the same batches for every rate."""
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(_initial(variable, random))
    for variable in model.optimizer.variables:
        variable.assign(np.zeros(variable.shape))
    batch = min(_BATCH, len(x))
    order = np.zeros(0, int)
    for step in range(STEPS):
        if len(order) < batch:
            order = random.permutation(len(x))
        chosen, order = order[:batch], order[batch:]
        model.optimizer.learning_rate = rate * (1 + math.cos(math.pi * step / STEPS)) / 2
        model.train_on_batch(x[chosen], y[chosen])


def _initial(variable: keras.Variable, random: np.random.Generator) -> np.ndarray:
    """Ones for scales, zeros for biases, and Xavier's uniform values for kernels and the query."""
    shape = tuple(variable.shape)
    if len(shape) == 1:
        return np.full(shape, 1.0 if variable.name == "gamma" else 0.0)
    limit = (6 / (shape[-2] + shape[-1])) ** 0.5
    return random.uniform(-limit, limit, shape)
