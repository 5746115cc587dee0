"""Class relevance: attention weighted with the gradient of a class's logit."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.attention import on_grid
from keras_vit.analysis.image_batches import ImageBatches, image_batches
from keras_vit.models.attention import Attention
from keras_vit.models.graph import check_head

# One class index for all images, or one per image; `None` means the most likely class.
Classes = int | Sequence[int] | np.ndarray | None


def class_relevance(
    model: keras.Model, images: ImageBatches, classes: Classes = None, batch_size: int = 4
) -> np.ndarray:
    """Class relevance: how much each patch supports a class.

    The method of https://arxiv.org/abs/2103.15679 (Section 3.1): attention weights are multiplied
    by the gradient of the class's logit, negative products become zero, and heads are averaged.
    The identity is added for the residual connection, and the blocks are multiplied as in
    attention rollout, and the rows of the tokens that are pooled are averaged as there. Unlike
    rollout, the result depends on the class.

    Args:
        model: A Vision Transformer with a head, or a model built on one. Logits give cleaner maps
            than probabilities.
        images: Array of shape `(B, H, W, C)`, as the model takes them, or an iterable of batches.
        classes: One class index for all images, or one per image; `None` takes the model's most
            likely class.
        batch_size: Images per batch, if `images` is an array. The gradient needs the attention of
            all blocks in memory.

    Returns:
        float32 array of shape `(B, rows, columns)`, values of at least 0.

    Raises:
        ValueError: If the model has no head or no single output of shape `(B, K)`, or the number
            of classes is not the number of images.
        RuntimeError: If Keras runs on another backend than TensorFlow.
    """
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            "class_relevance needs the gradients of TensorFlow. Received: the backend "
            f"{keras.config.backend()!r}. Set KERAS_BACKEND=tensorflow."
        )
    attention = Attention(model)
    if len(model.outputs) != 1 or len(model.outputs[0].shape) != 2:
        shapes = [tuple(x.shape) for x in model.outputs]
        raise ValueError(
            f"The model must have one output of shape (batch, classes). Received: {shapes}."
        )
    check_head(model, "`class_relevance`")
    maps: list[np.ndarray] = []
    num_images = 0
    for batch in image_batches(images, batch_size):
        chosen = _choose(classes, num_images, len(batch))
        maps.append(_relevance(attention, batch, chosen))
        num_images += len(batch)
    if classes is not None and np.ndim(classes) and np.size(classes) != num_images:
        raise ValueError(f"There are {num_images} images and {np.size(classes)} classes.")
    return np.concatenate(maps)


def _choose(classes: Classes, start: int, count: int) -> np.ndarray | None:
    """The class indices of a batch."""
    if classes is None:
        return None
    if np.ndim(classes) == 0:
        return np.full(count, classes)
    chosen = np.asarray(classes)[start : start + count]
    if len(chosen) != count:
        raise ValueError(f"There are more images than the {np.size(classes)} classes.")
    return chosen


def _relevance(attention: Attention, images: np.ndarray, classes: np.ndarray | None) -> np.ndarray:
    """Class relevance of the patches in one batch."""
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        pixels = tf.cast(images, "float32")
        tape.watch(pixels)
        logits, scores = attention.forward(pixels)
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
    has_pooling = len(weighted) > depth
    share = weighted[depth] if has_pooling else attention.pooling_weights(weighted)[:, None]
    for mixed in reversed(weighted[:depth]):
        share = share + tf.matmul(share, mixed)
    return on_grid(share[:, 0], attention.geometry)
