"""Low-rank updates in the files of PEFT, for models of timm and transformers."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.checks import check_choice
from keras_vit.config import field_value
from keras_vit.errors import CheckpointError, listed
from keras_vit.families.rules import Layout, Rule
from keras_vit.files import write_atomically, write_text
from keras_vit.layers.dense import Dense
from keras_vit.models.lora import Plan, apply_plans, dense_layers, lora_layers
from keras_vit.reading import read_json
from keras_vit.weights.formats import open_file
from keras_vit.weights.layout_search import in_memory_name, published_name
from keras_vit.weights.matching import config_of
from keras_vit.weights.save import Sized, find_layout, write_safetensors

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
_PROJECTS = ("transformers", "timm")
# Settings of PEFT that change what is computed, each with the values that compute a plain update.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    **dict.fromkeys(
        ("use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora"), (False, None)
    ),
    # Others, such as "pissa", subtract the update at the start from the weights of the model.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(("layer_replication", "target_parameters", "alora_invocation_tokens"), (None,)),
}


class _Update(NamedTuple):
    """The update of a layer, or of one of its parts: `A`, `B` and how often it counts."""

    a: np.ndarray  # (inputs, rank)
    b: np.ndarray  # (rank, units)
    scale: float


def save_adapter(
    model: keras.Model, folder: str | os.PathLike[str], layout: str = "transformers"
) -> pathlib.Path:
    """Writes the low-rank updates and the trained layers of a model as PEFT does.

    `peft.PeftModel.from_pretrained` reads the folder for the same model of timm or transformers.

    Args:
        model: A model of this package that `keras_vit.models.add_lora` changed.
        folder: Where to write `adapter_model.safetensors` and `adapter_config.json`.
        layout: Names of `"transformers"` (as in its version 5) or `"timm"`.

    Returns:
        The folder.

    Raises:
        ValueError: If the model has no updates, or the project has no such model or layer.
    """
    check_choice("layout", layout, _PROJECTS)
    layers = lora_layers(model)
    if not layers:
        raise ValueError(
            f"{model.name!r} has no low-rank updates. `keras_vit.models.add_lora` adds them."
        )
    chosen = find_layout(config_of(model), layout)
    _check_known(model, chosen)
    arrays: dict[str, np.ndarray] = {}
    alphas: dict[str, float] = {}
    for layer in layers:
        orders = _unit_orders(layer, chosen, config_of(model))
        if not orders:
            raise ValueError(f"{layout} has no layer for {layer.path}.")
        for key, update in _split(layer, orders).items():
            module = _file_name(model, chosen, key).removesuffix(".weight")
            arrays[f"{module}.lora_A.weight"] = update.a.T
            arrays[f"{module}.lora_B.weight"] = update.b.T
            alphas[module] = update.scale * update.a.shape[1]
    ranks = {module: len(arrays[f"{module}.lora_A.weight"]) for module in alphas}
    whole = _trained_layers(model, chosen)
    arrays.update(whole)
    module, *_ = ranks
    config = {
        "peft_type": "LORA",
        "bias": "none",
        "fan_in_fan_out": False,
        "r": ranks[module],
        "lora_alpha": alphas[module],
        "rank_pattern": {name: rank for name, rank in ranks.items() if rank != ranks[module]},
        "alpha_pattern": {name: a for name, a in alphas.items() if a != alphas[module]},
        "use_rslora": False,
        "lora_dropout": layers[0].lora_dropout_rate,
        "target_modules": list(ranks),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in whole}) or None,
        "base_model_name_or_path": None,
        "task_type": None,
        "inference_mode": True,
    }
    folder = pathlib.Path(folder)
    sized: dict[str, Sized] = {
        f"{_PREFIX}{name}": (array.shape, functools.partial(np.asarray, array))
        for name, array in arrays.items()
    }
    with write_atomically(folder / _WEIGHTS, replace=True) as path, open(path, "wb") as stream:
        write_safetensors(stream, sized)
    write_text(folder / _CONFIG, json.dumps(config, indent=2))
    return folder


def load_adapter(model: keras.Model, folder: str | os.PathLike[str]) -> keras.Model:
    """Adds the low-rank updates in a folder of PEFT to a model, and reads its trained layers.

    Args:
        model: A model of this package with the weights that the updates were trained on, and with
            as many classes. It is changed as by `keras_vit.models.add_lora`.
        folder: A folder with `adapter_model.safetensors` and `adapter_config.json`.

    Returns:
        The model.

    Raises:
        CheckpointError: If a file is missing or damaged, computes something else than a low-rank
            update, or does not fit the model, which then is as before.
    """
    folder = pathlib.Path(folder)
    settings = _read_settings(folder / _CONFIG)
    arrays, problems = _read_arrays(folder / _WEIGHTS)
    updates = _read_updates(model, arrays, settings, problems)
    values = _read_layers(model, arrays, problems)
    problems += [f"{name} is in no such model" for name in arrays]
    if not updates and not problems:
        problems.append("there is no low-rank update in it")
    if problems:
        raise CheckpointError(
            f"{folder} does not fit {model.name!r}: {listed(problems, 5, '; ')}. Load it into the "
            "model that it was trained on, with the same number of classes."
        )
    plans = [_plan(layer, parts) for layer, parts in updates.items()]
    trained = sorted({path.split("/")[0] for path in values})
    apply_plans(model, plans, float(settings.get("lora_dropout") or 0), trained)
    for plan in plans:
        _fill(plan, updates[plan.layer])
    for variable in model.variables:
        if variable.path in values:
            variable.assign(values[variable.path])
    return model


def _check_known(model: keras.Model, layout: Layout) -> None:
    """Raises a `ValueError` if a project has no array for a variable of a model."""
    own = ("lora_kernel", "seed_generator")
    variables = [v for v in model.variables if not any(name in v.path for name in own)]
    unknown = [v for v in variables if layout.find(v.path, config_of(model)) is None]
    lost = [v.path for v in unknown if np.any(keras.ops.convert_to_numpy(v.value))]
    if lost:
        raise ValueError(
            f"Files of {layout.name} have no arrays for {', '.join(lost[:5])}, which would be "
            "lost. Pass the other `layout`, or save the model itself: `model.save`."
        )


def _unit_orders(layer: Dense, layout: Layout, config: Any) -> dict[str, np.ndarray]:
    """The units of a layer in the order of each array that a project has in its place.

    A gated MLP is one product here, and two arrays in some files, the gate first or second.
    """
    found = layout.find(f"{layer.path}/kernel", config)
    if found is None:
        return {}
    rule, keys = found
    shape = (layer.frozen_kernel.shape[0], layer.units)
    heads = field_value(config, "num_heads", 1)
    units = rule.to_file(np.broadcast_to(np.arange(shape[1], dtype="float32"), shape), heads)
    rows = np.broadcast_to(np.arange(shape[0], dtype="float32")[:, None], shape)
    inputs = rule.to_file(rows, heads)
    plain = all(x.ndim == 2 and (x == np.arange(shape[0])).all() for x in inputs)
    if not plain or len(units) != len(keys):
        raise CheckpointError(f"{layer.path} has its inputs in another order in such files.")
    return {key: np.asarray(x)[:, 0].astype(int) for key, x in zip(keys, units, strict=True)}


def _split(layer: Dense, orders: dict[str, np.ndarray]) -> dict[str, _Update]:
    """The update of a layer as updates of the arrays that a project has in its place."""
    keys = list(orders)
    matrices = (layer.lora_kernel_a, layer.lora_kernel_b)
    a, b = (keras.ops.convert_to_numpy(matrix) for matrix in matrices)
    mask = layer.lora_mask()
    b = b if mask is None else b * mask
    if len(keys) == 1:
        return {keys[0]: _Update(a, b[:, orders[keys[0]]], layer.lora_scale)}
    parts = layer.lora_parts or (True,) * len(keys)
    rank = layer.lora_rank // sum(parts) if layer.lora_parts else layer.lora_rank
    updates = {}
    for row, part in enumerate(np.flatnonzero(parts)):
        rows = slice(row * rank, (row + 1) * rank) if layer.lora_parts else slice(None)
        columns, share = a[:, rows], b[rows][:, orders[keys[part]]]
        used = columns.any(0) | share.any(1)  # a part of a lower rank ends with zeros
        updates[keys[part]] = _Update(columns[:, used], share[used], layer.lora_scale)
    return updates


def _plan(layer: Dense, parts: dict[int | None, _Update]) -> Plan:
    first = next(iter(parts.values()))
    count = layer.units // first.b.shape[1]
    chosen = () if None in parts else tuple(part in parts for part in range(count))
    return Plan(layer, max(x.a.shape[1] for x in parts.values()), first.scale, chosen)


def _fill(plan: Plan, parts: dict[int | None, _Update]) -> None:
    """Writes the matrices; parts of a lower rank end with zeros."""
    layer, rank, scale, _ = plan
    a, b = (np.zeros(x.shape, "float32") for x in (layer.lora_kernel_a, layer.lora_kernel_b))
    for row, part in enumerate(sorted(parts, key=lambda part: part or 0)):
        update, begin = parts[part], row * rank
        units = update.b.shape[1]
        rows = slice(begin, begin + update.a.shape[1])
        column = (part or 0) * units
        a[:, rows] = update.a
        b[rows, column : column + units] = update.b * (update.scale / scale)
    layer.lora_kernel_a.assign(a)
    layer.lora_kernel_b.assign(b)


def _layouts(model: keras.Model) -> list[Layout]:
    return [find_layout(config_of(model), project) for project in _PROJECTS]


def _file_name(model: keras.Model, layout: Layout, key: str) -> str:
    """The name in memory: with a head, transformers' model is a part of another one."""
    prefixes = [prefix for prefix in layout.prefixes if prefix and prefix != "timm_model."]
    prefix = prefixes[0] if prefixes and config_of(model).classes else ""
    return in_memory_name(layout.original(key, prefix), layout)


def _plain_name(name: str, layout: Layout) -> str:
    """The name in a layout's rules of a name in a file."""
    name = published_name(name)
    if not layout.is_unprefixed(name):
        for prefix in filter(name.startswith, filter(None, layout.prefixes)):
            return name.removeprefix(prefix)
    return name


def _read_arrays(path: pathlib.Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays by the names of the model's, and those that are there twice."""
    arrays: dict[str, np.ndarray] = {}
    problems = []
    try:
        with open_file(path) as file:
            for name in file.entries:
                own = name.removeprefix(_PREFIX).replace(".base_layer.", ".")
                problems += [f"{own} is there twice"] if own in arrays else []
                arrays[own] = file.read(name)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    return arrays, problems


def _read_settings(path: pathlib.Path) -> dict[str, Any]:
    try:
        settings = dict(read_json(path))
    except (OSError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a configuration of PEFT: {error}") from error
    unknown = [
        f"{key}={settings[key]!r}" for key, plain in _PLAIN.items()
        if settings.get(key, plain[0]) not in plain
    ]  # fmt: skip
    numbers = {"lora_alpha": settings.get("lora_alpha")}
    for kind in ("rank_pattern", "alpha_pattern"):
        pattern = settings.get(kind) or {}
        if isinstance(pattern, dict):
            numbers |= pattern
        else:
            unknown.append(f"{kind}={pattern!r}")
    unknown += [
        f"{key}={number!r}"
        for key, number in numbers.items()
        if not re.fullmatch(r"[\w.]+", key)  # an expression may take for ever
        or not isinstance(number, (int, float))
        or not 0 < number < 1e6
    ]
    dropout = settings.get("lora_dropout") or 0
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        unknown.append(f"lora_dropout={dropout!r}")
    if unknown:
        raise CheckpointError(
            f"{path} describes what is no plain low-rank update here: {', '.join(unknown)}. Merge "
            "it in PEFT (`merge_and_unload`) and load the model's whole weights."
        )
    return settings


def _scale(module: str, rank: int, settings: dict[str, Any]) -> float:
    patterns = settings.get("alpha_pattern") or {}
    found = (value for pattern, value in patterns.items() if f".{module}".endswith(f".{pattern}"))
    alpha = next(found, settings["lora_alpha"])  # the first, as in PEFT
    return float(alpha / (rank**0.5 if settings.get("use_rslora") else rank))


def _read_updates(
    model: keras.Model, arrays: dict[str, np.ndarray], settings: dict[str, Any], problems: list[str]
) -> dict[Dense, dict[int | None, _Update]]:
    """Takes the updates out of the arrays, by layer and part."""
    targets: dict[tuple[str, str], tuple[Dense, int | None, np.ndarray]] = {}
    for layout in _layouts(model):
        for layer in dense_layers(model):
            orders = _unit_orders(layer, layout, config_of(model))
            for key, order in orders.items():
                number, within = divmod(order, len(order))
                part = int(number[0]) if len(orders) > 1 else None
                targets[layout.name, key] = layer, part, within
    updates: dict[Dense, dict[int | None, _Update]] = {}
    for name in [name for name in arrays if name.endswith(".lora_A.weight")]:
        module = name.removesuffix(".lora_A.weight")
        a, b = arrays.pop(name), arrays.pop(f"{module}.lora_B.weight", np.zeros(()))
        names = [(x.name, _plain_name(f"{module}.weight", x)) for x in _layouts(model)]
        target = next((targets[key] for key in names if key in targets), None)
        if target is None:
            problems.append(f"{module} is no product of a block")
            continue
        layer, part, order = target
        units, inputs = len(order), layer.frozen_kernel.shape[0]
        if a.ndim != 2 or not len(a) or a.shape[1] != inputs or b.shape != (units, len(a)):
            expected = f"(rank, {inputs}) and ({units}, rank)"
            problems.append(f"{module} has A {a.shape} and B {b.shape}, expected {expected}")
            continue
        b = b[np.argsort(order)]
        updates.setdefault(layer, {})[part] = _Update(a.T, b.T, _scale(module, len(a), settings))
    return updates


def _rules(model: keras.Model, layout: Layout) -> Iterator[tuple[Any, Rule, tuple[str, ...]]]:
    """Rules of the variables outside of the blocks' products."""
    for variable in model.variables:
        found = layout.find(variable.path, config_of(model))
        if found and "lora_kernel" not in variable.path:
            yield variable, *found


def _trained_layers(model: keras.Model, layout: Layout) -> dict[str, np.ndarray]:
    """The arrays of the layers that train as a whole, by their names in memory."""
    arrays = {}
    heads = field_value(config_of(model), "num_heads", 1)
    for variable, rule, keys in _rules(model, layout):
        if variable.trainable:
            for key, value in zip(keys, rule.to_file(np.asarray(variable), heads), strict=True):
                arrays[_file_name(model, layout, key)] = np.asarray(value, "float32")
    return arrays


def _read_layers(
    model: keras.Model, arrays: dict[str, np.ndarray], problems: list[str]
) -> dict[str, np.ndarray]:
    """Takes the values of whole layers out of the arrays, by the path of their variable."""
    values: dict[str, np.ndarray] = {}
    for layout in _layouts(model):
        names = {_plain_name(name, layout): name for name in arrays}
        for variable, rule, keys in _rules(model, layout):
            if variable.path not in values and all(key in names for key in keys):
                value = rule.to_ours([arrays.pop(names.pop(key)) for key in keys])
                values[variable.path] = value
                if value.shape != tuple(variable.shape):
                    shapes = f"{value.shape}, and must be {tuple(variable.shape)}"
                    problems.append(f"{variable.path} is {shapes}")
    return values
