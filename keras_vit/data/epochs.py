"""Reads epochs of records as batches, for one worker or many, in an order that a seed decides.

A shuffle of numbers gives every epoch a number of its own. It decides the order of the records,
which worker reads them, and every random choice for an image. This shuffle advances when an
iterator is created; a second shuffle after it would advance when it is read. That matters to
`ResumeTraining`, which creates the iterators of earlier epochs and does not read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.runtime.array_data import without_autotune
from keras_vit.runtime.private_names import set_cardinality

_BATCHES_AHEAD = 2
_NUMBERS = 1 << 14  # of epochs


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The records and batches that one worker reads in an epoch.

    Args:
        num_records: Records of all workers together.
        batch_size: Records per step, of all workers together.
        index: Index of this worker.
        workers: Number of workers.
        replicas: Replicas of this worker.
        drop_remainder: Whether to drop a last batch that is not full.
        repeats: How often an epoch reads the records, each time in another order.
        max_steps: Steps after which an epoch ends early, or `None`.

    Raises:
        ValueError: If the replicas cannot share the batch evenly, there is no such worker, or the
            records make no batch.
    """

    num_records: int
    batch_size: int
    index: int = 0
    workers: int = 1
    replicas: int = 1
    drop_remainder: bool = False
    repeats: int = 1
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.workers:
            raise ValueError(
                f"There is no worker {self.index} of {self.workers}: they count from 0 to "
                f"{self.workers - 1}."
            )
        everyone = self.workers * self.replicas
        if self.batch_size % everyone:
            fitting = max(1, round(self.batch_size / everyone)) * everyone
            raise ValueError(
                f"{everyone} replicas ({self.workers} workers) cannot share the batch evenly. "
                f"Received: batch_size={self.batch_size}. Take {fitting}."
            )
        if not self.steps:
            raise ValueError(
                f"{self.num_records} records make no whole batch of {self.batch_size} for "
                f"{self.workers} workers. Take a smaller one, or drop_remainder=False."
            )

    @property
    def replica_batch(self) -> int:
        """Records per step of one replica."""
        return self.batch_size // (self.workers * self.replicas)

    @property
    def steps(self) -> int:
        """Steps per epoch, the same for all workers: of the longest part, or of the shortest."""
        worker_batch = self.replica_batch * self.replicas
        if self.drop_remainder:
            steps = self.num_records // self.workers * self.repeats // worker_batch
        else:
            longest = -(-self.num_records // self.workers) * self.repeats
            steps = -(-longest // worker_batch)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @property
    def part(self) -> tuple[int, int]:
        """First record of this worker, and the one after its last."""
        first = self.index * self.num_records // self.workers
        return first, (self.index + 1) * self.num_records // self.workers


def read_epochs(
    plan: EpochPlan,
    read: Callable[[tuple[int, int], Any], tf.data.Dataset],
    prepare: Callable[..., Any],
    seed: int,
    finish: Callable[..., Any] | None = None,
) -> tf.data.Dataset:
    """Batches of one worker; every iterator over them is another epoch.

    Args:
        plan: The records and batches of this worker.
        read: Reads a part of the records. Arguments: the part, and the number of the epoch, an
            int64 tensor.
        prepare: Maps a record to the elements of a batch; all have the same shapes.
        seed: Random seed of the numbers of epochs.
        finish: Maps a batch that is not empty to what `fit` takes.

    Returns:
        A `tf.data.Dataset` of known length.
    """

    def read_epoch(number: Any) -> tf.data.Dataset:
        if plan.repeats == 1:
            return read(plan.part, number)
        times = tf.data.Dataset.range(plan.repeats)
        return times.flat_map(lambda time: read(plan.part, number * plan.repeats + time))

    records = _shuffled_numbers(seed).take(1).flat_map(read_epoch)
    return _batches(records.map(prepare, tf.data.AUTOTUNE, deterministic=True), plan, finish)


def number_for(number: Any, seed: int) -> Any:
    """Number of an epoch that no epoch of another seed has; random operations take it as seed."""
    return number + seed % (1 << 30) * (1 << 32)


def distribute(
    make_plan: Callable[..., EpochPlan],
    read: Callable[[EpochPlan], tf.data.Dataset],
    worker: tuple[int, int] | None = None,
) -> Any:
    """The batches of this process; under a strategy, each worker reads its own part.

    Args:
        make_plan: Makes the plan of a worker: `EpochPlan` without `index`, `workers`, `replicas`.
        read: Makes the batches of a worker from its own plan.
        worker: Index and number of workers, if `tf.distribute` is not used.

    Returns:
        A `tf.data.Dataset`, or under a strategy of several replicas a distributed dataset.
    """
    if worker is not None:
        return read(make_plan(index=worker[0], workers=worker[1]))
    if not tf.distribute.has_strategy():
        return _for_any_strategy(read(make_plan()))
    plans: list[EpochPlan] = []

    def read_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        index, workers = context.input_pipeline_id, context.num_input_pipelines
        replicas = context.num_replicas_in_sync // workers
        plans.append(make_plan(index=index, workers=workers, replicas=replicas))
        return read(plans[-1])

    strategy = tf.distribute.get_strategy()
    distributed = strategy.distribute_datasets_from_function(read_pipeline)
    # TensorFlow counts the batches of each replica, Keras expects steps.
    set_cardinality(distributed, plans[0].steps)
    return distributed


def _shuffled_numbers(seed: int) -> tf.data.Dataset:
    """Numbers of epochs in an order that `seed` decides, another for every iterator.

    `Dataset.shuffle` also uses the global seed, which may differ between workers.
    """
    numbers = tf.data.Dataset.range(_NUMBERS)
    shuffled = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(numbers),
        buffer_size=_NUMBERS,
        seed=seed,
        seed2=1,
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=True,
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    return tf.data.experimental.from_variant(shuffled, numbers.element_spec)


def _batches(
    records: tf.data.Dataset, plan: EpochPlan, finish: Callable[..., Any] | None
) -> tf.data.Dataset:
    """The same number of batches on all workers; they are empty after the last record."""
    total = plan.steps * plan.replicas
    batches = records.batch(plan.replica_batch, plan.drop_remainder)
    if finish is not None:
        batches = batches.map(finish, tf.data.AUTOTUNE, deterministic=True)
    if not plan.drop_remainder:
        empty = tf.nest.map_structure(
            lambda spec: tf.zeros([0, *(side or 0 for side in spec.shape[1:])], spec.dtype),
            batches.element_spec,
        )
        batches = batches.concatenate(tf.data.Dataset.from_tensors(empty).repeat())
    batches = batches.take(total).apply(tf.data.experimental.assert_cardinality(total))
    return without_autotune(batches.prefetch(_BATCHES_AHEAD))


def _for_any_strategy(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset that is sharded by batches, not by files."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)
