"""Passes over records -> batches: for one worker or many, in orders that repeat with a seed.

One shuffle of numbers gives every pass its own, and all else follows from it: the order of the
records, who reads what, and every random choice for an image. That shuffle goes on when an
iterator is made; a second one behind it would, when it is read. ResumeTraining makes the iterators
of earlier passes and reads none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.trainers.tuning import untuned

_BATCHES_AHEAD = 2
_NUMBERS = 1 << 14  # that passes draw theirs from


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one worker reads in a pass.

    Args:
        num_records: Records of all workers together.
        batch_size: Records of a step, of all workers together.
        index: Of this worker.
        workers: Their number.
        replicas: Of this worker.
        drop_remainder: Whether to leave out what does not fill a last batch.
        repeats: How often a pass goes through the records, each time in another order.
        max_steps: Steps after which a pass ends early, or `None`.

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
        """Records of one replica's step."""
        return self.batch_size // (self.workers * self.replicas)

    @property
    def steps(self) -> int:
        """Steps of a pass, the same for all workers: the longest part's, or the shortest's."""
        worker_batch = self.replica_batch * self.replicas
        if self.drop_remainder:
            steps = self.num_records // self.workers * self.repeats // worker_batch
        else:
            longest = -(-self.num_records // self.workers) * self.repeats
            steps = -(-longest // worker_batch)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @property
    def part(self) -> tuple[int, int]:
        """The first record, and the one after the last."""
        first = self.index * self.num_records // self.workers
        return first, (self.index + 1) * self.num_records // self.workers


def read_passes(
    plan: Plan,
    read: Callable[[tuple[int, int], Any], tf.data.Dataset],
    prepare: Callable[..., Any],
    seed: int,
    finish: Callable[..., Any] | None = None,
) -> tf.data.Dataset:
    """Batches of one worker; every iterator over them is another pass.

    Args:
        plan: What this worker reads.
        read: From a part of the records and the number of a pass, an int64 tensor, to a dataset
            of them.
        prepare: From a record to what is batched, of shapes that are the same for all.
        seed: What the numbers follow from.
        finish: From a batch, which is not empty, to what `fit` takes.

    Returns:
        A `tf.data.Dataset` of known length.
    """

    def read_pass(number: Any) -> tf.data.Dataset:
        if plan.repeats == 1:
            return read(plan.part, number)
        times = tf.data.Dataset.range(plan.repeats)
        return times.flat_map(lambda time: read(plan.part, number * plan.repeats + time))

    records = _shuffled_numbers(seed).take(1).flat_map(read_pass)
    return _batches(records.map(prepare, tf.data.AUTOTUNE, deterministic=True), plan, finish)


def distribute(
    read: Callable[[int, int, int], tuple[Plan, tf.data.Dataset]],
    worker: tuple[int, int] | None = None,
) -> Any:
    """The batches of this process: under a strategy, each of its workers reads its own part.

    Args:
        read: From the index of a worker, the number of workers, and that of the worker's replicas,
            to its plan and its batches.
        worker: Index and number of workers where `tf.distribute` is not what joins them.

    Returns:
        A `tf.data.Dataset`, or under a strategy of several replicas its distributed form.
    """
    if worker is not None:
        return read(*worker, 1)[1]
    if not tf.distribute.has_strategy():
        return _for_any_strategy(read(0, 1, 1)[1])
    plans: list[Plan] = []

    def read_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        workers = context.num_input_pipelines
        replicas = context.num_replicas_in_sync // workers
        plan, batches = read(context.input_pipeline_id, workers, replicas)
        plans.append(plan)
        return batches

    strategy = tf.distribute.get_strategy()
    distributed = strategy.distribute_datasets_from_function(read_pipeline)
    # TensorFlow counts the batches of all replicas of a worker, and Keras takes them for steps.
    distributed._cardinality = plans[0].steps
    return distributed


def _shuffled_numbers(seed: int) -> tf.data.Dataset:
    """Numbers of passes in an order that `seed` decides, another for every iterator.

    `Dataset.shuffle` mixes the global seed in, which may differ between workers.
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


def _batches(records: tf.data.Dataset, plan: Plan, finish: Any) -> tf.data.Dataset:
    """As many batches as all workers have, empty ones where the records have come to an end."""
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
    return untuned(batches.prefetch(_BATCHES_AHEAD))


def _for_any_strategy(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset that workers share by its batches, not by its files."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)
