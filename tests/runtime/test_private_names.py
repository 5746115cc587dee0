"""Private names of other packages: all are listed, and all still exist.

Checked with Keras 3.15.1 and TensorFlow 2.21.0, and read in the source of Keras 3.11.0.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import pathlib
import re
import sys
from typing import NamedTuple

import keras
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.runtime.private_names import frames_of_other_threads


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
        ("keras.src.ops.symbolic_arguments:SymbolicArguments", "fill_in", "arguments of a call"),
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

PACKAGE = pathlib.Path(keras_vit.__file__).parent
HOME = PACKAGE / "runtime/private_names.py"
LISTED = {row.name for row in PRIVATE_NAMES}
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
PRIVATE = re.compile(r"_[a-zA-Z]\w*")


def attribute(owner, names):
    """The attribute of the first of the names, separated by `|`, that is there."""
    *others, last = names.split("|")
    found = (name for name in others if hasattr(owner, name))
    return getattr(owner, next(found, last))


def is_there(row: PrivateName) -> bool:
    """Whether the owner, or a class that it derives from, defines or assigns the name."""
    module, _, path = row.owner.partition(":")
    parts = path.split(".") if path else ()
    owner = functools.reduce(attribute, parts, importlib.import_module(module))
    if hasattr(owner, row.name):
        return True
    owners = inspect.getmro(owner) if isinstance(owner, type) else [inspect.unwrap(owner)]
    sources = (inspect.getsource(each) for each in owners if each is not object)
    return any(re.search(rf"\b{row.name}\b", source) for source in sources)


@pytest.mark.parametrize("row", PRIVATE_NAMES, ids=lambda row: f"{row.owner}-{row.name}")
def test_the_name_still_exists(row):
    package = row.owner.split(".")[0]
    if package not in ("keras", "tensorflow"):
        pytest.importorskip(package)
    versions = f"Keras {keras.__version__}, TensorFlow {tf.__version__}"
    message = f"{row.name} of {row.owner} is gone in {versions}. It is used for: {row.reason}."
    try:
        found = is_there(row)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{message} ({error})")
    assert found, message


def test_a_name_that_is_gone_is_noticed():
    assert not is_there(PrivateName("keras.src.ops.node", "_no_such_name", ""))
    assert not is_there(PrivateName("keras.src.layers.layer:Layer", "_no_such_name", ""))


def test_every_listed_name_is_used_and_listed_once():
    rows = [(row.owner, row.name) for row in PRIVATE_NAMES]
    assert len(rows) == len(set(rows))
    source = "".join(path.read_text() for path in TREES)
    assert [name for name in LISTED if name not in source] == []


def own_names() -> set[str]:
    """Private names that this package itself defines or assigns on `self`, or on the module."""
    names = {"_asdict", "_replace"}  # methods of every NamedTuple, which Python documents
    for _, node in nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def nodes():
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            yield path, node


def private_accesses():
    """(path, line, name) of each `value._name`, and of each name in `getattr(value, "_name")`."""
    for path, node in nodes():
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            yield path, node.lineno, node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            name = getattr(node.args[1], "value", None)
            if isinstance(name, str) and PRIVATE.fullmatch(name):
                yield path, node.lineno, name


def test_only_listed_names_are_used():
    """Names that are not this package's own are listed; those that are listed stay in runtime."""
    ours = own_names() - LISTED
    optimizers = (":BaseOptimizer", ":Adam")  # the optimizers of train/ derive from them
    overridable = {row.name for row in PRIVATE_NAMES if row.owner.endswith(optimizers)}
    for path, line, name in private_accesses():
        assert name in ours or name in LISTED, f"{path}:{line}: {name} is not in PRIVATE_NAMES"
        allowed = path.parent == HOME.parent or (
            path.parent.name == "train" and name in overridable
        )
        assert name in ours or allowed, f"{path}:{line}: use a function of {HOME.name} for {name}"


def test_private_modules_are_imported_in_one_place():
    for path, node in nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        private = [n for n in names if n.startswith(("keras.src", "tensorflow.python"))]
        assert not private or path == HOME, f"{path}:{node.lineno}: {private}"


def own_classes():
    for path in TREES:
        name = ".".join(("keras_vit", *path.relative_to(PACKAGE).with_suffix("").parts))
        if path.name in ("__init__.py", "__main__.py", "plots.py"):  # plots need matplotlib
            continue
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, type) and value.__module__ == name:
                yield value


def test_methods_of_bases_are_overridden_knowingly():
    """A private method of ours with the name of one of Keras's would replace it by accident."""
    replaced = {
        f"{kind.__name__}.{name}"
        for kind in own_classes()
        for base in kind.__mro__
        if base.__module__.startswith(("keras.", "tensorflow."))
        for name in vars(kind)
        if PRIVATE.fullmatch(name) and name in vars(base) and not name.startswith("_abc")
    }
    unlisted = {name for name in replaced if name.rpartition(".")[2] not in LISTED}
    assert unlisted == set()


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_python_lists_frames(collects, monkeypatch):
    """Freeing a graph of TensorFlow at that moment stops the process for ever."""
    inside = []
    current_frames = sys._current_frames
    monkeypatch.setattr(
        sys, "_current_frames", lambda: inside.append(gc.isenabled()) or current_frames()
    )
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        assert isinstance(frames_of_other_threads(), list)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
    assert inside == [False]
