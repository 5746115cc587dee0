"""Rows of all replicas on each of them, with exact gradients."""

from __future__ import annotations

import keras

from keras_vit.runtime.private_names import Tensor


def gather_rows(x: Tensor) -> tuple[Tensor, Tensor | int]:
    """Joins the rows of all replicas of `tf.distribute`, in the order of the replicas.

    Each replica puts its rows into zeros, and all add them up. The gradient of the sum is the sum
    of the gradients of all replicas, of which each takes its own rows: a loss that is shared by
    the replicas has the gradients of one device. TensorFlow's own `all_gather` is not possible
    where the step has parts that XLA compiles. Replicas may have unequal numbers of rows.

    Args:
        x: Tensor of shape `(b, ...)`, the rows of this replica.

    Returns:
        The tensor of shape `(B, ...)` with all rows, and the position of the first own row in it:
        `x` and 0 without a strategy of several replicas.
    """
    if keras.backend.backend() != "tensorflow":
        return x, 0
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:  # None: shapes are looked for alone
        return x, 0
    add = tf.distribute.ReduceOp.SUM
    replica, own = context.replica_id_in_sync_group, tf.shape(x)[0]
    places = tf.range(context.num_replicas_in_sync)
    counts = context.all_reduce(add, tf.where(places == replica, own, 0))
    first = tf.cumsum(counts, exclusive=True)[replica]
    after = tf.reduce_sum(counts) - first - own
    padding = [[first, after], *[[0, 0]] * (len(x.shape) - 1)]
    return context.all_reduce(add, tf.pad(x, padding)), first
