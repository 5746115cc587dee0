"""Private names of other packages that this package uses: the whole list, and access to them.

Checked with Keras 3.15.1 and TensorFlow 2.21.0, and read in the source of Keras 3.11.0.
`tests/runtime/test_private_names.py` fails when one of the names is gone, and when a module uses a
private name that is not listed.
Modules outside of `keras_vit.runtime` use the functions below, or override a listed method.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras

Tensor = Any  # Keras and TensorFlow have no types


class PrivateName(NamedTuple):
    """A private name of another package.

    Args:
        owner: `"module"` or `"module:Class"` that defines the name; `"module:Class|Other"` where
            the class has another name in another version.
        name: The attribute, method, function or local variable.
        reason: What this package needs it for, which no public name gives.
    """

    owner: str
    name: str
    reason: str


_collector = threading.Lock()  # of the garbage collector's switch
# Keras 3.16 calls them Trainer and BaseTrainer.
_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer|Trainer"
_BASE_TRAINER = "keras.src.trainers.trainer:Trainer|BaseTrainer"
_EPOCH_ITERATOR = "keras.src.trainers.epoch_iterator:EpochIterator"
_TF_EPOCH_ITERATOR = "keras.src.backend.tensorflow.trainer:TFEpochIterator"
_ADAPTERS = "keras.src.trainers.data_adapters"
_OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer"
_TF_OPTIMIZER = "keras.src.backend.tensorflow.optimizer:TFOptimizer"
_DATASET = "tensorflow.python.data.ops.dataset_ops:DatasetV2"
_SHUFFLE = "tensorflow.python.data.ops.shuffle_op:_ShuffleDataset"
_DISTRIBUTED = "tensorflow.python.distribute.input_lib:DistributedDataset"
_FUNCTION_DATASETS = "tensorflow.python.distribute.input_lib:DistributedDatasetsFromFunction"
_ITERATOR = "tensorflow.python.distribute.input_lib:DistributedIterator"
_WORKER_ITERATOR = "tensorflow.python.distribute.input_lib:_SingleWorkerOwnedDatasetIterator"
_DEVICE_ITERATORS = "tensorflow.python.data.ops.multi_device_iterator_ops:OwnedMultiDeviceIterator"

PRIVATE_NAMES = tuple(
    PrivateName(*row)
    for row in (
        # Training under `tf.distribute` (runtime/distributed.py).
        (_TRAINER, "_distribute_strategy", "whether a model was made under a strategy"),
        (_TRAINER, "_make_function", "overridden: the step of one replica is compiled alone"),
        (_TRAINER, "_maybe_symbolic_build", "overridden: builds without drawing a batch"),
        (_BASE_TRAINER, "_symbolic_build", "makes optimizer variables"),
        ("keras.src.ops.function:Function", "_outputs_struct", "what `_symbolic_build` needs"),
        (_BASE_TRAINER, "_compute_loss", "the loss before it is scaled"),
        (_BASE_TRAINER, "_loss_tracker", "weighs the loss by images"),
        (_OPTIMIZER, "_backend_apply_gradients", "replaced per optimizer: no second all-reduce"),
        (_TF_OPTIMIZER, "_all_reduce_sum_gradients", "replaced per optimizer: summed before"),
        (
            "tensorflow.python.distribute.distribute_lib:StrategyExtendedV1",
            "_use_merge_call",
            "replaced per strategy and thread: variables are updated in each replica",
        ),
        (
            "tensorflow.python.distribute.values:PerReplicaSpec",
            "_value_specs",
            "the shape of one replica's share of a batch",
        ),
        # The compiler of inference (runtime/compilers.py).
        ("keras.src.trainers.trainer", "model_supports_jit", "whether XLA can compile a model"),
        # The last block for the tokens that are pooled (runtime/model.py).
        ("keras.src.ops.function:Function", "_run_through_graph", "overridden: a block's argument"),
        # Data in arrays (runtime/array_data.py).
        (f"{_ADAPTERS}.array_data_adapter", "ArrayDataAdapter", "subclassed: without autotuning"),
        (f"{_ADAPTERS}.array_data_adapter", "can_convert_arrays", "what Keras takes for arrays"),
        (f"{_ADAPTERS}.array_slicing", "train_validation_split", "splits before the adapter"),
        # Data of several devices (runtime/array_data.py).
        (_ITERATOR, "_iterators", "the iterators of the workers"),
        (_WORKER_ITERATOR, "_iterator", "the iterator of a worker's devices"),
        (_DEVICE_ITERATORS, "_device_iterators", "replaced per iterator: without autotuning"),
        (_DEVICE_ITERATORS, "_devices", "their devices"),
        ("tensorflow.python.data.ops.iterator_ops:OwnedIterator", "_dataset", "what it reads"),
        # Resuming a run (resume/).
        (f"{_TRAINER}.fit", "epoch_iterator", "the data of the `fit` that is running"),
        (_TRAINER, "_initial_epoch", "the epoch that `fit` starts with"),
        ("sys", "_current_frames", "whether `fit` of another thread is still running"),
        (_EPOCH_ITERATOR, "_get_iterator", "replaced per `fit`: a saved batch, no autotuning"),
        (_EPOCH_ITERATOR, "_current_iterator", "whether an epoch ends within the data"),
        (_EPOCH_ITERATOR, "_num_batches", "batches of the data, once they were counted"),
        (_EPOCH_ITERATOR, "_steps_seen", "steps of the data that were drawn"),
        (_TF_EPOCH_ITERATOR, "_distributed_dataset", "the dataset that `fit` reads"),
        (f"{_ADAPTERS}.array_data_adapter:ArrayDataAdapter", "_shuffle", "whether order is random"),
        ("keras.src.backend.common.global_state", "get_global_attribute", "Keras's generator"),
        ("keras.src.random.seed_generator", "global_seed_generator", "its key there"),
        ("tensorflow.python.eager.context", "global_seed", "whether the global seed is set"),
        (_DATASET, "_inputs", "the datasets that a dataset reads"),
        (_DATASET, "_functions", "the functions that a dataset calls"),
        (_SHUFFLE, "_seed", "whether a shuffle has a seed"),
        (_SHUFFLE, "_seed2", "whether a shuffle has a seed"),
        (_DISTRIBUTED, "_cloned_datasets", "the datasets of the workers"),
        (_FUNCTION_DATASETS, "_datasets", "the datasets of the workers"),
        # Batches of several workers (data/epochs.py).
        (_FUNCTION_DATASETS, "_cardinality", "set: steps of an epoch, not batches of replicas"),
        # Optimizers (train/optimizers.py).
        (_OPTIMIZER, "_use_weight_decay", "overridden: decay of kernels alone"),
        (_OPTIMIZER, "_apply_weight_decay", "overridden: decay with each variable's rate"),
        (_OPTIMIZER, "_get_variable_index", "the index of a variable's rate and moments"),
        ("keras.src.optimizers.adam:Adam", "_momentums", "first moments of AdamW"),
        ("keras.src.optimizers.adam:Adam", "_velocities", "second moments of AdamW"),
        ("keras.src.optimizers.adam:Adam", "_velocity_hats", "largest second moments, of AMSGrad"),
        # The graph of layers (models/graph.py, models/resnet.py, export/inference.py).
        ("keras.src.ops.node", "_keras_history", "the call that made a tensor"),
        ("keras.src.ops.operation:Operation", "_inbound_nodes", "all calls of a layer"),
        ("keras.src.layers.layer:Layer", "_flatten_layers", "layers of nested layers, too"),
        # Low-rank updates (layers/dense.py).
        ("keras.src.layers.layer:Layer", "_tracker", "lets a built layer get a generator"),
        ("keras.src.layers.layer:Layer", "_dtype_policy", "a layer's own policy of a map of many"),
        # Exports: other packages.
        ("tf2onnx.optimizer", "_get_optimizers", "all graph optimizers but two"),
        ("ai_edge_litert.interpreter:Interpreter", "_get_ops_details", "counts operators"),
        ("ai_edge_litert.schema_py_generated", "ModelT", "adds metadata for MediaPipe"),
    )
)


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
    def shuffles_arrays(self) -> bool:
        """Whether the data is arrays that Keras shuffles."""
        return getattr(self.adapter, "_shuffle", False)

    @property
    def holds_arrays(self) -> bool:
        """Whether the data is arrays."""
        return hasattr(self.adapter, "_shuffle")

    def add_steps_seen(self, steps: int) -> None:
        """Tells Keras of steps that were drawn without it."""
        self._keras._steps_seen += steps

    def replace_data(self, change: Callable[[Callable[[], Any]], Callable[[], Any]]) -> None:
        """Replaces the function of this iterator that returns the data of the next epoch."""
        self._keras._get_iterator = change(self._keras._get_iterator)


class DeviceData:
    """A distributed dataset with a change of the datasets that TensorFlow adds for each device.

    Args:
        data: The distributed dataset.
        change: From a dataset to one with the same elements.
    """

    def __init__(self, data: Any, change: Callable[[Any], Any]):
        self._data = data
        self._change = change

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

        iterator = iter(self._data)
        for worker in getattr(iterator, "_iterators", ()):
            devices = worker._iterator
            parts = getattr(devices, "_device_iterators", [])  # of which nothing was read yet
            for index, part in enumerate(parts):
                with tf.device(devices._devices[index]):
                    parts[index] = iter(self._change(part._dataset))
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
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
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
    """Maps every layer of a functional model to its calls in the graph of this model."""
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
    return found


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
