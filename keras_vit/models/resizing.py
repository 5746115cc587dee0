"""The same weights for images of another size: positions are resized, the rest is copied."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.checks import pair
from keras_vit.config import ResNetConfig, ViTConfig
from keras_vit.errors import listed
from keras_vit.models.lora import lora_layers
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from keras_vit.resize import BIAS_TABLE, resize_matrix, resize_position_bias, resize_positions
from keras_vit.runtime.distributed import is_distributed
from keras_vit.runtime.model import Model

# Paths of what `resize_table` resizes, from the layer on.
TABLES = (*(f"position_embedding/{name}" for name in ("embedding", "rows", "columns")), BIAS_TABLE)
_MAX_LISTED = 5


def resize_model(model: Model, image_size: int | tuple[int, int] | None) -> Model:
    """Builds a model of the same weights, head included, for images of another size, or of any.

    Learned positions and position biases are resized by `model.config.position_resize`, which
    loading sets to the method of the checkpoint's project. Fixed (sine-cosine) and rotary positions
    are computed for the new grid. `adapt_model` does the same with a new head, under the global
    dtype policy.

    Args:
        model: A model of `create_model`, `from_pretrained`, `build_vit` or `build_resnet`; it is
            not changed.
        image_size: Pixels along (height, width), a whole number of patches; an integer means a
            square. `None` makes one model for all sizes, which keeps the positions and resizes them
            to the grid of every batch.

    Returns:
        A new `keras_vit.Model` that is not compiled, of the precision of the old one and made under
        its strategy. Its layers are frozen where those of the old one are.

    Raises:
        ValueError: If the model is not one of this package, has weights that cannot be resized
            (other relative positions) or low-rank updates, the size is no whole number of patches,
            or the model has options that need a known size.

    Example:

    >>> model = keras_vit.ViTTi16(weights=None)
    >>> keras_vit.models.resize_model(model, (512, 768)).input_shape
    (None, 512, 768, 3)
    """
    old = getattr(model, "config", None)
    if not isinstance(old, ViTConfig | ResNetConfig):
        raise ValueError(
            f"Only models of this package can be resized. Received: {type(model).__name__} "
            f"{model.name!r}. Resize what it was built on, then build it again."
        )
    config = with_size(old, image_size)
    build: Any = build_vit if isinstance(config, ViTConfig) else build_resnet
    with made_like(model):
        new = build(config, model.name)
        copy_weights(model, new)
    return new


def with_size(
    config: ViTConfig | ResNetConfig, image_size: int | tuple[int, int] | None
) -> ViTConfig | ResNetConfig:
    """The configuration for images of a size, or for `None` of any."""
    size = None if image_size is None else pair("image_size", image_size)
    if isinstance(config, ResNetConfig):
        return dataclasses.replace(config, image_size=size)
    if config.takes_patches:
        raise ValueError(
            "A model with `max_num_patches` takes images of any size, and resamples its positions "
            "for each. Pass another `max_num_patches` when you build or load it. Received: "
            f"image_size={image_size}."
        )
    if size is None:
        return dataclasses.replace(config, any_size=True)
    return dataclasses.replace(config, image_size=size, any_size=False)


@contextlib.contextmanager
def made_like(model: Model) -> Iterator[None]:
    """Makes new models under the dtype policy and the strategy of a model of this package."""
    before = keras.config.dtype_policy()
    first = "patch_encoder" if isinstance(model.config, ViTConfig) else "root"
    scope = model.distribute_strategy.scope() if is_distributed(model) else contextlib.nullcontext()
    keras.config.set_dtype_policy(model.get_layer(first).dtype_policy)
    try:
        with scope:
            yield
    finally:
        keras.config.set_dtype_policy(before)


def copy_weights(model: Model, new: Model, leave: Collection[str] = ()) -> None:
    """Copies the weights of a model to another of the same architecture; positions are resized.

    What is frozen in the model, is frozen in the other, which has its class names too unless
    layers are left.

    Args:
        model: The model.
        new: A model that differs in image size and in the layers `leave` only.
        leave: Names of layers of `new` that keep their weights.

    Raises:
        ValueError: If the model has low-rank updates, or a weight has no counterpart of its shape;
            nothing is copied then.
    """
    if lora_layers(model):
        raise ValueError(
            f"{model.name!r} has low-rank updates. Resize or adapt the plain model that "
            "`keras_vit.models.merge_lora(model)` returns."
        )
    source = {variable.path: variable for variable in model.weights}
    for path, variable in source.items():
        if "int" in str(variable.dtype) and "seed_generator" not in path:
            raise ValueError(
                f"The kernels of {model.name!r} were quantised by Keras ({path} is "
                f"{variable.dtype}), and cannot be copied to another size. Resize or adapt the "
                "model before `quantize`."
            )
    values: dict[str, np.ndarray] = {}
    problems = []
    for variable in new.weights:
        path, shape = variable.path, tuple(variable.shape)
        if "seed_generator" in path or path.split("/")[0] in leave:
            continue
        if path not in source:
            problems.append(f"{path} is not in the model")
            continue
        value = np.asarray(keras.ops.convert_to_numpy(source[path]))
        if value.shape != shape and path.endswith(TABLES):
            value = resize_table(path, value, model.config, new.config)
        values[path] = value
        if value.shape != shape:
            problems.append(f"{path} is {value.shape}, and must be {shape}")
    if problems:
        raise ValueError(
            f"The weights of {model.name!r} do not fit the new configuration: "
            f"{listed(problems, _MAX_LISTED, '; ')}. Change nothing but classes, image_size "
            "and rates; relative positions keep their image size, but for 'relative_bias'."
        )
    if not leave:
        new.class_names = model.class_names
        model.warn_of_lost_calibration("Another configuration may change the probabilities")
    frozen = {layer.name for layer in model.layers if not layer.trainable} - set(leave)
    for layer in new.layers:  # whose flags are saved, those of variables are not
        if layer.name in frozen:
            layer.trainable = False
    for variable in new.weights:
        if variable.path in values:
            variable.assign(values[variable.path])
            variable.trainable = source[variable.path].trainable


def resize_table(path: str, table: np.ndarray, old: Any, new: Any) -> np.ndarray:
    """Resizes a table of `AddPositionEmbedding`, `(1, positions, D)`, or of a `BIAS_TABLE`.

    Args:
        path: Path of its variable.
        table: Its values, or a moment of them in an optimizer.
        old: Configuration of the model that it belongs to.
        new: Configuration of the other model, whose method of resizing is used.
    """
    if path.endswith(BIAS_TABLE):
        return resize_position_bias(table, old.grid, new.grid, new.position_resize)
    name = path.rpartition("/")[2]
    if name in ("rows", "columns"):  # halves of "learned_2d": the resizing of a grid by axes
        axis = ("rows", "columns").index(name)
        matrix = resize_matrix(old.grid[axis], new.grid[axis], new.position_resize)
        return (matrix @ table.astype("float64")).astype("float32")
    prefix = table.shape[1] - old.num_patches
    patches = resize_positions(table[:, prefix:], old.grid, new.grid, new.learned_resize)
    return np.concatenate((table[:, :prefix], patches), axis=1)
