"""Which patches speak for a class, by the gradient of its logit."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.image_batches import image_batches
from keras_vit.models.feature_extraction import Attention


def class_relevance(
    model: keras.Model, images: Any, classes: Any = None, batch_size: int = 4
) -> np.ndarray:
    """How much each patch speaks for a class.

    The method of https://arxiv.org/abs/2103.15679 (Section 3.1): attention weights times the
    gradient of the class's logit by them, only what is positive, the mean over heads; the
    identity is added for the residual connection, and the blocks are multiplied as in attention
    rollout. Unlike rollout, it depends on the class.

    Args:
        model: A Vision Transformer with a head, or a model built on one. Logits give cleaner maps
            than probabilities.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        classes: Index of a class for all images, or one for each; `None` takes the class that the
            model finds most likely.
        batch_size: Images at a time, where `images` is an array. The gradient keeps the attention
            of all blocks in memory.

    Returns:
        float32 array of shape `(B, rows, columns)`, from 0 on.

    Raises:
        ValueError: If the model has no single output of shape `(B, K)`, or there are not as many
            classes as images.
        RuntimeError: If Keras runs on another backend than TensorFlow, whose gradients this
            needs.
    """
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            "class_relevance takes gradients with TensorFlow. Received: the backend "
            f"{keras.config.backend()!r}; set KERAS_BACKEND=tensorflow."
        )
    attention = Attention(model)
    if len(model.outputs) != 1 or len(model.outputs[0].shape) != 2:
        shapes = [tuple(x.shape) for x in model.outputs]
        raise ValueError(
            f"A model with one output of shape (batch, classes) is needed. Received: {shapes}."
        )
    maps: list[np.ndarray] = []
    seen = 0
    for batch in image_batches(images, batch_size):
        chosen = _choose(classes, seen, len(batch))
        maps.append(_relevance(attention, batch, chosen))
        seen += len(batch)
    if np.ndim(classes) and len(classes) != seen:
        raise ValueError(f"There are {seen} images and {len(classes)} classes.")
    return np.concatenate(maps)


def _choose(classes: Any, start: int, count: int) -> np.ndarray | None:
    if classes is None:
        return None
    if np.ndim(classes) == 0:
        return np.full(count, classes)
    chosen = np.asarray(classes)[start : start + count]
    if len(chosen) != count:
        raise ValueError(f"There are more images than the {len(classes)} classes.")
    return chosen


def _relevance(attention: Attention, images: np.ndarray, classes: np.ndarray | None) -> np.ndarray:
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tokens = tf.convert_to_tensor(attention.tokens(images)[0])
        tape.watch(tokens)
        logits, scores = attention.forward(tokens)
        if classes is None:
            classes = ops.convert_to_numpy(logits).argmax(axis=-1)
        chosen = tf.gather(logits, classes, axis=1, batch_dims=1)
        total = tf.reduce_sum(chosen)
    gradients = tape.gradient(total, scores)
    weighted = [
        tf.reduce_mean(tf.nn.relu(tf.cast(a, "float32") * tf.cast(g, "float32")), axis=1)
        for a, g in zip(scores, gradients, strict=True)
    ]  # each (B, T, T), and (B, 1, T) of an attention pooling
    depth = len(attention.blocks)
    share = weighted[depth] if len(weighted) > depth else attention.viewpoint([tokens])[:, None]
    for mixed in reversed(weighted[:depth]):
        share = share + tf.matmul(share, mixed)
    patches = ops.convert_to_numpy(share)[:, 0, attention.geometry.num_prefix_tokens :]
    return patches.reshape(-1, *attention.geometry.grid)
