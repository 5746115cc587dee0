"""The configuration that a checkpoint asks for: what its source computed, the model computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit.config import Preprocessing, ResNetConfig, ViTConfig
from keras_vit.weights.inspection import FileInfo


def follow_file(
    config: ViTConfig | ResNetConfig,
    info: FileInfo,
    chosen: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
) -> ViTConfig | ResNetConfig:
    """Adapts a configuration to a checkpoint, where the caller did not choose otherwise.

    The form of GELU, the epsilon of the norms, the number of heads, tokens and their places,
    pooling, preprocessing and the size of images follow the file; the head takes the file's form
    where the number of classes agrees.

    Args:
        config: The variant's configuration, with the caller's changes.
        info: What the file says.
        chosen: Fields that the caller chose, which stay.
        options: What is known about this checkpoint beyond its names and shapes; goes before
            `info`.

    Returns:
        A configuration of the same family.
    """
    fields = {field.name for field in dataclasses.fields(config)}
    wanted = {
        "image_size": _image_size(config, info, chosen),
        **info.options,
        **(options or {}),
    }
    if config.classes is None or config.classes != info.classes:
        wanted["pre_logits"] = None  # dropped for other classes, as the paper fine-tunes
    if info.sizes.get("width") != getattr(config, "width", None):
        wanted.pop("num_heads", None)  # of another model: what does not fit is told on loading
    if config.channels != 3 and "preprocessing" in wanted:
        wanted["preprocessing"] = _mean_channel(wanted["preprocessing"])
    stem = wanted.pop("stem", None)
    if stem is not None and isinstance(config, ViTConfig) and config.stem is not None:
        wanted["stem"] = dataclasses.replace(config.stem, **stem)
    changes = {
        field: value for field, value in wanted.items() if field in fields and field not in chosen
    }
    return dataclasses.replace(config, **changes)


def _image_size(
    config: ViTConfig | ResNetConfig, info: FileInfo, chosen: Collection[str]
) -> tuple[int, int] | None:
    """Pixels that the file's positions are for, or the variant's where it does not say."""
    if info.grid is None or isinstance(config, ResNetConfig) or "patch_size" in chosen:
        return config.image_size
    stride = 1 if config.stem is None else config.stem.stride
    rows, columns = (
        places * patch * stride for places, patch in zip(info.grid, config.patch_size, strict=True)
    )
    return rows, columns


def _mean_channel(preprocessing: Preprocessing) -> Preprocessing:
    """Statistics of colour images for images of other channels: their means."""
    mean, std = ((sum(values) / len(values),) for values in (preprocessing.mean, preprocessing.std))
    return dataclasses.replace(preprocessing, mean=mean, std=std)
