"""A folder to hand on: weights with the sidecar files of timm or transformers."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.checks import check_choice
from keras_vit.config import Preprocessing, ResNetConfig, ViTConfig, field_names, field_value
from keras_vit.errors import CheckpointError
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.inspection import adapt_config, inspect_checkpoint
from keras_vit.weights.load import check_supported
from keras_vit.weights.matching import config_of
from keras_vit.weights.save import check_free, find_layout, write_file
from keras_vit.weights.sidecar_writing import describe

if TYPE_CHECKING:
    from keras_vit.runtime.model import Model

FILE = "model.safetensors"
# Fields that change no output, or that no file holds and `from_pretrained` takes as arguments.
_FREE = {
    "classes", "dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "head_bias",
    "patch_dropout_rate", "rematerialize", "query_chunk_size", "any_size", "position_resize",
    "include_preprocessing", "max_num_patches",
}  # fmt: skip


def save_pretrained(
    model: Model,
    folder: str | os.PathLike[str],
    layout: str | None = None,
    class_names: Sequence[str] | None = None,
) -> pathlib.Path:
    """Writes a folder that this package and transformers or timm load.

    The folder holds `model.safetensors` and `config.json`, with transformers also
    `preprocessor_config.json`. `from_pretrained(folder)` gives the same outputs and preprocessing.
    Everything is written to a folder of its own first and read back.

    Args:
        model: A model of `create_model`, `from_pretrained`, `build_vit` or `build_resnet`.
        folder: The folder; it is made if it does not exist.
        layout: `"transformers"` or `"timm"`; `None` takes timm for a model whose preprocessing is
            timm's, and transformers otherwise.
        class_names: Names of the classes, in the order of the outputs: `id2label` of transformers,
            `label_names` of timm. `None` takes `model.class_names`.

    Returns:
        The folder.

    Raises:
        ValueError: If the project cannot represent the model or its preprocessing, or the folder
            holds other weights. Nothing is written then.

    Example:

    >>> model = keras_vit.create_model("vit_b16", classes=2, gelu="exact")
    >>> model.save_pretrained("pets", class_names=["cat", "dog"])  # doctest: +SKIP
    """
    config = config_of(model)
    if layout is None:
        layout = "timm" if config.preprocessing.library == "timm" else "transformers"
    check_choice("layout", layout, ("timm", "transformers"))
    if config.classifier_activation not in (None, "linear"):
        raise ValueError(
            f"Models of {layout} return logits. Received: classifier_activation="
            f"{config.classifier_activation!r}. Save the model with `model.save`."
        )
    names = list(map(str, class_names or model.class_names or ()))
    if names and len(names) != (config.classes or 0):
        raise ValueError(
            f"`class_names` needs a name for each of the {config.classes or 0} outputs. Received: "
            f"{len(names)} names."
        )
    folder = pathlib.Path(folder).expanduser()
    chosen = find_layout(config, layout)
    contents = describe(config, chosen, names)
    check_free(folder / FILE, contents)
    write_file(model, folder / FILE, chosen, contents, _check_readable)
    return folder


def _check_readable(path: pathlib.Path, config: ViTConfig | ResNetConfig) -> None:
    """Raises ValueError if the written files are of another model than the configuration's."""
    with open_checkpoint(path) as checkpoint:
        try:
            check_supported(checkpoint, ())
        except CheckpointError as error:
            raise ValueError(f"The folder could not be read back. {error}") from error
        read = adapt_config(config, inspect_checkpoint(checkpoint))
    problems = [
        f"{field}={ours!r} in the model, {theirs!r} there"
        for field, ours, theirs in _differences(config, read)
    ]
    if problems:
        raise ValueError(
            f"The project of the layout {checkpoint.layout.name!r} would compute something else: "
            f"{'; '.join(problems)}. Save in the other layout, or the model with `model.save`."
        )


def _differences(
    ours: ViTConfig | ResNetConfig, theirs: ViTConfig | ResNetConfig
) -> Iterator[tuple[str, Any, Any]]:
    for field in field_names(ours):
        mine, read = field_value(ours, field), field_value(theirs, field)
        if mine == read or field in _FREE:
            continue
        if field == "preprocessing" and _same_images(mine, read, ours.channels):
            continue
        if field == "layer_scale" and (mine is None) == (read is None):
            continue  # the initial value
        if field == "position_embedding" and (mine, read) == ("sincos_2d", "learned"):
            continue  # the same table
        if field == "position_on_class_token" and mine is False:
            continue  # rows of zeros
        if field == "pooling" and ours.classes is None and mine is None:
            continue  # `from_pretrained(folder, include_top=False)`
        part = field.partition("_")[0]
        unread = "prefix" in field and not field_value(ours, "num_prefix_tokens", 0)
        if part in ("map", "gap") and (ours.pooling != part or unread):
            continue
        yield field, mine, read


def _same_images(ours: Preprocessing, theirs: Preprocessing, channels: int) -> bool:
    mine, read = (np.ravel(each.per_channel(channels)) for each in (ours, theirs))
    same = dataclasses.replace(theirs, mean=ours.mean, std=ours.std, crop_ratio=ours.crop_ratio)
    return np.allclose(mine, read, rtol=1e-6, atol=1e-6) and same == ours
