"""Text towers in files of two towers: names, sizes, settings and values."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from keras_vit.config import Preprocessing
from keras_vit.errors import CheckpointError, CheckpointMismatchError
from keras_vit.families.clip import (
    OPEN_CLIP_IMAGE_KEYS,
    OPEN_CLIP_KEYS,
    OPEN_CLIP_TEXT_KEYS,
    TEXT_FIELDS,
)
from keras_vit.families.keys import TextType
from keras_vit.families.rules import Layout
from keras_vit.families.table import FAMILIES
from keras_vit.image_text.text_tower import TextConfig
from keras_vit.reading import read_json
from keras_vit.runtime.model import Model
from keras_vit.weights.array_file import ArrayFile, Entry
from keras_vit.weights.save import Sized
from keras_vit.weights.sidecar import CONFIG, KeyReader
from keras_vit.weights.timm_settings import timm_settings

OPEN_CLIP_CONFIG = "open_clip_config.json"
TRUNK = "visual.trunk."  # of timm's models in open_clip
_LAYOUTS = tuple(layout for family in FAMILIES for layout in family.text_layouts)
_TYPES = {name: kind for family in FAMILIES for name, kind in family.text_types.items()}
_TABLE, _SCALE, _BIAS = "token_embedding/embeddings", "logit_scale", "logit_bias"
_SCAN = "encoderblock/"  # all blocks stacked in one array, in big_vision
_LISTED = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """What sidecar files say of two towers.

    Args:
        text: Fields of `TextConfig`, and whether there must be a projection.
        sizes: Sizes that the arrays must agree with: key, field, value.
        image: Options of the image tower, beyond what its own files say.
    """

    text: dict[str, Any]
    sizes: tuple[tuple[str, str, Any], ...] = ()
    image: dict[str, Any] = dataclasses.field(default_factory=dict)


class TextFile:
    """The text tower in an open file of two towers.

    Args:
        file: The file.

    Attributes:
        layout: Layout of the text tower.
        prefix: Prefix of its names.

    Raises:
        CheckpointError: If the file has none.
    """

    def __init__(self, file: ArrayFile):
        self.file = file
        found = [
            (layout, prefix)
            for layout in _LAYOUTS
            for prefix in layout.prefixes
            if layout.kind == file.kind
            for rule in layout.rules
            if rule.path == _TABLE and f"{prefix}{rule.keys[0]}" in file.entries
        ]
        if not found:
            raise CheckpointError(
                f"{file.path} has no text tower that is known here: CLIP, SigLIP and their "
                "relatives in the names of transformers, open_clip or big_vision. "
                "`keras_vit.from_pretrained` loads image towers alone."
            )
        named = [(dict(_plain_names(file, *each)), *each) for each in found]
        self._sources, self.layout, self.prefix = max(
            named, key=lambda each: sum(map(each[1].knows, each[0]))
        )
        unknown = [name for name in self._sources if not self.layout.knows(name)]
        if unknown:
            rest = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
            raise CheckpointMismatchError(
                f"{file.path} ({self.layout.name} layout) has arrays of the text tower that no "
                f"model of this package has, and nothing was loaded: "
                f"{', '.join(sorted(unknown)[:_LISTED])}{rest}."
            )
        self.entries = {name: self._entry(name) for name in self._sources}

    def _entry(self, name: str) -> Entry:
        key, index = self._sources[name]
        entry = self.file.entries[key]
        return entry if index is None else Entry(entry.shape[1:], entry.dtype)

    @cached_property
    def settings(self) -> Settings:
        """What the sidecar files in its folder say."""
        folder = self.file.path.parent
        if self.layout.project == "open_clip":
            return _read_open_clip(folder)
        if self.layout.project == "transformers":
            return _read_transformers(folder)
        return Settings({**self.layout.options, "projects": False})

    def config(self) -> TextConfig:
        """The architecture, from shapes and sidecar files.

        Raises:
            CheckpointError: If an array is missing, or files and arrays disagree.
        """
        vocabulary, width = self._shape(_TABLE)
        depth = 0
        while self._has(f"block_{depth}/mlp/hidden/kernel"):
            depth += 1
        projected = self._has("projection/kernel")
        stated = dict(self.settings.text)
        if stated.pop("projects", True) and not projected:
            raise CheckpointMismatchError(
                f"{self.file.path} lacks the projection of texts to the space of images. Fetch it "
                "again."
            )
        sizes = {
            "vocabulary_size": vocabulary,
            "width": width,
            "depth": depth,
            "mlp_dim": self._shape("block_0/mlp/hidden/kernel")[-1],
            "context_length": self._shape("position_embedding/embedding")[-2],
        }
        wrong = [
            f"{where} = {value!r:.40}, the arrays have {sizes[field]}"
            for where, field, value in self.settings.sizes
            if value != sizes[field]
        ]
        if wrong:
            raise CheckpointError(f"{self.file.path}: {'; '.join(wrong)}: it is of another model.")
        if self.file.kind == "npz":  # kernels are split by heads
            found = self.layout.find("block_0/attention/qkv/kernel", None, self._sources)
            assert found is not None
            sizes["num_heads"] = self.entries[found[1][0]].shape[-2]
        return TextConfig(
            **{
                **sizes,
                "projection_size": self._shape("projection/kernel")[-1] if projected else None,
                "projection_bias": self._has("projection/bias"),
                **stated,
            }
        )

    def _has(self, path: str) -> bool:
        found = self.layout.find(path, None, self._sources)
        return found is not None and found[1][0] in self._sources

    def _shape(self, path: str) -> tuple[int, ...]:
        """Shape of a variable, from those of its arrays."""
        found = self.layout.find(path, None, self._sources)
        assert found is not None
        rule, keys = found
        missing = [key for key in keys if key not in self.entries]
        if missing:
            raise CheckpointMismatchError(f"{self.file.path} lacks {', '.join(missing)}.")
        views = [np.broadcast_to(np.float32(0), self.entries[key].shape) for key in keys]
        return rule.to_ours(views).shape

    def load(self, model: Model, config: TextConfig) -> None:
        """Loads the text tower, completely or not at all.

        Raises:
            CheckpointMismatchError: If it does not fit; lists all that does not.
        """
        problems, matches = [], []
        for variable in model.weights:
            found = self.layout.find(variable.path, None, self._sources)
            if found is None:
                problems.append(f"the layout has no array for {variable.path}")
                continue
            rule, keys = found
            shapes = rule.file_shapes(tuple(variable.shape), config.num_heads)
            for key, shape in zip(keys, shapes, strict=True):
                entry = self.entries.get(key)
                if entry is None:
                    problems.append(f"{self.original(key)!r} is missing")
                elif entry.shape != shape:
                    problems.append(f"{self.original(key)!r} is {entry.shape}, needed is {shape}")
            matches.append((variable, rule, keys))
        used = {key for _, _, keys in matches for key in keys}
        problems += [
            f"{self.original(name)!r} has no variable"
            for name in self._sources.keys() - used
            if name.rpartition("/")[2] not in ("t", "b", _SCALE, _BIAS) and not self._is_added(name)
        ]
        if problems:
            lines = "".join(f"\n  {each}" for each in problems[:_LISTED])
            raise CheckpointMismatchError(
                f"The text tower in {self.file.path} ({self.layout.name} layout) does not fit, and "
                f"nothing was loaded. {len(problems)} problems:{lines}"
            )
        stacks: dict[str, np.ndarray] = {}
        for variable, rule, keys in matches:
            value = rule.to_ours([self._read(key, stacks) for key in keys])
            if variable.path.startswith("position_embedding/") and self._has(
                "position_embedding/added"
            ):
                value = value + self._value("position_embedding/added")
            variable.assign(value)

    def _is_added(self, name: str) -> bool:
        found = self.layout.find("position_embedding/added", None, self._sources)
        return found is not None and name in found[1]

    def _read(self, name: str, stacks: dict[str, np.ndarray]) -> np.ndarray:
        key, index = self._sources[name]
        if index is None:
            return self.file.read(key)
        if key not in stacks:
            stacks[key] = self.file.read(key)
        return stacks[key][index]

    def _value(self, path: str) -> np.ndarray:
        found = self.layout.find(path, None, self._sources)
        assert found is not None
        return found[0].to_ours([self._read(key, {}) for key in found[1]])

    def scalar(self, path: str) -> float | None:
        """The value of `"logit_scale"` or `"logit_bias"`, `None` if the file has none."""
        return float(self._value(path).reshape(-1)[0]) if self._has(path) else None

    def original(self, name: str) -> str:
        """The name in the file of an array."""
        return self.layout.original(name, self.prefix)

    def arrays(
        self, model: Model, config: TextConfig, scale: float, bias: float | None
    ) -> dict[str, Sized]:
        """The arrays of a text tower, in the names and shapes of this file."""
        values = {each.path: np.asarray(each.numpy(), "float32") for each in model.weights}
        values[_SCALE] = np.asarray(scale, "float32")
        if bias is not None:
            values[_BIAS] = np.asarray(bias, "float32")
        arrays: dict[str, Sized] = {}
        for path, value in values.items():
            found = self.layout.find(path, None, self._sources)
            assert found is not None
            rule, keys = found
            if path in (_SCALE, _BIAS):
                made = [value.reshape(self.entries[keys[0]].shape)]
            else:
                made = rule.to_file(value, config.num_heads)
            for key, array in zip(keys, made, strict=True):
                arrays[self.original(key)] = (array.shape, functools.partial(np.asarray, array))
        return arrays


def _plain_names(
    file: ArrayFile, layout: Layout, prefix: str
) -> Iterator[tuple[str, tuple[str, int | None]]]:
    """Names without prefix of the text tower's arrays, with name and index in the file."""
    for key, entry in file.entries.items():
        name = key
        if not layout.is_unprefixed(key):
            if not key.startswith(prefix):
                continue
            name = key[len(prefix) :]
        if layout.is_other(name):
            continue
        if _SCAN not in name:
            yield name, (key, None)
            continue
        for index in range(entry.shape[0] if entry.shape else 0):
            yield name.replace(_SCAN, f"encoderblock_{index}/"), (key, index)


def _read_config(path: pathlib.Path) -> dict[str, Any]:
    if not path.exists():
        raise CheckpointError(
            f"There is no {path.name} next to the checkpoint, and its arrays do not tell heads, "
            "GELU and pooling of the text tower. Fetch it from the same repository."
        )
    content = read_json(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is no object of JSON. Fetch it again.")
    return content


def _settled(reader: KeyReader, path: pathlib.Path) -> dict[str, Any]:
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
    reader = KeyReader()
    stated = reader.part(config, "text_config")
    again = reader.part(config, "text_config_dict")
    if again:  # it overrides the other, with its defaults
        stated = {**stated, **kind.defaults, **again}
    reader.read({**kind.defaults, **stated}, kind.rules, f"{CONFIG}: text_config")
    text = {**kind.fields, **_settled(reader, path)}
    if kind.old_end is not None and text.get("end_id") == kind.old_end:
        text["end_id"] = None
    return Settings(text, tuple(reader.sizes))


def _read_open_clip(folder: pathlib.Path) -> Settings:
    path = folder / OPEN_CLIP_CONFIG
    content, reader = _read_config(path), KeyReader()
    model = reader.part(content, "model_cfg")
    parts = reader.part(model, "text_cfg"), reader.part(model, "vision_cfg")
    reader.read(model, OPEN_CLIP_KEYS, f"{path.name}: model_cfg")
    text_reader, image_reader = KeyReader(), KeyReader()
    text_reader.read(parts[0], OPEN_CLIP_TEXT_KEYS, f"{path.name}: text_cfg")
    image_reader.read(parts[1], OPEN_CLIP_IMAGE_KEYS, f"{path.name}: vision_cfg")
    shared = {"gelu": "exact", **_settled(reader, path)}
    text = {"num_heads": 8, "end_id": 2, "norm_epsilon": 1e-5, **TEXT_FIELDS, **shared}
    text |= _settled(text_reader, path)
    text["projects"] = parts[0].get("proj_type", "linear") != "none"
    if parts[0].get("pool_type", "argmax") != "eos":
        text["end_id"] = None
    name = parts[1].get("timm_model_name")
    if name is None:
        heads = parts[1].get("width", 768) // parts[1].get("head_width", 64)
        image = {"num_heads": heads, **shared, **_settled(image_reader, path)}
    else:
        found = timm_settings(str(name))
        if found is None:
            raise CheckpointError(f"{path}: timm's {str(name)[:80]!r} is not known here.")
        image = {**_settled(image_reader, path), **found}
    pixels = reader.part(content, "preprocess_cfg")
    if pixels:
        image["preprocessing"] = _preprocessing(pixels, path)
    return Settings(text, tuple(text_reader.sizes), image)


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
