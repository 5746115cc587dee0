"""Pipelines without tf.data's tuner, whose end is waited for."""

from __future__ import annotations

import tensorflow as tf


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset without the thread that tunes how much runs in parallel.

    That thread sleeps for 10 ms, 20 ms and so on up to a minute. Where an iterator is dropped
    before its end, as Keras drops those of every epoch, TensorFlow (2.21 and before) often waits
    until the thread wakes: its wait is woken before it can see that it is to end. Without the
    tuner, `AUTOTUNE` stands for up to 16 images at once.

    Args:
        dataset: Any dataset.

    Returns:
        The same elements.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
