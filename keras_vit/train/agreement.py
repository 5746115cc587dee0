"""What all workers of a run have to know of one another. Every worker must ask the same."""

from __future__ import annotations

import time
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


_STOP = 1 << 32  # more than the steps of a second
_SECONDS_BETWEEN_QUESTIONS = 1.0


class StopQuestion:
    """Asks all workers whether one of them has to stop: about once a second, as it takes time.

    Args:
        workers: The workers. One alone is asked at every step.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._due = 0
        self._last = (0, time.monotonic())

    def ask(self, steps: int, has_to_stop: bool, now: bool = False) -> bool:
        """Whether all workers are to stop after this step.

        Args:
            steps: Steps so far, the same in all workers.
            has_to_stop: Whether this worker has to.
            now: Whether to ask in any case; the same in all workers.
        """
        if self._workers.count == 1:
            return has_to_stop
        if steps < self._due and not now:
            return False
        before, then = self._last
        self._last = (steps, time.monotonic())
        pace = (steps - before) / max(self._last[1] - then, 1e-3)
        wish = max(1, int(pace * _SECONDS_BETWEEN_QUESTIONS))
        answers = self._workers.gather(has_to_stop * _STOP + wish)
        self._due = steps + min(answer % _STOP for answer in answers)
        return any(answer >= _STOP for answer in answers)
