"""The workers of a run, and an all-gather of numbers. All workers must make the same calls."""

from __future__ import annotations

from typing import Any


class Workers:
    """The workers that train a model together; one without `MultiWorkerMirroredStrategy`.

    Args:
        strategy: The `tf.distribute.Strategy` of the model.

    Attributes:
        count: Number of workers.
        index: Index of this worker; 0 is the chief.
    """

    def __init__(self, strategy: Any):
        self._strategy = strategy
        self.count, self.index = 1, 0
        resolver = getattr(strategy, "cluster_resolver", None)
        if resolver is None:
            return
        cluster = resolver.cluster_spec().as_dict()
        chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
        if chiefs + workers > 1:
            self.count = chiefs + workers
            self.index = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)

    def gather(self, number: int) -> list[int]:
        """Gathers one integer from each worker (an all-gather).

        Args:
            number: The number of this worker, below `2**53`.

        Returns:
            The numbers of all workers, in their order.
        """
        if self.count == 1:
            return [number]
        import tensorflow as tf

        own = tf.one_hot(self.index, self.count, tf.cast(number, "float64"), 0.0, dtype="float64")

        def value_of(context: Any) -> Any:
            is_first = context.replica_id_in_sync_group % self._replicas_here == 0
            return own if is_first else tf.zeros_like(own)

        values = self._strategy.experimental_distribute_values_from_function(value_of)
        total = self._strategy.reduce("SUM", values, axis=None)
        return [int(value) for value in total.numpy()]

    @property
    def _replicas_here(self) -> int:
        return self._strategy.num_replicas_in_sync // self.count
