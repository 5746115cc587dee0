"""Checks of `TF_CONFIG` and of the workers that it names, before TensorFlow waits for them."""

from __future__ import annotations

import collections
import os
from typing import Any, NamedTuple

from keras_vit.distribution.rendezvous import wait_for_workers
from keras_vit.reading import parse_json

_ROLES = ("chief", "worker")  # of the workers that train, in TensorFlow's order
_EXAMPLE = (
    '{"cluster": {"worker": ["host-a:2222", "host-b:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


class Cluster(NamedTuple):
    """The workers of a run.

    Args:
        addresses: `"host:port"` of each worker, the chief first.
        worker: Index of this process among them.
    """

    addresses: tuple[str, ...]
    worker: int


def check_cluster(timeout_seconds: float = 300.0) -> Cluster | None:
    """Checks `TF_CONFIG`, then waits until all workers can reach each other.

    Call it first in every worker, before a strategy is made: TensorFlow itself waits without limit
    for a worker that does not start, and reports little about a wrong configuration. This function
    opens the port of this worker, connects to the others, compares the configuration and the
    versions of TensorFlow and Keras, and closes the port.

    Args:
        timeout_seconds: Longest time to wait for the others.

    Returns:
        The workers, or `None` without `TF_CONFIG`.

    Raises:
        ValueError: If `TF_CONFIG` is wrong.
        TimeoutError: If workers did not start in time. The message names them.
        RuntimeError: If workers have different configurations or versions.

    Example:
        keras_vit.distribution.check_cluster(timeout_seconds=600)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    """
    cluster = find_cluster()
    if cluster is not None:
        wait_for_workers(cluster.addresses, cluster.worker, timeout_seconds)
    return cluster


def find_cluster() -> Cluster | None:
    """Reads the workers from the environment variable `TF_CONFIG`.

    Returns:
        The workers, or `None` without `TF_CONFIG`.

    Raises:
        ValueError: If `TF_CONFIG` is wrong.
    """
    text = os.environ.get("TF_CONFIG")
    return parse_cluster(text) if text and text.strip() != "{}" else None


def parse_cluster(text: str) -> Cluster:
    """Parses the text of `TF_CONFIG`.

    Args:
        text: JSON, as TensorFlow documents it.

    Returns:
        The workers that train; `ps` and `evaluator` are not among them.

    Raises:
        ValueError: If it is wrong. The message says how.
    """
    try:
        config = parse_json(text)
    except ValueError as error:
        raise _wrong(f"it is not JSON ({error})", text) from error
    jobs = config.get("cluster") if isinstance(config, dict) else None
    if not isinstance(jobs, dict) or not jobs.get("worker"):
        raise _wrong('it needs workers: "cluster": {"worker": [...]}', text)
    roles = {role: _check_addresses(role, jobs[role], text) for role in _ROLES if role in jobs}
    everyone = [address for role in roles.values() for address in role]
    twice = [a for a, count in collections.Counter(everyone).items() if count > 1]
    if twice:
        raise _wrong(f"{', '.join(twice)} is in it more than once", text)
    return Cluster(tuple(everyone), _find_index(config.get("task"), roles, text))


def _check_addresses(role: str, addresses: Any, text: str) -> list[str]:
    if not isinstance(addresses, list):
        raise _wrong(f'"{role}" must be a list of addresses', text)
    for address in addresses:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise _wrong(f'{address!r} is not an address; it must be "host:port"', text)
    return addresses


def _find_index(task: Any, roles: dict[str, list[str]], text: str) -> int:
    """Finds the index of this process among all workers."""
    role = task.get("type") if isinstance(task, dict) else None
    if role not in roles:
        raise _wrong(f'the type of its "task" must be one of {", ".join(roles)}', text)
    index, count = task.get("index"), len(roles[role])
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise _wrong(f'the index of its "task" must be 0 to {count - 1} for a {role}', text)
    return index + (len(roles.get("chief", ())) if role == "worker" else 0)


def _wrong(problem: str, text: str) -> ValueError:
    return ValueError(
        f"TF_CONFIG is wrong: {problem}. Received: {text}. Example: {_EXAMPLE}, with a different "
        "index for every worker."
    )


class Workers:
    """The workers that train a model together; one without `MultiWorkerMirroredStrategy`.

    All workers must make the same calls.

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

        summand = tf.one_hot(
            self.index, self.count, tf.cast(number, "float64"), 0.0, dtype="float64"
        )
        replicas = self._strategy.num_replicas_in_sync // self.count  # of each worker

        def value_of(context: Any) -> Any:
            is_first = context.replica_id_in_sync_group % replicas == 0
            return summand if is_first else tf.zeros_like(summand)

        values = self._strategy.experimental_distribute_values_from_function(value_of)
        total = self._strategy.reduce("SUM", values, axis=None)
        return [int(value) for value in total.numpy()]
