"""Copies of models with changed layers, such as float kernels or merged updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_vit.runtime.private_names import flatten_layers


def clone(
    model: keras.Model,
    config: dict[str, Any],
    values: Callable[[keras.layers.Layer], Mapping[str, Any]],
) -> keras.Model:
    """Copies a model with another configuration, and other values of some layers.

    Args:
        model: The model, which stays as it is.
        config: Its configuration, changed by `change_config`.
        values: New values for the variables of a layer, without those of the layers inside of it,
            by name; empty copies all. The copy of a layer with new values may have less variables.

    Returns:
        A model of the same class, not compiled.
    """
    copy = type(model).from_config(config)
    for theirs, ours in zip(flatten_layers(model), flatten_layers(copy), strict=True):
        old, new, changed = _own_variables(theirs), _own_variables(ours), values(theirs)
        if changed:
            known = {**{variable.name: variable for variable in old}, **changed}
            old = [known[variable.name] for variable in new]
        for variable, value in zip(new, old, strict=True):
            variable.assign(ops.cast(value, variable.dtype))
    return copy


def change_config(config: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Applies a function to each dict of a nested configuration, the inner ones first."""
    if isinstance(config, list | tuple):
        values = [change_config(value, change) for value in config]
        return tuple(values) if isinstance(config, tuple) else values
    if isinstance(config, dict):
        return change({key: change_config(value, change) for key, value in config.items()})
    return config


def _own_variables(layer: keras.layers.Layer) -> list[Any]:
    """The variables of a layer without those of the layers inside of it."""
    inner = {id(v) for x in flatten_layers(layer) if x is not layer for v in x.variables}
    return [v for v in layer.variables if id(v) not in inner]
