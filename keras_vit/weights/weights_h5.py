"""`.weights.h5` files of Keras, which hold the weights of a model and no configuration."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import pathlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from keras_vit.config import ResNetConfig, ViTConfig, field_names, field_value
from keras_vit.errors import CheckpointMismatchError, printable
from keras_vit.resize import num_biases, side_of_biases
from keras_vit.weights.formats import check_weights_file
from keras_vit.weights.load import STATED, LoadReport, check_finite
from keras_vit.weights.sizes import pixels_of

if TYPE_CHECKING:
    from keras_vit.runtime.model import Model

_LOGGER = logging.getLogger("keras_vit")
_BLOCK_TABLE = "block_0/attention/vars/0"  # of `BIAS_TABLE`
_HEAD = "head/vars/0"


def read_shapes(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Reads the shape of every weight of a file, by the name of its layer: `"head/vars/0"`.

    Raises:
        CheckpointError: If the file is damaged, or its arrays expand.
    """
    import h5py

    check_weights_file(path)
    shapes: dict[str, tuple[int, ...]] = {}
    with h5py.File(path) as file:
        for key, layer in file.get("layers", {}).items():
            name = layer["vars"].attrs.get("name", key) if "vars" in layer else key

            def add(rest: str, item: Any, name: str = name) -> None:
                if isinstance(item, h5py.Dataset) and "seed_generator" not in f"{name}/{rest}":
                    shapes[f"{name}/{rest}"] = item.shape

            layer.visititems(add)
    return shapes


def config_of_file(
    config: ViTConfig | ResNetConfig, path: pathlib.Path, pooling: str | None
) -> ViTConfig | ResNetConfig:
    """Changes a configuration to the image size and the head of the model in a file.

    Args:
        config: The configuration that the caller asks for.
        path: The file.
        pooling: Pooling of the architecture, where the configuration has none.

    Returns:
        The configuration. All other fields are those of `config`.

    Raises:
        CheckpointMismatchError: If the file's positions are no grid that is known.
    """
    shapes = read_shapes(path)
    classes = shapes[_HEAD][-1] if _HEAD in shapes else None
    changes: dict[str, Any] = {"classes": classes}
    if classes is not None:
        changes["pooling"] = config.pooling or pooling
    if isinstance(config, ViTConfig):
        changes["pre_logits"] = shapes.get("pre_logits/vars/1", (None,))[-1]
        grid = _grid_in(shapes, config, path)
        if grid != config.grid:
            changes["image_size"] = pixels_of(grid, config.patch_size, config.stem)
    return dataclasses.replace(config, **changes)


def _grid_in(
    shapes: dict[str, tuple[int, ...]], config: ViTConfig, path: pathlib.Path
) -> tuple[int, int]:
    """The grid of the table of positions in a file, that of the model or of its first block."""
    first, in_block = shapes.get("position_embedding/vars/0"), shapes.get(_BLOCK_TABLE)
    if config.position_embedding == "learned_2d" and first is not None:
        return shapes["position_embedding/vars/1"][1], first[1]  # rows, columns
    if config.position_embedding == "learned" and first is not None:
        count = first[1] - (config.num_class_tokens if config.position_on_class_token else 0)
        side = math.isqrt(max(count, 0))
        fits = {grid for grid in (config.grid, (side, side)) if grid[0] * grid[1] == count}
    elif config.block_positions == "relative_bias" and in_block is not None:
        count = in_block[0]
        side = side_of_biases(count, config.class_token)
        grids = (config.grid, (side, side))
        fits = {grid for grid in grids if num_biases(grid, config.class_token) == count}
    else:
        return config.grid
    if len(fits) == 1:
        return fits.pop()
    ways = " or ".join(f"{rows} x {columns}" for rows, columns in sorted(fits))
    raise CheckpointMismatchError(
        f"{path} does not tell its image size, and its position embedding is of "
        f"{f'{ways} patches' if fits else 'no square of patches'}; the model has "
        f"{config.grid[0]} x {config.grid[1]}. Create the model without weights, with the "
        "input_shape of the file, and call `model.load_weights`; `keras_vit.models.resize_model` "
        "then makes one of another size. A .keras file keeps the size."
    )


def load_keras_weights(
    model: Model, path: str | os.PathLike[str], chosen: Collection[str] = ()
) -> LoadReport:
    """Loads a `.weights.h5` file, which holds weights alone: no GELU, epsilon or preprocessing.

    Args:
        model: A model of this package.
        path: The file, of a model of the same architecture.
        chosen: Fields of the model's configuration that the caller chose.

    Returns:
        A `LoadReport`, which the model keeps as `model.load_report`.

    Raises:
        CheckpointError: If the file is damaged, its arrays expand, or weights are NaN or infinite.
        CheckpointMismatchError: If the file has more weights than the model.
        ValueError: If it has less, or others.
    """
    found = len(read_shapes(path))
    model.load_weights(path)
    check_finite(path, model)
    if found > len(model.weights):  # Keras does not look at what it does not need
        raise CheckpointMismatchError(
            f"{os.fspath(path)} has {found} weights, and the model {len(model.weights)}. Pass "
            "the options that the model in the file was made with, such as `depth` and `classes`."
        )
    stated = {}
    for field in STATED:
        if field in field_names(model.config):
            origin = "the caller" if field in chosen else "the architecture"
            stated[field] = field_value(model.config, field), origin
    taken = [field for field in stated if field not in chosen]
    _LOGGER.warning(
        "%s holds weights alone. The file does not contain these settings, so the architecture's "
        "defaults are used: %s. Pass them if the model was made with others, or save it as a "
        ".keras file.",
        printable(path),
        ", ".join(taken),
    )
    model.load_report = LoadReport(
        path=os.fspath(path),
        layout="keras",
        loaded=tuple(variable.path for variable in model.weights),
        settings=stated,
    )
    return model.load_report
