"""Where `fit` stands in its data, and how to stand there again in a new process.

A shuffled `tf.data.Dataset` draws a new order from its seed for each iterator made of it, so the
order of an epoch depends on how many iterators there were before. Keras makes more than one an
epoch. They are counted here, and made again, which costs nothing: none is read.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

# Operations whose outcome a new process does not repeat.
_UNREPEATABLE = re.compile(
    r"(Random(?!Dataset)|Multinomial|TruncatedNormal|ParameterizedTruncated|Stateful(Random|Uniform"
    r"|Standard|Truncated)|SampleDistorted|RngReadAndSkip|PyFunc|EagerPyFunc|Assign\w*VariableOp)"
)


def find_epochs() -> Any:
    """The epoch iterator of the `fit` that is running, from within one of its callbacks."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals:
            return frame.f_locals["epoch_iterator"]
        frame = frame.f_back
    raise RuntimeError(
        "ResumeTraining must be given to `fit` as a callback. If it was, this version of Keras "
        "keeps its data elsewhere: please report it."
    )


class DataPosition:
    """Counts what `fit` draws from its data, and goes to a place that was counted before.

    Args:
        epochs: Of `find_epochs`, before the first epoch.
    """

    def __init__(self, epochs: Any):
        self._epochs = epochs
        self._make = epochs._get_iterator
        self._made = 0  # iterators of the dataset
        self._drawn = 0  # batches of the newest of them
        self._due = 0  # iterators that must have been made
        self._ahead = 0  # batches to draw from the next one before it is used
        self._catch_up_steps = False
        epochs._get_iterator = self._next_data

    def describe(self) -> dict[str, Any]:
        """What a batch is and how many there are, to compare two runs."""
        return {
            "batch": str(self._epochs._distributed_dataset.element_spec),
            "batches in the data": self._epochs.data_adapter.num_batches,
            "steps_per_epoch": self._epochs.steps_per_epoch,
        }

    def count(self, batches: int) -> None:
        """Notes that batches were drawn."""
        self._drawn += batches

    def begin_batch(self) -> None:
        """To be called before each batch is drawn."""
        if self._catch_up_steps:  # Keras has just set its count of them to zero
            self._catch_up_steps = False
            self._epochs._steps_seen += self._drawn

    def save(self, batch: int) -> dict[str, Any]:
        """Where the data stands, after `batch` batches of an epoch, or 0 between two epochs."""
        goes_on = batch > 0 or (
            self._epochs.steps_per_epoch is not None and self._epochs._current_iterator is not None
        )
        return {
            "iterators": self._made - 1 if goes_on else self._made,
            "drawn": self._drawn - batch if goes_on else 0,
            "all iterators": self._made,
            "num_batches": self._epochs._num_batches,
        }

    def restore(self, position: dict[str, Any]) -> None:
        """Makes the next epoch begin where `save` was called, or its epoch began."""
        self._due = position["iterators"]
        self._ahead = position["drawn"]
        self._epochs._num_batches = position["num_batches"]

    def leave(self, position: dict[str, Any]) -> None:
        """Leaves the data as the finished run did, for a `fit` that may follow."""
        self._due = position["all iterators"]
        self._catch_up()

    def _catch_up(self) -> None:
        while self._made < self._due:
            iter(self._make())
            self._made += 1

    def _next_data(self) -> Any:
        self._catch_up()
        self._made += 1
        self._drawn, self._ahead, ahead = self._ahead, 0, self._ahead
        self._catch_up_steps = ahead > 0
        return _Advanced(self._make(), ahead) if ahead else self._make()


class _Advanced:
    """Data without its first batches, the first time."""

    def __init__(self, data: Any, count: int):
        self._data = data
        self._count = count

    def __iter__(self) -> Iterator:
        iterator = iter(self._data)
        for _ in range(self._count):
            next(iterator)
        return iterator


def check_repeatable(epochs: Any) -> None:
    """Refuses data whose order a new process cannot repeat, and warns of random operations.

    Args:
        epochs: Of `find_epochs`.

    Raises:
        ValueError: If the order of the data changes from process to process.
    """
    adapter = epochs.data_adapter
    if hasattr(adapter, "_shuffle"):  # arrays
        if adapter._shuffle and not _draws_seeds():
            raise ValueError(
                "`fit` shuffles the arrays in an order that a restarted process cannot repeat. "
                "Call `keras.utils.set_random_seed(...)` first thing, or pass `shuffle=False`, or "
                "a `tf.data.Dataset` with `shuffle(..., seed=...)`."
            )
        return
    unrepeatable = set()
    for dataset in _walk(epochs._distributed_dataset):
        if _is_unseeded(dataset):
            raise ValueError(
                "The dataset shuffles without a seed, in an order that a restarted process cannot "
                "repeat. Use `shuffle(..., seed=...)`, or call `keras.utils.set_random_seed(...)` "
                "first thing."
            )
        unrepeatable |= _unrepeatable_operations(dataset)
    if unrepeatable:
        warnings.warn(
            f"The dataset calls {', '.join(sorted(unrepeatable))}. A restarted process goes on "
            "at the same batch, but may get other values from them. For runs that repeat bit for "
            "bit, let the values depend on their input alone, such as "
            "`tf.image.stateless_random_flip_left_right` on seeds from a seeded `tf.data` counter.",
            stacklevel=2,
        )


def _draws_seeds() -> bool:
    """Whether random operations get seeds of their own from a global one."""
    from tensorflow.python.eager import context

    return context.global_seed() is not None


def _walk(data: Any) -> Iterator[Any]:
    """The dataset that is distributed, and all that it is made from."""
    pending = list(getattr(data, "_cloned_datasets", None) or getattr(data, "_datasets", [data]))
    while pending:
        dataset = pending.pop()
        yield dataset
        pending += dataset._inputs()


def _is_unseeded(dataset: Any) -> bool:
    if type(dataset).__name__ != "_ShuffleDataset":
        return False
    return not int(dataset._seed) and not int(dataset._seed2)


def _unrepeatable_operations(dataset: Any) -> set[str]:
    found = set()
    for wrapper in dataset._functions():
        graph = wrapper.function.graph.as_graph_def()
        nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
        found |= {node.op for node in nodes if _UNREPEATABLE.match(node.op)}
    return found
