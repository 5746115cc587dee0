"""Averages of the weights of several trained models (https://arxiv.org/abs/2203.05482)."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.train.keras_files import load_keras_file


class Soup(NamedTuple):
    """An average of models.

    Args:
        model: The model, not compiled.
        files: The files that it is the average of.
        scores: Score of the average after each of them was added; empty for `average_models`.
    """

    model: keras.Model
    files: tuple[pathlib.Path, ...]
    scores: tuple[float, ...]


def average_models(files: Sequence[str | os.PathLike[str]]) -> Soup:
    """Averages the weights of models that were fine-tuned from the same weights.

    Recipe "uniform soup" of https://arxiv.org/abs/2203.05482. States of random generators are those
    of the first model.

    Args:
        files: `.keras` files of models with the same weights by name and shape.

    Returns:
        A `Soup`.

    Raises:
        ValueError: If there is no file, or the weights of two differ in names, shapes or types.
        CheckpointError: If a file is damaged.
    """
    paths = _paths(files)
    model, values = _read(paths[0])
    total = [np.asarray(value, "float64") for value in values]
    for path in paths[1:]:
        for sum_, value in zip(total, _read_like(path, model), strict=True):
            sum_ += value
    _assign(model, [value / len(paths) for value in total])
    return Soup(model, paths, ())


def select_models(
    files: Sequence[str | os.PathLike[str]], score: Callable[[keras.Model], float]
) -> Soup:
    """Averages those models that do not make the average worse.

    Recipe "greedy soup", Algorithm 1 of https://arxiv.org/abs/2203.05482: from the best model on,
    each is added unless the score of the average falls. Measure the score on images that none of
    the models was trained or chosen on, and report the accuracy on others again.

    Args:
        files: As for `average_models`.
        score: From a model to a number, higher is better, such as the accuracy on held-out images.

    Returns:
        A `Soup`, whose files are in the order in which they were added.

    Raises:
        ValueError: As `average_models`, or if a score is not finite.
        CheckpointError: If a file is damaged.

    Example:

    >>> def accuracy(model):
    ...     model.compile(metrics=["accuracy"])
    ...     return model.evaluate(held_out, verbose=0, return_dict=True)["accuracy"]
    >>> soup = keras_vit.train.select_models(files, accuracy)  # doctest: +SKIP
    """
    paths = _paths(files)
    model, first = _read(paths[0])
    alone = {}
    for path in paths:
        _assign(model, first if path == paths[0] else _read_like(path, model))
        alone[path] = _checked(score(model), path)
    ordered = sorted(paths, key=lambda path: -alone[path])
    total = [np.asarray(value, "float64") for value in _read_like(ordered[0], model)]
    chosen, scores = [ordered[0]], [alone[ordered[0]]]
    for path in ordered[1:]:
        tried = [a + b for a, b in zip(total, _read_like(path, model), strict=True)]
        _assign(model, [value / (len(chosen) + 1) for value in tried])
        result = _checked(score(model), path)
        if result >= scores[-1]:
            total = tried
            chosen.append(path)
            scores.append(result)
    _assign(model, [value / len(chosen) for value in total])
    return Soup(model, tuple(chosen), tuple(scores))


def _paths(files: Sequence[str | os.PathLike[str]]) -> tuple[pathlib.Path, ...]:
    paths = tuple(pathlib.Path(file) for file in files)
    if not paths or len(set(paths)) < len(paths):
        raise ValueError(
            "`files` must name one or more `.keras` files, each once. Received: "
            f"{', '.join(map(str, paths)) or 'none'}."
        )
    return paths


def _variables(model: keras.Model) -> list[keras.Variable]:
    return [variable for variable in model.variables if "float" in str(variable.dtype)]


def _read(path: pathlib.Path) -> tuple[keras.Model, list[np.ndarray]]:
    model = load_keras_file(path)
    quantized = [v.path for v in model.variables if str(v.dtype) == "int8"]
    if quantized:
        raise ValueError(f"{path} is quantised ({quantized[0]}), and only floats have an average.")
    model.compiled = False  # its optimizer belongs to one of the models
    return model, [keras.ops.convert_to_numpy(variable) for variable in _variables(model)]


def _read_like(path: pathlib.Path, model: keras.Model) -> list[np.ndarray]:
    other, values = _read(path)
    ours, theirs = ({v.path: tuple(v.shape) for v in _variables(x)} for x in (model, other))
    if ours != theirs:
        differing = sorted(ours.items() ^ theirs.items())
        raise ValueError(
            f"The models have different weights, so they have no average: {path} differs in "
            f"{differing[0][0]} and {len(differing) - 1} more. Give models that were fine-tuned "
            "from the same one."
        )
    return values


def _assign(model: keras.Model, values: list[np.ndarray]) -> None:
    for variable, value in zip(_variables(model), values, strict=True):
        variable.assign(value.astype("float32"))


def _checked(value: float, path: pathlib.Path) -> float:
    value = float(value)
    if not np.isfinite(value):
        raise ValueError(f"`score` must return a finite number. Received: {value} with {path}.")
    return value
