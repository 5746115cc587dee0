"""The variables that training changes: found, read, assigned and compared."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.errors import StateMismatchError, listed
from keras_vit.runtime.distributed import is_distributed
from keras_vit.runtime.private_names import build_training_variables, global_seed_generator


def build_everything(model: keras.Model, spec: Any) -> None:
    """Creates the variables of optimizer and metrics, which Keras creates in the first step.

    Args:
        model: A compiled model.
        spec: Shapes and types of a batch, as of a `tf.data.Dataset`.
    """
    if not is_distributed(model):  # with a strategy, `fit` has done so
        build_training_variables(model, spec)


def find_variables(model: keras.Model) -> dict[str, list[Any]]:
    """Finds the variables of a model that training changes, in groups.

    Args:
        model: A compiled model, built with `build_everything`.

    Returns:
        The groups `"model"` (weights, and states of random generators), `"optimizer"` (with
        averages, loss scale and accumulated gradients), `"metrics"`, and `"random"` (Keras's own
        generator, if it is used).
    """
    generator = global_seed_generator()
    groups = {
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
        "random": [] if generator is None else [generator.state],
    }
    visited: set[int] = set()
    unique: dict[str, list[Any]] = {}
    for group, variables in groups.items():
        unique[group] = [v for v in variables if id(v) not in visited]
        visited.update(map(id, variables))
    return unique


def describe_variables(model: keras.Model, groups: dict[str, list[Any]]) -> list[list[Any]]:
    """Describes each variable as `[group, path, shape, dtype]`, in order, for JSON."""
    numbered = _numbered_names(model.optimizer)
    return [
        [group, _stable_path(group, v.path, numbered), list(v.shape), _dtype(v)]
        for _, group, v in _numbered(groups)
    ]


def _numbered_names(optimizer: keras.optimizers.Optimizer) -> dict[str, str]:
    """Maps the name that Keras gives to an optimizer, such as `adam_w_2`, to its class."""
    every = [optimizer, getattr(optimizer, "inner_optimizer", optimizer)]
    return {one.name: type(one).__name__ for one in every}


def _stable_path(group: str, path: str, names: dict[str, str]) -> str:
    """Removes from a path the numbers that Keras counts per process."""
    if group in ("metrics", "random"):
        return re.sub(r"_\d+(?=/)", "", path)
    parts = [names.get(part, part) for part in path.split("/")]
    return re.sub(r"(seed_generator)_\d+", r"\1", "/".join(parts))


def read_arrays(
    model: keras.Model, groups: dict[str, list[Any]], own_only: bool
) -> dict[str, np.ndarray]:
    """Reads the values of variables in this process.

    Args:
        model: The model, for its strategy.
        groups: The result of `find_variables`.
        own_only: Whether to leave out variables that are the same in all workers.

    Returns:
        Arrays by number of the variable; `"7.1"` is the value in the second replica of this
        process, if its replicas differ.
    """
    arrays = {}
    for number, group, variable in _numbered(groups):
        if own_only and not _differs_by_worker(group, variable):
            continue
        copies = [copy.numpy() for copy in _copies(model, variable)]
        same = all(copy.tobytes() == copies[0].tobytes() for copy in copies)
        for replica, copy in enumerate(copies[:1] if same else copies):
            arrays[f"{number}.{replica}"] = copy
    return arrays


def assign_arrays(
    model: keras.Model, groups: dict[str, list[Any]], arrays: dict[str, np.ndarray]
) -> None:
    """Assigns the arrays of `read_arrays`, bit for bit."""
    for number, _, variable in _numbered(groups):
        first = arrays[f"{number}.0"]
        for replica, copy in enumerate(_copies(model, variable)):
            copy.assign(arrays.get(f"{number}.{replica}", first))


def find_not_finite(groups: dict[str, list[Any]], arrays: dict[str, np.ndarray]) -> list[str]:
    """Lists paths of weights with NaN or infinity, and of optimizer variables with NaN."""
    bad = []
    for number, group, variable in _numbered(groups):
        for name in (name for name in arrays if name.startswith(f"{number}.")):
            if group not in ("model", "optimizer") or "float" not in _dtype(variable):
                continue
            values = arrays[name].astype("float32", copy=False)
            wrong = np.isnan(values) if group == "optimizer" else ~np.isfinite(values)
            if wrong.any():
                bad.append(variable.path)
    return bad


def compare(saved: dict[str, Any], present: dict[str, Any], path: pathlib.Path) -> None:
    """Compares a saved state with the model that is to continue from it.

    Args:
        saved: `"variables"` of `describe_variables`, and `"setup"`, a dict, as saved.
        present: The same for the present model.
        path: The file, for the message.

    Raises:
        StateMismatchError: If model, optimizer or set-up differ.
    """
    problems = [
        f"{name} was {saved['setup'].get(name)}, is {value}"
        for name, value in present["setup"].items()
        if saved["setup"].get(name) != value
    ]
    if not _are_alike(saved["variables"], present["variables"]):
        problems += _differences(saved["variables"], present["variables"])
    if problems:
        raise StateMismatchError(
            f"The training state in {path} belongs to another run; nothing was changed. "
            f"{listed(problems, separator='; ')}. Use the model, the compile arguments and "
            "the data that it was saved with, or another folder."
        )


def _are_alike(saved: list[list[Any]], present: list[list[Any]]) -> bool:
    """Tells whether variables agree in order, apart from the numbers in the names of layers."""

    def plain(entries: list[list[Any]]) -> list[list[Any]]:
        return [[g, re.sub(r"_\d+", "", path), *rest] for g, path, *rest in entries]

    return plain(saved) == plain(present)


def _differences(saved: list[list[Any]], present: list[list[Any]]) -> list[str]:
    old = {(group, path): rest for group, path, *rest in saved}
    new = {(group, path): rest for group, path, *rest in present}
    problems = [f"{' '.join(key)} is not in the model" for key in old if key not in new]
    problems += [f"{' '.join(key)} is not in the state" for key in new if key not in old]
    problems += [
        f"{' '.join(key)} was {rest[0]} {rest[1]}, is {new[key][0]} {new[key][1]}"
        for key, rest in old.items()
        if key in new and new[key] != rest
    ]
    return problems or ["the variables are in another order"]


def _numbered(groups: dict[str, list[Any]]) -> Iterator[tuple[int, str, Any]]:
    pairs = [(group, variable) for group, variables in groups.items() for variable in variables]
    return ((number, *pair) for number, pair in enumerate(pairs))


def _copies(model: keras.Model, variable: keras.Variable) -> tuple[Any, ...]:
    """Returns the TensorFlow variables of this process, at most one per replica."""
    return model.distribute_strategy.experimental_local_results(variable.value)


def _differs_by_worker(group: str, variable: keras.Variable) -> bool:
    import tensorflow as tf

    if group != "model":
        return group in ("metrics", "random")
    is_local = variable.value.synchronization == tf.VariableSynchronization.ON_READ
    return is_local or variable.value.aggregation == tf.VariableAggregation.NONE


def _dtype(variable: keras.Variable) -> str:
    return keras.backend.standardize_dtype(variable.dtype)
