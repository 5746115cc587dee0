"""Settings of `keras-vit train`: flags, keys of a TOML file, and the file of a run.

Each field of `RunSettings`, `Recipe`, `Augmentation`, the configurations of models and
`Preprocessing` is a flag and a key of `--config`. Names, types and help come from the dataclasses.
Nothing here imports Keras, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import pathlib
import re
import reprlib
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from keras_vit.cli.run_settings import RunSettings
from keras_vit.config import BlockOptions, Preprocessing, ResNetConfig, ViTConfig
from keras_vit.data.augmentation import Augmentation
from keras_vit.fields import descriptions_of
from keras_vit.files import write_text
from keras_vit.reading import read_toml
from keras_vit.train.hyperparameters import Recipe

_MAX_BYTES = 1_000_000  # of a file of settings
_MOST = 1 << 63  # above all integers: those of TOML and of TensorFlow have 64 bits
_LISTED = 20
_SHORT = reprlib.Repr()
_SHORT.maxstring = 100
NONE = "none"  # in flags and files, because TOML has no null
# Headings of `--help`, by the group of a setting.
HEADINGS = {
    "run": "run",
    "recipe": "hyperparameters; by default those of the recipe",
    "augmentation": "augmentation; by default that of the recipe",
    "architecture": "architecture; by default that of the model",
    "preprocessing": "preprocessing; by default that of the model",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A flag of `keras-vit train`, and a key of `--config`.

    Args:
        name: The key; the flag has hyphens.
        group: Heading in `--help` and in the file.
        kind: Its type, with `None` where that is a value.
        summary: What it is, from the description of its field.
    """

    name: str
    group: str
    kind: Any
    summary: str

    @property
    def flag(self) -> str:
        """The flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """Whether the flag has no value: `--flip` or `--no-flip`."""
        return _without_none(self.kind) is bool

    def parse(self, text: str) -> Any:
        """Reads the value of a flag.

        Raises:
            ValueError: If the text is no value of this setting.
        """
        if text.lower() == NONE:
            return self.check(NONE)
        kind = _without_none(self.kind)
        numbers = typing.get_args(kind) or (kind,)
        if str in numbers:
            names = [part.strip() for part in text.split(",") if part.strip()]
            return self.check(names if typing.get_origin(kind) is tuple else text)
        try:
            values = [
                int(part) if part.strip().isdigit() else float(part) for part in text.split(",")
            ]
        except ValueError:
            raise self._wrong(text) from None
        return self.check(values[0] if len(values) == 1 else values)

    def check(self, value: Any) -> Any:
        """Converts a value of a TOML file.

        Raises:
            ValueError: If it is no value of this setting.
        """
        try:
            return _convert(value, self.kind)
        except ValueError:
            raise self._wrong(value) from None

    def _wrong(self, value: Any) -> ValueError:
        expected = re.sub(r"<class '(\w+)'>", r"\1", str(self.kind)).replace("None", NONE)
        return ValueError(f"{self.name} must be {expected}. Received: {_SHORT.repr(value)}.")


def _without_none(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        return next(each for each in typing.get_args(kind) if each is not type(None))
    return kind


def _convert(value: Any, kind: Any) -> Any:
    """A value of a file as one of a kind; raises a ValueError if it is none."""
    kinds = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        if value == NONE and type(None) in kinds:
            return None
        for each in kinds:
            with contextlib.suppress(ValueError):
                return _convert(value, each)
        raise ValueError
    if kinds:
        values = list(value) if isinstance(value, list | tuple) else [value]
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(values)
        elif len(values) == 1 and len(set(kinds)) == 1:
            values = values * len(kinds)  # a square
        return tuple(_convert(*pair) for pair in zip(values, kinds, strict=True))
    if kind is str and type(value) in (int, float):
        return str(value)  # such as validation = 0.1
    is_number = kind in (int, float) and type(value) in (int, kind)
    fits = abs(value) < _MOST if is_number else type(value) is kind
    if not fits:
        raise ValueError
    return float(value) if kind is float else value


# Fields that follow from the data or the name of the model, or have keys of their own.
_FIXED = {"classes", "classifier_activation", "stem", "rope", "preprocessing", "any_size", "block"}


def settings_of_fields(*sources: tuple[type, str, str, Collection[str]]) -> dict[str, Setting]:
    """Makes settings of the fields of dataclasses.

    Args:
        *sources: A dataclass, the group of its settings, what stands before their names, and the
            fields that are none.

    Returns:
        Settings by their name; of equal names the first.
    """
    found: dict[str, Setting] = {}
    for source, group, prefix, left_out in sources:
        kinds, texts = typing.get_type_hints(source), descriptions_of(source)
        for field in dataclasses.fields(source):
            name = prefix + field.name
            if field.name not in left_out and name not in found:
                found[name] = Setting(name, group, kinds[field.name], _plain(texts[field.name]))
    return found


def _plain(text: str) -> str:
    """A text of a docstring as it is printed in `--help`."""
    return re.sub(r"\bNone\b", NONE, text.replace("`", "").replace('"', ""))


SETTINGS = settings_of_fields(
    (RunSettings, "run", "", ()),
    (Recipe, "recipe", "", ("augmentation",)),
    (Augmentation, "augmentation", "", ()),
    (ViTConfig, "architecture", "", _FIXED),
    (BlockOptions, "architecture", "", _FIXED),
    (ResNetConfig, "architecture", "", _FIXED),
    (Preprocessing, "preprocessing", "preprocessing_", ()),
)


def read_settings(
    path: str | pathlib.Path, known: Mapping[str, Setting] = SETTINGS, command: str = "train"
) -> dict[str, Any]:
    """Reads the settings of a run from a TOML file.

    Args:
        path: The file.
        known: The settings that it may hold.
        command: The command whose settings these are, for messages.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no TOML, or a key or a value is wrong. The message lists all problems.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {str(path)!r} with settings (--config).")
    found, problems = {}, []
    for name, value in read_toml(path, _MAX_BYTES).items():
        if name not in known:
            problems.append(_unknown(name, value, known))
            continue
        try:
            found[name] = known[name].check(value)
        except ValueError as error:
            problems.append(str(error).rstrip("."))
    if problems:
        raise ValueError(
            f"{path} has {len(problems)} wrong settings: {'; '.join(problems[:_LISTED])}. "
            f"`keras-vit {command} --help` lists all; a key has underscores in place of hyphens."
        )
    return found


def _unknown(name: str, value: Any, known: Mapping[str, Setting]) -> str:
    if isinstance(value, dict):
        return f"[{name[:80]}] is a table, and all keys stand at the top level"
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f"{name[:80]} is unknown" + (f" (the nearest is {near[0]})" if near else "")


def write_settings(
    path: pathlib.Path,
    settings: Mapping[str, Any],
    known: Mapping[str, Setting] = SETTINGS,
    command: str = "train",
) -> None:
    """Writes settings as a TOML file, which `--config` reads; arguments as of `read_settings`."""
    lines = [f"# keras-vit {command} --config THIS_FILE repeats this run."]
    group = None
    for name, setting in known.items():
        if name not in settings:
            continue
        if setting.group != group:
            group = setting.group
            lines += ["", f"# {group}"]
        lines.append(f"{name} = {_toml(settings[name])}")
    write_text(path, "\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # the escapes of JSON are those of TOML
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


class Settings(NamedTuple):
    """Settings by what they change.

    Args:
        run: Settings of the run.
        recipe: Changes of the recipe and of its augmentation, of each source after the other: new
            `--epochs` keep the share of a warm-up in the file.
        model: Changed fields of the model's configuration.
        preprocessing: Changed fields of its preprocessing.
    """

    run: RunSettings
    recipe: list[dict[str, Any]]
    model: dict[str, Any]
    preprocessing: dict[str, Any]


def split_settings(*sources: Mapping[str, Any]) -> Settings:
    """Divides settings by what they change; later sources override earlier ones."""
    parts: dict[str, dict[str, Any]] = {"run": {}, "architecture": {}, "preprocessing": {}}
    recipe: list[dict[str, Any]] = []
    for source in sources:
        recipe.append({})
        for name, value in source.items():
            group = SETTINGS[name].group
            parts.get(group, recipe[-1])[name.removeprefix("preprocessing_")] = value
    return Settings(
        RunSettings(**parts["run"]), recipe, parts["architecture"], parts["preprocessing"]
    )


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The settings that make a recipe of any other."""
    fields = dict(vars(recipe))
    augmentation = fields.pop("augmentation")
    return {**fields, **vars(augmentation)}
