"""What all workers of a run have to know of one another. Every worker must ask the same."""

from __future__ import annotations

from typing import Any


class Workers:
    """The workers that train a model together; one, without `MultiWorkerMirroredStrategy`.

    Args:
        strategy: The strategy of the model.

    Attributes:
        count: Workers.
        index: Which of them this process is; 0 is the chief.
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
        """The numbers that all workers gave, in order of the workers.

        Args:
            number: What this worker gives, below 2 to the 53rd.
        """
        if self.count == 1:
            return [number]
        import tensorflow as tf

        own = tf.one_hot(self.index, self.count, tf.cast(number, "float64"), 0.0, dtype="float64")

        def give(context):
            is_first = context.replica_id_in_sync_group % self._replicas_here == 0
            return own if is_first else tf.zeros_like(own)

        values = self._strategy.experimental_distribute_values_from_function(give)
        total = self._strategy.reduce("SUM", values, axis=None)
        return [int(value) for value in total.numpy()]

    @property
    def _replicas_here(self) -> int:
        return self._strategy.num_replicas_in_sync // self.count
