"""What the files next to a checkpoint of two towers say: of transformers and of open_clip."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

from keras_vit.config import Preprocessing
from keras_vit.errors import CheckpointError
from keras_vit.families.clip import (
    OPEN_CLIP_IMAGE_KEYS,
    OPEN_CLIP_KEYS,
    OPEN_CLIP_TEXT_KEYS,
    TEXT_FIELDS,
)
from keras_vit.families.keys import TextType
from keras_vit.families.table import FAMILIES
from keras_vit.reading import read_json, refusing
from keras_vit.weights.sidecar import CONFIG, Sidecar
from keras_vit.weights.timm_settings import timm_settings

OPEN_CLIP_CONFIG = "open_clip_config.json"
MAX_LOGIT_SCALE = math.log(100)  # of CLIP; open_clip clamps to it after every step
_TYPES = {name: kind for family in FAMILIES for name, kind in family.text_types.items()}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What sidecar files say of two towers.

    Args:
        text: Fields of `TextConfig`.
        sizes: Sizes that the arrays must agree with: key, field, value.
        image: Options of the image tower, beyond what its own files say.
        projects: Whether the text tower must have a projection.
        logit_scale: Logarithm of the scale of the logits, where the arrays do not have it.
        max_logit_scale: The largest that is used without a bias, if there is a limit.
    """

    text: dict[str, Any]
    sizes: tuple[tuple[str, str, Any], ...] = ()
    image: dict[str, Any] = dataclasses.field(default_factory=dict)
    projects: bool = True
    logit_scale: float | None = None
    max_logit_scale: float | None = None


def read_settings(folder: pathlib.Path, project: str) -> Settings:
    """Reads the configuration in the folder of a checkpoint of transformers or open_clip.

    Raises:
        CheckpointError: If there is none, or it asks for something else; lists everything.
    """
    return _read_open_clip(folder) if project == "open_clip" else _read_transformers(folder)


def _read_config(path: pathlib.Path) -> dict[str, Any]:
    if not path.exists():
        raise CheckpointError(
            f"There is no {path.name} next to the checkpoint, and its arrays do not tell heads, "
            "GELU and pooling of the text tower. Fetch it from the same repository."
        )
    with refusing(path, "is no object of JSON", kind=CheckpointError):
        content = read_json(path)
        if not isinstance(content, dict):
            raise TypeError(f"a {type(content).__name__}")
        return content


def _settled(reader: Sidecar, path: pathlib.Path) -> dict[str, Any]:
    """Fields that a file sets.

    Raises:
        CheckpointError: If it asks for something else; lists everything.
    """
    if reader.refusals:
        lines = "".join(f"\n  {refusal.text}" for refusal in reader.refusals)
        raise CheckpointError(
            f"{path} asks for what the towers of this package do not compute, and nothing was "
            f"loaded:{lines}"
        )
    return {field: setting.value for field, setting in reader.settings.items()}


def _read_transformers(folder: pathlib.Path) -> Settings:
    path = folder / CONFIG
    config = _read_config(path)
    model_type = config.get("model_type")
    kind: TextType | None = _TYPES.get(str(model_type))
    if kind is None:
        raise CheckpointError(
            f"{path}: model_type = {str(model_type)[:80]!r} is no model of images and texts that "
            f"is known here: {', '.join(_TYPES)}."
        )
    reader = Sidecar()
    stated = reader.part(config, "text_config")
    again = reader.part(config, "text_config_dict")
    if again:  # it overrides the other, with its defaults
        stated = {**stated, **kind.defaults, **again}
    reader.read({**kind.defaults, **stated}, kind.rules, f"{CONFIG}: text_config")
    text = {**kind.fields, **_settled(reader, path)}
    if kind.old_end is not None and text.get("end_id") == kind.old_end:
        text["end_id"] = None
    temperature = _positive(config, kind.temperature, path)
    limit = _positive(config, kind.max_scale, path)
    return Settings(
        text,
        tuple(reader.sizes),
        projects=kind.projects,
        logit_scale=None if temperature is None else -math.log(temperature),
        max_logit_scale=None if limit is None else math.log(limit),
    )


def _positive(
    config: dict[str, Any], named: tuple[str, float] | None, path: pathlib.Path
) -> float | None:
    """A positive number by its key and default; `None` without a key."""
    if named is None:
        return None
    value = config.get(*named)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(f"{path}: {named[0]} = {value!r:.80} is no positive number.")
    return float(value)


def _read_open_clip(folder: pathlib.Path) -> Settings:
    path = folder / OPEN_CLIP_CONFIG
    content, reader = _read_config(path), Sidecar()
    model = reader.part(content, "model_cfg")
    parts = reader.part(model, "text_cfg"), reader.part(model, "vision_cfg")
    pixels = reader.part(content, "preprocess_cfg")
    reader.read(model, OPEN_CLIP_KEYS, f"{path.name}: model_cfg")
    text_reader, image_reader = Sidecar(), Sidecar()
    text_reader.read(parts[0], OPEN_CLIP_TEXT_KEYS, f"{path.name}: text_cfg")
    image_reader.read(parts[1], OPEN_CLIP_IMAGE_KEYS, f"{path.name}: vision_cfg")
    shared = {"gelu": "exact", **_settled(reader, path)}
    text = {"num_heads": 8, "end_id": 2, "norm_epsilon": 1e-5, **TEXT_FIELDS, **shared}
    text |= _settled(text_reader, path)
    projects = parts[0].get("proj_type", "linear") != "none"
    if parts[0].get("pool_type", "argmax") != "eos":
        text["end_id"] = None
    name = parts[1].get("timm_model_name")
    if name is None:
        image = {"pooling": "token", "norm_after_pooling": False, **shared}
        image |= _settled(image_reader, path)
        width, head_width = image.pop("width", 768), image.pop("head_width", 64)
        image["num_heads"] = max(1, width // head_width)
    else:
        found = timm_settings(str(name))
        if found is None:
            raise CheckpointError(
                f"{path}: the image tower, timm's {str(name)[:80]!r}, is no Vision Transformer "
                "that is known here, and nothing was loaded. Take a checkpoint whose image tower "
                "is one."
            )
        _settled(image_reader, path)
        image = found
    if pixels:
        image["preprocessing"] = _preprocessing(pixels, path)
    return Settings(text, tuple(text_reader.sizes), image, projects, None, MAX_LOGIT_SCALE)


def _preprocessing(fields: dict[str, Any], path: pathlib.Path) -> Preprocessing:
    """Preprocessing of images by `preprocess_cfg`."""
    mode = fields.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash") or fields.get("mode", "RGB") != "RGB":
        raise CheckpointError(
            f"{path}: preprocess_cfg asks for {fields!r:.200}, which is not known here."
        )
    try:
        mean, std = (tuple(255 * value for value in fields[key]) for key in ("mean", "std"))
        ratio = None if mode == "squash" else 1.0
        return Preprocessing(mean, std, fields.get("interpolation", "bicubic"), ratio, "timm")
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: preprocess_cfg is not understood ({error}).") from error
