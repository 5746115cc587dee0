"""The position of `fit` in its data: saved, and restored in a new process.

A shuffled `tf.data.Dataset` draws a new order from its seed for each of its iterators, so the
order of an epoch depends on the number of iterators before. Keras makes more than one per epoch.
They are counted here, and made again in the new process. That is fast, because none is read.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from keras_vit.runtime.private_names import (
    EpochIterator,
    dataset_functions,
    dataset_inputs,
    global_seed,
    shuffles_without_seed,
    worker_datasets,
)

# Operations whose results a new process does not repeat; `PyFuncStateless` says that it does.
_UNREPEATABLE = re.compile(
    r"(Random(?!Dataset)|Multinomial|TruncatedNormal|ParameterizedTruncated|Stateful(Random|Uniform"
    r"|Standard|Truncated)|SampleDistorted|RngReadAndSkip|PyFunc(?!Stateless)|EagerPyFunc|Assign\w*VariableOp)"
)


class DataPosition:
    """Counts the batches that `fit` draws, and restores a saved position.

    Args:
        epochs: The data of the running `fit`, before the first epoch.
    """

    def __init__(self, epochs: EpochIterator):
        self._epochs = epochs
        self._made = 0  # iterators of the dataset
        self._drawn = 0  # batches from the newest iterator
        self._due = 0  # iterators to make before the next one is used
        self._ahead = 0  # batches to draw from the next iterator before it is used
        self._must_add_steps = False
        self._make: Callable[[], Any]
        epochs.replace_data(self._replace)

    def _replace(self, make: Callable[[], Any]) -> Callable[[], Any]:
        self._make = make
        return self._next_data

    def describe(self) -> dict[str, Any]:
        """Describes the shape and the number of batches, to compare two runs."""
        return {
            "batch": str(self._epochs.dataset.element_spec),
            "batches in the data": self._epochs.adapter.num_batches,
            "steps_per_epoch": self._epochs.steps_per_epoch,
        }

    def count(self, batches: int) -> None:
        """Counts batches that were drawn."""
        self._drawn += batches

    def begin_batch(self) -> None:
        """Corrects Keras's count of steps. Call it before each batch is drawn."""
        if self._must_add_steps:  # Keras has just set its count to zero
            self._must_add_steps = False
            self._epochs.add_steps_seen(self._drawn)

    def save(self, batch: int) -> dict[str, Any]:
        """Returns the position after `batch` batches of an epoch; 0 is between two epochs."""
        in_iterator = batch > 0 or self._epochs.is_within_data
        return {
            "iterators": self._made - 1 if in_iterator else self._made,
            "drawn": self._drawn - batch if in_iterator else 0,
            "all iterators": self._made,
            "num_batches": self._epochs.num_batches,
        }

    def restore(self, position: dict[str, Any]) -> None:
        """Makes the next epoch start where `save` was called, or where its epoch started."""
        self._due = position["iterators"]
        self._ahead = position["drawn"]
        self._epochs.num_batches = position["num_batches"]

    def restore_end(self, position: dict[str, Any]) -> None:
        """Restores the position after a finished run, for a `fit` that may follow."""
        self._due = position["all iterators"]
        self._make_iterators()

    def _make_iterators(self) -> None:
        while self._made < self._due:
            iter(self._make())
            self._made += 1

    def _next_data(self) -> Any:
        self._make_iterators()
        self._made += 1
        self._drawn, self._ahead, ahead = self._ahead, 0, self._ahead
        self._must_add_steps = ahead > 0
        return _Skipped(self._make(), ahead) if ahead else self._make()


class _Skipped:
    """Data whose first batches are drawn before the iterator is used."""

    def __init__(self, data: Any, count: int):
        self._data = data
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._data)
        for _ in range(self._count):
            next(iterator)
        return iterator


def check_repeatable(epochs: EpochIterator) -> None:
    """Checks that a new process can repeat the order of the data, and warns of random operations.

    Args:
        epochs: The data of the running `fit`.

    Raises:
        ValueError: If the order of the data changes from process to process.
    """
    if epochs.shuffles_arrays is not None:
        if epochs.shuffles_arrays and global_seed() is None:
            raise ValueError(
                "`fit` shuffles the arrays in an order that a restarted process cannot repeat. "
                "Call `keras.utils.set_random_seed(...)` first, or pass `shuffle=False`, or "
                "a `tf.data.Dataset` with `shuffle(..., seed=...)`."
            )
        return
    unrepeatable = set()
    for dataset in _walk(epochs.dataset):
        if shuffles_without_seed(dataset):
            raise ValueError(
                "The dataset shuffles without a seed, in an order that a restarted process cannot "
                "repeat. Use `shuffle(..., seed=...)`, or call `keras.utils.set_random_seed(...)` "
                "first."
            )
        unrepeatable |= _unrepeatable_operations(dataset)
    if unrepeatable:
        warnings.warn(
            f"The dataset calls {', '.join(sorted(unrepeatable))}. A restarted process continues "
            "at the same batch, but may get other values from these operations. For runs that "
            "repeat bit for bit, use operations that depend on their input alone, such as "
            "`tf.image.stateless_random_flip_left_right` on seeds from a seeded `tf.data` counter.",
            stacklevel=2,
        )


def _walk(data: Any) -> Iterator[Any]:
    """Yields a dataset, or those of its workers, and all datasets that they read."""
    pending = worker_datasets(data)
    while pending:
        dataset = pending.pop()
        yield dataset
        pending += dataset_inputs(dataset)


def _unrepeatable_operations(dataset: Any) -> set[str]:
    found = set()
    for wrapper in dataset_functions(dataset):
        graph = wrapper.function.graph.as_graph_def()
        nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
        found |= {node.op for node in nodes if _UNREPEATABLE.match(node.op)}
    return found
