"""Writing of a network in the names of transformers."""

from __future__ import annotations

import copy
import importlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.config import make_config
from keras_vit.files import write_atomically
from keras_vit.models.vit import build_vit
from keras_vit.networks.network_file import head_arrays, layers_by_path
from keras_vit.pretrained import LOADERS, NETWORKS
from keras_vit.runtime.model import Model
from keras_vit.weights.layout_search import LAYOUTS
from keras_vit.weights.save import Sized, check_free, file_arrays, write_safetensors
from keras_vit.weights.sidecar import CONFIG, PREPROCESSOR


def save_network(
    model: Model,
    folder: str | os.PathLike[str],
    others: Sequence[Model] = (),
    more: Mapping[str, Sized] | None = None,
) -> pathlib.Path:
    """Writes a network that `from_pretrained` loaded, as the class of transformers has it.

    Heads that help training alone are not written: transformers starts them anew.

    Args:
        model: The network, also after training.
        folder: Where to write `model.safetensors`, `config.json` and `preprocessor_config.json`.
        others: Further models of the same file.
        more: Arrays of the file that are not of a model.

    Raises:
        ValueError: If the folder has other files of these names, or the model is one part of a file
            of several.
    """
    facts, folder = model.published, pathlib.Path(folder)
    name = facts["config"]["architectures"][0]
    if name in LOADERS and not others and not more:
        raise ValueError(
            f"{model.name!r} is one part of a {name}. Received: folder={os.fspath(folder)!r}. Call "
            f"`save_pretrained` of what {LOADERS[name]} returned, or save this part with "
            "model.save('NAME.keras')."
        )
    contents = {CONFIG: _with_image_size(facts) if facts["transformer"] else facts["config"]}
    if facts["processor"]:
        contents[PREPROCESSOR] = facts["processor"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    check_free(path, contents)
    arrays = {**(_arrays_of_network(model) if facts["transformer"] else {}), **(more or {})}
    layers = layers_by_path(model, *others)
    for name, prefix in facts["heads"].items():
        layer = layers.get(name)
        for key, variable, axes in [] if layer is None else head_arrays(layer, prefix):
            value = keras.ops.convert_to_numpy(variable)
            value = value.transpose(np.argsort(axes)) if axes else value
            _add(arrays, key, value.reshape(facts.get("shapes", {}).get(key, value.shape)))
    with write_atomically(path, replace=True) as unfinished:
        with open(unfinished, "wb") as stream:
            write_safetensors(stream, arrays)
        for name, content in contents.items():
            unfinished.with_name(name).write_text(json.dumps(content, indent=2) + "\n")
    return folder


def _with_image_size(facts: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the file, with the size that the positions of the model are for."""
    fields, config = facts["transformer"]["fields"], copy.deepcopy(facts["config"])
    part = config.get("backbone_config") or config.get("vision_config") or config
    grids = [
        [side // patch for side, patch in zip(size, fields["patch_size"], strict=True)]
        for size in (fields["image_size"], np.broadcast_to(part.get("image_size", 0), 2).tolist())
    ]
    if grids[0] != grids[1]:
        height, width = fields["image_size"]
        if height != width and not isinstance(part.get("image_size"), list):
            raise ValueError(
                f"{config['architectures'][0]} of transformers holds positions of square images. "
                f"Received: a network for {height} x {width}. Load it with a square input_shape, "
                "or for images of any size."
            )
        part["image_size"] = height if height == width else [height, width]
    return config


def _add(arrays: dict[str, Sized], key: str, value: np.ndarray) -> None:
    arrays[key] = value.shape, lambda: value


def _arrays_of_network(model: Model) -> dict[str, Sized]:
    """The arrays of the Transformer by their names in the file, also those that are computed."""
    values = {variable.path: variable for variable in model.variables}
    arrays, rest = arrays_of_transformer(model.published["transformer"], values)
    loader = NETWORKS.get(model.published["config"]["architectures"][0])
    if loader is None:  # of two towers
        return arrays
    module, _, function = loader.partition(":")
    back = getattr(importlib.import_module(f"keras_vit.{module}"), f"{function}_back", None)
    for key, value in ({} if back is None else back(rest, model)).items():
        _add(arrays, key, np.ascontiguousarray(value))
    return arrays


def arrays_of_transformer(
    facts: Mapping[str, Any], values: Mapping[str, keras.Variable]
) -> tuple[dict[str, Sized], dict[str, np.ndarray]]:
    """The arrays of a Transformer by their names in a file, and those that it has not.

    Args:
        facts: Fields of its configuration, its layout, and names in the file by those of the
            layout.
        values: Its variables by their paths in a model of these fields.
    """
    part = build_vit(make_config(**facts["fields"]))
    for variable in part.variables:
        if variable.path in values:  # not a norm that the head does not read
            variable.assign(values[variable.path])
    layout = next(layout for layout in LAYOUTS if layout.name == facts["layout"])
    prefix, names, arrays = layout.prefixes[0], facts["names"], {}
    rest: dict[str, np.ndarray] = {}
    for key, (shape, make) in file_arrays(part, layout).items():
        ours = key.removeprefix(prefix)
        if ours in names:
            arrays[names[ours]] = shape, make
        else:
            rest[ours] = make()
    return arrays, rest
