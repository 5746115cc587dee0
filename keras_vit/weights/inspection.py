"""The architecture of a checkpoint, and the configuration that computes the same."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit.config import Preprocessing, ResNetConfig, ViTConfig, field_names, replace_fields
from keras_vit.errors import CheckpointError
from keras_vit.weights.array_file import Entry
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.sidecar import Setting
from keras_vit.weights.sizes import grid_of, pixels_of


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """Architecture of a checkpoint, found from its names and shapes.

    Args:
        path: The file.
        kind: `"npz"` or `"safetensors"`.
        layout: Name of its layout.
        variant: The variant of that size, or `None` if the table has none.
        classes: Outputs of its head, or `None` without one.
        grid: Patches along (height, width) of its position table, or `None` if it has none or the
            number of rows is ambiguous.
        sizes: Fields of the configuration that follow from shapes, such as `width` and `depth`.
        options: Other fields of the configuration that the file asks for.
        stated_size: Pixels along (height, width) of its images in `config.json`, if it says.
        prefix: What stands before the names of the model, such as `"module."`.
        project: The project of the layout.
        parameters: Number of values in the arrays of the image model.
        arrays: Shape and type of every array, by its name in the file.
        input_size: Pixels along (height, width) of the images that the preprocessing of its sidecar
            files gives to the model, and the key that says so; `None` if none says.
    """

    path: pathlib.Path
    kind: str
    layout: str
    variant: str | None
    classes: int | None
    grid: tuple[int, int] | None
    sizes: dict[str, Any]
    options: dict[str, Any]
    parameters: int
    arrays: dict[str, Entry]
    stated_size: tuple[int, int] | None = None
    prefix: str = ""
    project: str = ""
    input_size: Setting | None = None

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Pixels along (height, width) that its positions are for, if known."""
        if self.grid is None or self.patch_size is None:
            return None
        stem, stated = self.sizes.get("stem"), self.stated_size
        if stem is not None and stated and grid_of(stated, self.patch_size, stem) == self.grid:
            return stated  # maps are rounded up, so the grid does not tell
        return pixels_of(self.grid, self.patch_size, stem)

    @property
    def patch_size(self) -> tuple[int, int] | None:
        """Size (height, width) of a patch, in pixels or positions of a stem's feature maps."""
        return self.sizes.get("patch_size")


def inspect_file(path: str | os.PathLike[str], prefix: str | None = None) -> FileInfo:
    """Finds the architecture of a checkpoint from its names and shapes.

    Args:
        path: An `.npz` or `.safetensors` file.
        prefix: As in `load_weights`.

    Returns:
        A `FileInfo`.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file cannot be read, or its names match no known layout.
    """
    with open_checkpoint(path, prefix) as checkpoint:
        return inspect_checkpoint(checkpoint)


def inspect_checkpoint(checkpoint: Checkpoint) -> FileInfo:
    """Finds the architecture of an open checkpoint: see `inspect_file`."""
    tables = checkpoint.position_tables()
    return FileInfo(
        path=checkpoint.file.path,
        kind=checkpoint.file.kind,
        layout=checkpoint.layout.name,
        variant=checkpoint.variant,
        classes=checkpoint.classes,
        grid=tables[0].grid if len(tables) == 1 else None,
        sizes=checkpoint.sizes,
        options=checkpoint.options,
        parameters=sum(math.prod(entry.shape) for entry in checkpoint.entries.values()),
        arrays=dict(checkpoint.file.entries),
        stated_size=checkpoint.sidecar.image_size,
        prefix=checkpoint.wrapper,
        project=checkpoint.layout.project,
        input_size=checkpoint.sidecar.input_size,
    )


def adapt_config(
    config: ViTConfig | ResNetConfig,
    info: FileInfo,
    chosen: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
) -> ViTConfig | ResNetConfig:
    """Changes a configuration to what a checkpoint's project computes.

    GELU, the epsilon of the norms, the number of heads, tokens and their positions, pooling,
    preprocessing and image size (see `find_size`) follow the file. The layer before the head does
    where the number of classes agrees. Files of other projects than the paper's have no dropout.

    Args:
        config: The variant's configuration, with the caller's changes.
        info: The checkpoint's architecture.
        chosen: Fields that the caller chose; they stay.
        options: Fields that are known of this checkpoint from elsewhere; they override `info`.

    Returns:
        A configuration of the same family.

    Raises:
        CheckpointError: If the file's statistics are of neither one, three nor the model's number
            of channels.
    """
    fields = field_names(config)
    wanted = {**info.options, **(options or {})}
    if "image_size" not in {*chosen, *wanted}:
        wanted["image_size"] = find_size(config, info, chosen).value
    if config.classes is None or config.classes != info.classes:
        wanted["pre_logits"] = None  # dropped for other classes, as the paper fine-tunes
        wanted.pop("head_bias", None)
    if info.sizes.get("width") != getattr(config, "width", None):
        wanted.pop("num_heads", None)  # of another model: loading lists what does not fit
    if "preprocessing" in wanted and "preprocessing" not in chosen:
        wanted["preprocessing"] = _for_channels(wanted["preprocessing"], config.channels, info)
    if info.project != "official":  # 0.1 of L/16 and H/14 is that project's rate
        wanted.setdefault("dropout_rate", 0.0)
    stem = wanted.pop("stem", None)
    if stem is not None and isinstance(config, ViTConfig) and config.stem is not None:
        wanted["stem"] = dataclasses.replace(config.stem, **stem)
    changes = {
        field: value for field, value in wanted.items() if field in fields and field not in chosen
    }
    return replace_fields(config, **changes)


def find_size(
    config: ViTConfig | ResNetConfig, info: FileInfo, chosen: Collection[str] = ()
) -> Setting:
    """Finds the size of images for a checkpoint, and where it comes from.

    It is the size that the preprocessing of the sidecar files gives to the model; a side that is no
    whole number of patches is rounded down, as a convolution over patches does. Where the files do
    not say, it is the size that the positions are for, then the variant's.

    Args:
        config: The variant's configuration, with the caller's changes.
        info: The checkpoint's architecture.
        chosen: Fields that the caller chose.

    Raises:
        CheckpointError: If the stated size is smaller than a patch.
    """
    if isinstance(config, ResNetConfig):
        return info.input_size or Setting(config.image_size, "the architecture")
    size = _position_size(config, info, chosen)
    origin = "the architecture"
    if info.stated_size == size:
        origin = "config.json"
    elif info.grid is not None:
        origin = "the file's positions"
    other_patches = "patch_size" in chosen and config.patch_size != info.patch_size
    if info.input_size is None or config.any_size or config.takes_patches or other_patches:
        return Setting(size, origin)
    (height, width), origin = info.input_size
    step = pixels_of((1, 1), config.patch_size, config.stem)
    patches = grid_of((height, width), config.patch_size, config.stem)
    if patches != dataclasses.replace(config, image_size=size).grid:
        size = height - height % step[0], width - width % step[1]
    if 0 in size:
        raise CheckpointError(
            f"{info.path}: {origin} says images of {height} x {width} pixels, smaller than a patch "
            f"of {step[0]} x {step[1]}. Correct it, or pass input_shape=(height, width, channels)."
        )
    if size != (height, width):
        origin += f", {height} x {width} in whole patches of {step[0]} x {step[1]}"
    return Setting(size, origin)


def _position_size(config: ViTConfig, info: FileInfo, chosen: Collection[str]) -> tuple[int, int]:
    """Pixels that the file's positions are for, or the variant's if the file does not say."""
    if "patch_size" in chosen and config.patch_size != info.patch_size:
        return config.image_size
    if info.grid is None:
        unlearned = info.options.get("position_embedding") == "none"
        return (info.stated_size if unlearned else None) or config.image_size
    stem = info.sizes.get("stem")
    if config.stem is not None and stem is not None and stem.stages == config.stem.stages:
        return info.image_size or config.image_size
    return pixels_of(info.grid, config.patch_size, config.stem)


def _for_channels(preprocessing: Preprocessing, channels: int, info: FileInfo) -> Preprocessing:
    """Keeps statistics of the model's channels, and averages those of colour for other channels."""
    count = len(preprocessing.mean)
    if count in (1, channels):
        return preprocessing
    if count != 3:
        raise CheckpointError(
            f"{info.path} comes with mean and standard deviation of {count} channels, and the "
            f"model has {channels}. Pass preprocessing=keras_vit.Preprocessing(mean, std) with 1 "
            f"or {channels} values each, or correct image_mean and image_std next to the file."
        )
    mean, std = ((sum(values) / len(values),) for values in (preprocessing.mean, preprocessing.std))
    return dataclasses.replace(preprocessing, mean=mean, std=std)
