"""Saving of weights in the layouts of the official projects, timm and transformers."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import pathlib
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from keras_vit.checks import check_choice
from keras_vit.config import ResNetConfig, ViTConfig, field_value
from keras_vit.errors import printable
from keras_vit.families.rules import Layout, Rule
from keras_vit.files import write_atomically
from keras_vit.reading import read_text
from keras_vit.resize import sincos_2d
from keras_vit.weights.layout_search import LAYOUTS
from keras_vit.weights.matching import POSITIONS, config_of, model_variables
from keras_vit.weights.sidecar import NAMES
from keras_vit.weights.sidecar_writing import describe

if TYPE_CHECKING:
    import keras

    from keras_vit.runtime.model import Model

_LOGGER = logging.getLogger("keras_vit")
# Suffix of the files of each layout.
SUFFIXES = {
    "official": ".npz",
    "big_vision": ".npz",
    "timm": ".safetensors",
    "transformers": ".safetensors",
}
WRITABLE = tuple(SUFFIXES)

Maker = Callable[[], np.ndarray]
Piece = tuple[Rule, int, Maker]
Sized = tuple[tuple[int, ...], Maker]  # shape of an array, and the function that makes it


def save_weights(
    model: Model, path: str | os.PathLike[str], layout: str = "official"
) -> pathlib.Path:
    """Writes a model's weights in the names and shapes of another project.

    Beside a `.safetensors` file its `config.json` is written, with transformers also
    `preprocessor_config.json`: they hold the number of heads, GELU, the epsilon of the norms and
    the preprocessing. Where the project's configuration cannot say them, or the folder has such
    files of other weights, a line in the log says so, and none is written.

    Args:
        model: A model of `build_vit`, `build_resnet` or `create_model`.
        path: Where to write; `.npz` for `"official"` and `"big_vision"`, `.safetensors` for the
            others.
        layout: `"official"` (vision_transformer, and big_transfer for ResNets), `"big_vision"`,
            `"timm"` or `"transformers"` (the family follows from the architecture). With `"timm"`
            ViT-5, which timm has not, gets its authors' names.

    Returns:
        The path. An existing file there is replaced atomically.

    Raises:
        ValueError: If the layout is unknown, has no array for a weight of the model, or computes
            another function.

    Example:

    >>> model = keras_vit.create_model("vit_b16", classes=10)
    >>> keras_vit.save_weights(model, "model.safetensors", layout="timm")  # doctest: +SKIP
    """
    check_target(path, layout)
    path, chosen = pathlib.Path(path), find_layout(config_of(model), layout)
    contents = {}
    try:
        if chosen.kind != "npz":
            contents = describe(config_of(model), chosen, ())
            check_free(path, contents)
    except ValueError as error:
        _LOGGER.warning("%s is written without sidecar files. %s", printable(path), error)
        contents = {}
    return write_file(model, path, chosen, contents)


def write_file(
    model: Model,
    path: pathlib.Path,
    layout: Layout,
    contents: Mapping[str, Mapping[str, Any]],
    check: Callable[[pathlib.Path, ViTConfig | ResNetConfig], None] | None = None,
) -> pathlib.Path:
    """Writes the weights of a model and its sidecar files, all or nothing.

    Args:
        model: The model.
        path: Where to write.
        layout: Layout of its file.
        contents: Contents of the sidecar files by their names.
        check: Called with the written file and the configuration before anything is in its place.

    Returns:
        The path.

    Raises:
        ValueError: If the layout does not fit the model.
    """
    config = config_of(model)
    _check_function(config, layout)
    arrays = file_arrays(model, layout)
    with write_atomically(path, replace=True) as unfinished:
        with open(unfinished, "wb") as stream:
            (write_npz if layout.kind == "npz" else write_safetensors)(stream, arrays)
        for name, content in contents.items():
            unfinished.with_name(name).write_text(json.dumps(content, indent=2) + "\n")
        if check is not None:
            check(unfinished, config)
    return path


def check_free(path: pathlib.Path, contents: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks that no sidecar file of other weights would be replaced, or describe these.

    Raises:
        ValueError: If the folder has such files.
    """
    others = [each.name for each in path.parent.glob("*.safetensors*") if each != path]
    for name in NAMES:
        file = path.with_name(name)
        if not file.exists() or (path.exists() and not others and name in contents):
            continue
        text = json.dumps(contents[name], indent=2) + "\n" if name in contents else None
        if read_text(file) != text:
            raise ValueError(
                f"{os.fspath(path.parent)!r} has a {name} of something else"
                f"{f' ({others[0]})' if others else ''}, which would be read for {path.name} too. "
                "Write to a folder of its own."
            )


def check_target(path: str | os.PathLike[str], layout: str) -> None:
    """Checks the path and layout of `save_weights` before the model is built.

    Raises:
        ValueError: If the layout is unknown, the file has another suffix, or its folder does not
            exist.
    """
    path = pathlib.Path(path)
    check_choice("layout", layout, WRITABLE)
    if path.suffix != SUFFIXES[layout]:
        raise ValueError(
            f"The {layout} layout is written to {SUFFIXES[layout]} files. Received: "
            f"{os.fspath(path)!r}."
        )
    if not path.parent.is_dir():
        raise ValueError(
            f"There is no folder {os.fspath(path.parent)!r} to write to. Make it first."
        )


def find_layout(config: ViTConfig | ResNetConfig, layout: str) -> Layout:
    """Finds the layout of a project, one of `WRITABLE`, for an architecture."""
    return next(
        each
        for each in reversed(LAYOUTS)
        if each.writes is not None
        and (each.written_for or each.project) == layout
        and each.is_resnet == isinstance(config, ResNetConfig)
        and each.writes(config)
    )


def _check_function(config: ViTConfig | ResNetConfig, layout: Layout) -> None:
    """Raises ValueError if the project would load the file, but compute something else."""
    _check_standardization(config, layout)
    if isinstance(config, ResNetConfig):
        return
    for lack in layout.all_lacks(config):
        if lack.is_met(config):
            received = (f"{field}={field_value(config, field)!r}" for field in lack.fields)
            raise ValueError(
                f"Models of the {layout.name} layout {lack.what}, and would give other numbers. "
                f"Received: {', '.join(received)}. {lack.advice}"
            )


def _check_standardization(config: ViTConfig | ResNetConfig, layout: Layout) -> None:
    """Raises ValueError if the project standardises kernels of convolutions in another way."""
    ours = config.stem if isinstance(config, ViTConfig) else config
    theirs, epsilon = layout.standardization
    if ours is None or (ours.standardization, ours.norm_epsilon) == (theirs, epsilon):
        return
    raise ValueError(
        f"Projects of the {layout.name} layout standardise the kernels of convolutions with "
        f"standardization={theirs!r}, norm_epsilon={epsilon}; the model has "
        f"{ours.standardization!r}, {ours.norm_epsilon}. The file would give other numbers there. "
        "If that is what you want, load the weights into a model with those values first."
    )


def file_arrays(model: Model, layout: Layout) -> dict[str, Sized]:
    """Lists the arrays of the file by their names in it."""
    config = config_of(model)
    heads = field_value(config, "num_heads", 1)
    pieces: dict[str, tuple[tuple[int, ...], list[Piece]]] = {}
    unnamed = []
    for path, (shape, value) in _values(model, layout).items():
        found = layout.find(path, config)
        if found is None or path.startswith(layout.unwritten):
            if not (path.endswith("bias") and not value().any()):  # zeros are as good as none
                unnamed.append(path)
            continue
        rule, keys = found
        for number, file_shape in enumerate(rule.file_shapes(shape, heads)):
            name = layout.original(keys[number], layout.prefixes[0])
            pieces.setdefault(name, (file_shape, []))[1].append((rule, number, value))
    if unnamed:
        raise ValueError(
            f"The {layout.name} layout has no array for {', '.join(unnamed)}. Save in another "
            "layout, or build the model without them."
        )
    arrays: dict[str, Sized] = {
        name: (shape, functools.partial(_make, parts, heads))
        for name, (shape, parts) in pieces.items()
    }
    zeros = dict(layout.zeros(config))
    if config.head_bias is None and config.classes is not None:
        found = layout.find("head/bias", config)
        if found is not None:  # timm has zeros where CLIP has no bias
            zeros[found[1][0]] = (config.classes,)
    for key, shape in zeros.items():
        name = layout.original(key, layout.prefixes[0])
        arrays[name] = shape, functools.partial(np.zeros, shape, "float32")
    return arrays


def _make(parts: list[Piece], heads: int) -> np.ndarray:
    """Makes an array from one variable, or from several."""
    ordered = sorted(parts, key=lambda part: part[0].rows[0])
    arrays = [rule.to_file(value(), heads)[number] for rule, number, value in ordered]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=0)


def _values(model: Model, layout: Layout) -> dict[str, Sized]:
    """Lists the variables by path, with positions of class tokens where the layout has them."""
    values: dict[str, Sized] = {
        variable.path: (tuple(variable.shape), functools.partial(_read, variable))
        for variable in model_variables(model)
    }
    config = config_of(model)
    for path, constant in layout.constants(config).items():
        values[path] = (constant.shape, functools.partial(np.asarray, constant))
    if isinstance(config, ViTConfig):
        if config.position_embedding == "sincos_2d" and layout.no_positions != "sincos_2d":
            prefix = config.num_class_tokens if config.position_on_class_token else 0
            table = np.pad(sincos_2d(config.grid, config.width), ((prefix, 0), (0, 0)))[None]
            values[POSITIONS] = (table.shape, lambda: table)
        if POSITIONS in values:
            _place_rows(values, config, layout.class_token_positions)
    return values


def _place_rows(values: dict[str, Sized], config: ViTConfig, positions: str) -> None:
    """Adds rows of zeros for class tokens and registers, or adds their rows to the tokens."""
    (_, rows, width), table = values[POSITIONS]
    count, registers = config.num_class_tokens, config.num_registers
    if positions == "either" and config.position_on_class_token and registers:
        values[POSITIONS] = (
            (1, rows + registers, width),
            lambda: np.insert(table(), [count] * registers, 0.0, axis=1),
        )
    if positions == "always" and not config.position_on_class_token:
        padding = ((0, 0), (count, 0), (0, 0))
        values[POSITIONS] = ((1, rows + count, width), lambda: np.pad(table(), padding))
    if positions == "never" and config.position_on_class_token:
        values[POSITIONS] = ((1, rows - count, width), lambda: table()[:, count:])
        tokens = ("class_token/token", "distillation_token/token")[:count]
        for row, path in enumerate(tokens):
            shape, token = values[path]
            values[path] = shape, functools.partial(_add_row, token, table, row)


def _add_row(token: Maker, table: Maker, row: int) -> np.ndarray:
    return token() + table()[:, row : row + 1]


def _read(variable: keras.Variable) -> np.ndarray:
    return np.asarray(variable.numpy(), "float32")


def write_npz(stream: BinaryIO, arrays: dict[str, Sized]) -> None:
    """Writes arrays of float32 as `write_safetensors` does."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, (_, make) in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(make(), "<f4"))


def write_safetensors(stream: BinaryIO, arrays: dict[str, Sized]) -> None:
    """Writes arrays of float32 one after the other, each made when it is written."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (shape, _) in arrays.items():
        end = position + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of 8 bytes
    stream.write(struct.pack("<Q", len(text)) + text)
    for _, make in arrays.values():
        stream.write(np.ascontiguousarray(make(), "<f4").data)
