"""Matching of predictions to objects, one to one, and the loss of their classes."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_vit.installation import needing
from keras_vit.layers.layer import Tensor


def match(costs: Tensor, labels: Tensor) -> Tensor:
    """Matches each object to one prediction, at the least sum of costs.

    Args:
        costs: Float tensor of shape `(B, N, M)`.
        labels: int32 tensor of shape `(B, M)`, less than 0 where there is no object.

    Returns:
        The prediction of every object, int32 of shape `(B, M)`; -1 where there is no object, or no
        prediction is left.

    Raises:
        ImportError: If SciPy is not installed.
        ValueError: On another backend than TensorFlow.
    """
    check_backend()
    import tensorflow as tf

    with needing("probe", "Matching predictions to objects needs SciPy"):
        import scipy.optimize

    def assign(costs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        most = float(np.finfo("float32").max)
        costs = np.nan_to_num(costs, nan=most, posinf=most, neginf=most)
        found = np.full(labels.shape, -1, "int32")
        for row, cost, known in zip(found, costs, labels >= 0, strict=True):
            rows, columns = scipy.optimize.linear_sum_assignment(cost[:, known])
            row[np.flatnonzero(known)[columns]] = rows
        return found

    found = tf.numpy_function(assign, (tf.stop_gradient(costs), labels), tf.int32, stateful=False)
    return tf.ensure_shape(found, labels.shape)


def check_backend() -> None:
    """Raises `ValueError` on another backend than TensorFlow, where nothing is matched."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Models that match predictions to objects train on TensorFlow alone. Received: "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow; predictions run on every "
            "backend."
        )


def part_of_replica(loss: Tensor) -> Tensor:
    """A replica's part of the loss of all, under `tf.distribute`: as Keras takes `compute_loss`."""
    import tensorflow as tf

    return loss / tf.distribute.get_strategy().num_replicas_in_sync


def class_loss(logits: Tensor, labels: Tensor, matched: Tensor, no_object_weight: float) -> Tensor:
    """Weighted mean of the cross entropy of all predictions; the last class is no object.

    Args:
        logits: float32 tensor of shape `(B, N, K + 1)`.
        labels: int32 tensor of shape `(B, M)`.
        matched: What `match` returns.
        no_object_weight: Weight of predictions without an object.
    """
    import tensorflow as tf

    none = logits.shape[-1] - 1
    # One-hot vectors of -1 are zeros.
    chosen = ops.one_hot(matched, logits.shape[1], dtype="int32")  # (B, M, N)
    classes = ops.sum(chosen * (labels - none)[..., None], axis=1) + none  # (B, N)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
    weights = ops.where(classes == none, float(no_object_weight), 1.0)
    return ops.sum(weights * losses) / ops.sum(weights)
