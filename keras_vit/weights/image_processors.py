"""Preprocessing of evaluation as timm and transformers publish it with their checkpoints.

Every key that changes pixels is read; a key or value that cannot be followed is an error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.config import CROP_MODES, IMAGENET_STATISTICS, Preprocessing
from keras_vit.errors import CheckpointError
from keras_vit.families.keys import Processor
from keras_vit.families.table import FAMILIES

# By name without its ending; transformers 5.23, and 4 for what left it.
PROCESSORS = {name: each for family in FAMILIES for name, each in family.processors.items()}
# Names of those that are written, by how images are cropped.
WRITTEN = {each.writes: name for name, each in PROCESSORS.items() if each.writes}

_RESAMPLES = {2: "bilinear", 3: "bicubic"}  # numbers of Pillow
_FILTERS = {0: "nearest", 1: "Lanczos", 4: "box", 5: "Hamming"}
_ENDINGS = ("Fast", "Pil", "ImageProcessor", "FeatureExtractor")
# Keys that are followed, and keys that do not change the pixels of an image file.
_FOLLOWED = {
    "do_resize", "size", "resample", "default_to_square", "do_center_crop", "crop_size",
    "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
}  # fmt: skip
# Fields of `Preprocessing` that these formats cannot say, as `save_pretrained` writes them.
OWN = "keras_vit"
_HARMLESS = {
    "image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb",
    "data_format", "input_data_format", "return_tensors", "device", "disable_grouping",
    "_valid_processor_keys", "image_seq_length", "auto_map", "crop_pct",
}  # fmt: skip


def timm_preprocessing(fields: Mapping[str, Any]) -> Preprocessing:
    """Reads timm's `pretrained_cfg` as its `resolve_data_config` and `create_transform` do.

    Args:
        fields: `mean` and `std` in [0, 1], `crop_pct`, `crop_mode`, `interpolation`; others have
            no influence on preprocessing.

    Raises:
        CheckpointError: If a value cannot be followed. The message lists all.
    """
    mean, std = (
        fields.get(key) or [value / 255 for value in default]
        for key, default in (("mean", IMAGENET_STATISTICS.mean), ("std", IMAGENET_STATISTICS.std))
    )
    interpolation = fields.get("interpolation") or "bicubic"
    mode, ratio = fields.get("crop_mode") or "center", fields.get("crop_pct") or 0.875
    problems = [
        f"{key}={value!r}"
        for key, value, known in (
            ("mean", mean, _are_numbers(mean)),
            ("std", std, _are_numbers(std) and min(std) > 0),
            ("interpolation", interpolation, interpolation in _RESAMPLES.values()),
            ("crop_mode", mode, mode in CROP_MODES),
            ("crop_pct", ratio, isinstance(ratio, int | float) and 0 < ratio <= 1),
        )
        if not known
    ]
    _check("pretrained_cfg of config.json", problems)
    whole = mode == "squash" and ratio == 1
    crop = (None, "timm", "center") if whole else (float(ratio), "timm", mode)
    return _make(fields, mean, std, 255, interpolation, *crop)


def transformers_preprocessing(fields: Mapping[str, Any]) -> Preprocessing:
    """Reads `preprocessor_config.json` as the image processor of transformers on Pillow does.

    The checkpoints were published with these processors. Those on torchvision tensors, the default
    of transformers 5, differ from them by less than a tenth of a level on average (docs/data.md).

    Args:
        fields: Content of the file.

    Raises:
        CheckpointError: If a key or value cannot be followed. The message lists all.
    """
    default = find_processor(fields)
    read = {key: value for key, value in fields.items() if value is not None}
    known = {*_FOLLOWED, *_HARMLESS, OWN, *(default.rules if default else ())}
    unknown = {key: value for key, value in read.items() if key not in known}
    problems = [f"{key}={value!r}" for key, value in unknown.items() if value is not False]
    if default is None:
        name = fields.get("image_processor_type") or fields.get("feature_extractor_type")
        problems.append(f"the image processor {name!r}, not one of {', '.join(PROCESSORS)}")
        default = PROCESSORS[WRITTEN["whole"]]
    resample = read.get("resample", default.resample)
    if resample not in _RESAMPLES:
        problems.append(f"resample={resample!r} ({_FILTERS.get(resample, 'unknown')})")
    if not read.get("do_resize", True):
        problems.append("do_resize=False")
    factor = read.get("rescale_factor", 1 / 255) if read.get("do_rescale", True) else 1.0
    scale = 255.0 if abs(factor * 255 - 1) < 1e-6 else 1 / factor
    mean, std = (0.0,), (1.0,)
    if read.get("do_normalize", True):
        ours = default.statistics
        mean = read.get("image_mean", [value / 255 for value in ours.mean])
        std = read.get("image_std", [value / 255 for value in ours.std])
        if not _are_numbers(mean) or not _are_numbers(std) or min(std) <= 0:
            problems.append(f"image_mean={mean!r} and image_std={std!r}")
    mode, ratio = _find_crop(read, default, problems)
    _check("preprocessor_config.json", problems)
    return _make(fields, mean, std, scale, _RESAMPLES[resample], ratio, "transformers", mode)


def _make(
    fields: Mapping[str, Any], mean: Sequence[float], std: Sequence[float], scale: float, *rest: Any
) -> Preprocessing:
    """Scales the statistics, and follows the fields of this package alone."""
    mean, std = (tuple(scale * value for value in values) for values in (mean, std))
    return dataclasses.replace(Preprocessing(mean, std, *rest), **(fields.get(OWN) or {}))


def find_processor(fields: Mapping[str, Any]) -> Processor | None:
    """Finds the image processor of a file; one without a name has to state its sizes in full."""
    name = fields.get("image_processor_type") or fields.get("feature_extractor_type")
    name = str(name or WRITTEN["whole"])
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return PROCESSORS.get(name)


def processor_size(fields: Mapping[str, Any]) -> tuple[tuple[int, int], str] | None:
    """Finds the size of the images that a processor gives to its model.

    Args:
        fields: Content of `preprocessor_config.json`.

    Returns:
        Pixels along (height, width), of the crop where it crops, and the key that says so; `None`
        where the file states no size, or the preprocessing cannot be followed.
    """
    default = find_processor(fields)
    read = {key: value for key, value in fields.items() if value is not None}
    if default is None or not {"size", "crop_size"} & read.keys():
        return None
    sides, cut = _resized_and_cut(read, default)
    found = cut or sides
    if found is None or len(found) != 2 or not read.get("do_resize", True):
        return None
    return (found[0], found[1]), "crop_size" if cut else "size"


def _resized_and_cut(
    read: Mapping[str, Any], default: Processor
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Sides of the resized image, and of the crop in its centre if there is one."""
    size, crop = read.get("size", default.size), read.get("crop_size", default.crop_size)
    square = read.get("default_to_square", default.square)
    sides = _sides(size if not isinstance(size, int) or square else {"shortest_edge": size})
    does_crop = read.get("do_center_crop", default.crop_size is not None)
    return sides, _sides(crop) if does_crop else None


def _find_crop(
    read: Mapping[str, Any], default: Processor, problems: list[str]
) -> tuple[str, float | None]:
    """Crop mode and ratio: how the resized image and the crop in its centre relate."""
    size, crop = read.get("size", default.size), read.get("crop_size", default.crop_size)
    sides, cut = _resized_and_cut(read, default)
    if sides is None or (cut is None and (len(sides) == 1 or read.get("do_center_crop"))):
        problems.append(f"size={size!r} with crop_size={crop!r}")
        return "center", None
    if cut is None or cut == sides:
        return "center", None
    mode = "center" if len(sides) == 1 else "squash"
    ratio = cut[0] / sides[0]
    while math.floor(cut[0] / ratio) < sides[0]:  # rounding of the last bit
        ratio = math.nextafter(ratio, 0)
    if tuple(math.floor(side / ratio) for side in cut) != (sides * 2)[:2] or ratio > 1:
        problems.append(f"size={size!r} with crop_size={crop!r}")
    return mode, ratio


def _sides(size: Any) -> tuple[int, ...] | None:
    """Height and width, or the shorter side alone; `None` for anything else."""
    if isinstance(size, int):
        size = {"height": size, "width": size}
    if isinstance(size, list | tuple) and len(size) == 2:
        size = {"height": size[0], "width": size[1]}
    if not isinstance(size, Mapping):
        return None
    stated = {key: value for key, value in size.items() if value is not None}
    for keys in (("height", "width"), ("shortest_edge",)):
        if stated.keys() == set(keys) and all(type(v) is int and v > 0 for v in stated.values()):
            return tuple(stated[key] for key in keys)
    return None


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(v, int | float) for v in values)


def _check(file: str, problems: list[str]) -> None:
    if problems:
        raise CheckpointError(
            f"{file} asks for preprocessing that cannot be followed: {'; '.join(problems)}. Remove "
            "the file, and pass `preprocessing=keras_vit.Preprocessing(...)` with what you need."
        )
