"""Access to private names of other packages.

`tests/runtime/test_private_names.py` lists all of them, with reasons: it fails when one is gone,
and when a module uses a private name that is not listed.
Modules outside of `keras_vit.runtime` use the functions below, or override a listed method.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

Tensor = Any  # Keras and TensorFlow have no types

_collector = threading.Lock()  # of the garbage collector's switch


class EpochIterator:
    """The data of a running `fit`: the parts of Keras's epoch iterator that resuming needs.

    Args:
        keras_iterator: Keras's `TFEpochIterator`.
    """

    def __init__(self, keras_iterator: Any):
        self._keras = keras_iterator
        self.adapter = keras_iterator.data_adapter
        self.dataset = keras_iterator._distributed_dataset
        self.steps_per_epoch: int | None = keras_iterator.steps_per_epoch

    @classmethod
    def of_running_fit(cls) -> EpochIterator:
        """Finds the data of the `fit` that is running, from within one of its callbacks."""
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals:
                return cls(frame.f_locals["epoch_iterator"])
            frame = frame.f_back
        raise RuntimeError(
            "ResumeTraining must be given to `fit` as a callback. If it was, this version of Keras "
            f"({keras.__version__}) is not supported: please report it."
        )

    @property
    def is_within_data(self) -> bool:
        """Whether the next epoch reads on in the data of this one: with `steps_per_epoch`."""
        return self.steps_per_epoch is not None and self._keras._current_iterator is not None

    @property
    def num_batches(self) -> int | None:
        """Batches of the data, if they are known."""
        return self._keras._num_batches

    @num_batches.setter
    def num_batches(self, count: int | None) -> None:
        self._keras._num_batches = count

    @property
    def shuffles_arrays(self) -> bool | None:
        """Whether Keras shuffles the data, if it is arrays; `None` for other data."""
        return getattr(self.adapter, "_shuffle", None)

    def add_steps_seen(self, steps: int) -> None:
        """Tells Keras of steps that were drawn without it."""
        self._keras._steps_seen += steps

    def replace_data(self, change: Callable[[Callable[[], Any]], Callable[[], Any]]) -> None:
        """Replaces the function of this iterator that returns the data of the next epoch."""
        self._keras._get_iterator = change(self._keras._get_iterator)


@dataclasses.dataclass(eq=False)
class DeviceData:
    """A distributed dataset with a change of the datasets that TensorFlow adds for each device.

    Args:
        data: The distributed dataset.
        change: From a dataset to one with the same elements.
    """

    data: Any
    change: Callable[[Any], Any]

    @classmethod
    def use_in(cls, keras_iterator: Any, change: Callable[[Any], Any]) -> None:
        """Changes the data of every epoch of Keras's `TFEpochIterator`, once."""
        if "_get_iterator" not in vars(keras_iterator):
            make = keras_iterator._get_iterator
            keras_iterator._get_iterator = lambda: cls(make(), change)

    @classmethod
    def of(cls, data: Any, change: Callable[[Any], Any]) -> Any:
        """Returns the changed data in a class derived from its own, by which Keras knows it."""
        base: Any = type(data)
        made: Any = object.__new__(_class_of_changed(base))
        vars(made).update(vars(data), changed=cls(data, change))
        return made

    def __iter__(self) -> Iterator[Any]:
        import tensorflow as tf

        iterator = iter(self.data)
        for worker in getattr(iterator, "_iterators", ()):
            devices = worker._iterator
            parts = getattr(devices, "_device_iterators", [])  # of which nothing was read yet
            for index, part in enumerate(parts):
                with tf.device(devices._devices[index]):
                    parts[index] = iter(self.change(part._dataset))
        return iterator


@functools.cache
def _class_of_changed(base: type) -> type:
    return type(base.__name__, (base,), {"__iter__": lambda self: iter(self.changed)})


def supports_xla(model: keras.Model) -> bool:
    """Tells whether Keras would compile a model with XLA if it was asked to."""
    from keras.src.trainers.trainer import model_supports_jit

    return model_supports_jit(model)


def array_adapter_class() -> Any:
    """Returns Keras's adapter of arrays, a class to derive from."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    return ArrayDataAdapter


def can_convert_arrays(data: tuple[Any, Any, Any]) -> bool:
    """Tells whether Keras reads `(x, y, sample_weight)` as arrays."""
    from keras.src.trainers.data_adapters import array_data_adapter

    return array_data_adapter.can_convert_arrays(data)


def train_validation_split(
    data: tuple[Any, Any, Any], validation_split: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Splits `(x, y, sample_weight)` as `fit` does with `validation_split`."""
    from keras.src.trainers.data_adapters import array_slicing

    return array_slicing.train_validation_split(data, validation_split=validation_split)


def frames_of_other_threads() -> list[types.FrameType]:
    """Returns the innermost frame of every thread of Python but this one.

    Before 3.11.9 Python holds a lock here which freeing a graph of TensorFlow needs: garbage
    collected at that moment stops the process for ever (python/cpython#106883).
    """
    with _collector:  # or two threads could leave it off
        collects = gc.isenabled()
        gc.disable()
        try:
            frames = sys._current_frames()
        finally:
            if collects:
                gc.enable()
    return [frame for thread, frame in frames.items() if thread != threading.get_ident()]


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Sets the epoch that the next `fit` starts with; `None` leaves it to the argument."""
    model._initial_epoch = epoch


def build_training_variables(model: keras.Model, batch: Any) -> None:
    """Creates the variables of optimizer and metrics, from the description of a batch."""
    model._symbolic_build(data_batch=batch)


def global_seed_generator() -> keras.random.SeedGenerator | None:
    """Returns the generator of all random layers and operations without one of their own."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("global_seed_generator")


def global_seed() -> int | None:
    """Returns the seed of `tf.random.set_seed`."""
    from tensorflow.python.eager import context

    return context.global_seed()


def worker_datasets(data: Any) -> list[Any]:
    """Returns the datasets of a distributed dataset, or the dataset itself."""
    return list(getattr(data, "_cloned_datasets", None) or getattr(data, "_datasets", [data]))


def dataset_inputs(dataset: Any) -> Iterable[Any]:
    """Returns the datasets that a dataset reads."""
    return dataset._inputs()


def dataset_functions(dataset: Any) -> Iterable[Any]:
    """Returns the functions that a dataset calls for its elements."""
    return dataset._functions()


def shuffles_without_seed(dataset: Any) -> bool:
    """Tells whether a dataset is a shuffle whose order nothing determines."""
    if type(dataset).__name__ != "_ShuffleDataset":
        return False
    return not int(dataset._seed) and not int(dataset._seed2)


def set_cardinality(distributed: Any, steps: int) -> None:
    """Sets the steps of an epoch of a distributed dataset."""
    distributed._cardinality = steps


def call_of(tensor: Tensor) -> tuple[Any, Any]:
    """Returns the operation that made a symbolic tensor, and the node of that call."""
    operation, node_index, _ = tensor._keras_history
    return operation, operation._inbound_nodes[node_index]


def every_call_of(model: keras.Model) -> dict[keras.Operation, list[Any]]:
    """Maps every layer of a functional model to its calls in the graph of this model, in order."""
    if not getattr(model, "outputs", None):
        raise ValueError(
            f"The model {model.name!r} has no graph of layers: it must be a functional model, or a "
            "sequential model that was built. Pass the functional model inside it."
        )
    found: dict[keras.Operation, list[Any]] = {}
    tensors = list(model.outputs)
    while tensors:
        operation, call = call_of(tensors.pop())
        calls = found.setdefault(operation, [])
        if call not in calls:
            calls.append(call)
            tensors.extend(call.input_tensors)
    return {x: sorted(calls, key=x._inbound_nodes.index) for x, calls in found.items()}


def run_graph(
    model: keras.Model,
    inputs: Iterable[Tensor],
    outputs: Iterable[Tensor],
    function_of: Callable[[Any], Callable[..., Any]],
) -> dict[int, Tensor]:
    """Calls the layers of a functional model, each once, as far as some tensors need them.

    Args:
        model: The model.
        inputs: Symbolic tensors or values in place of its inputs.
        outputs: Symbolic tensors of its graph.
        function_of: From a call of a layer to the function that is called in its place.

    Returns:
        The new tensors, by the identity of those of the graph.
    """
    known = {id(x): y for x, y in zip(model.inputs, inputs, strict=True)}
    waiting = list(outputs)
    while waiting:
        _, call = call_of(waiting[-1])
        missing = [x for x in call.input_tensors if id(x) not in known]
        waiting.extend(missing)
        if not missing and id(waiting.pop()) not in known:
            args, kwargs = call.arguments.fill_in(known)
            results = keras.tree.flatten(function_of(call)(*args, **kwargs))
            known.update((id(x), y) for x, y in zip(call.outputs, results, strict=True))
    return known


def flatten_layers(model: keras.Model) -> Iterable[keras.layers.Layer]:
    """Returns the model, its layers, and the layers inside of them."""
    return model._flatten_layers()


def replace_policy(layer: keras.layers.Layer, policy: Any) -> None:
    """Gives a layer a policy without changing the map that it came from, as the property does."""
    layer._dtype_policy = policy


@contextlib.contextmanager
def unlocked(layer: keras.layers.Layer) -> Iterator[None]:
    """Lets a built layer get variables, as Keras's own `enable_lora` does."""
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()


def tf2onnx_optimizers() -> dict[str, Callable[[], Any]]:
    """Returns the graph optimizers of tf2onnx by name."""
    from tf2onnx import optimizer

    return optimizer._get_optimizers()


def litert_operators(interpreter: Any) -> list[dict[str, Any]]:
    """Returns all operators of a LiteRT file, in order: index, name, inputs, outputs.

    Once tensors are allocated, operators of delegates follow, which compute several of them.
    """
    return interpreter._get_ops_details()


def litert_schema() -> Any:
    """Returns the tables of LiteRT files, as classes."""
    return importlib.import_module("ai_edge_litert.schema_py_generated")
