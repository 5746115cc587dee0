"""Sidecar files of a checkpoint: the JSON that timm and transformers publish with it.

Each family of `keras_vit/families` has the table of its keys.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_vit.config import Preprocessing
from keras_vit.errors import CheckpointError
from keras_vit.families import keys
from keras_vit.families.rules import Layout
from keras_vit.families.table import FAMILIES
from keras_vit.reading import read_json
from keras_vit.weights.image_processors import (
    OWN,
    find_processor,
    processor_size,
    timm_preprocessing,
    transformers_preprocessing,
)
from keras_vit.weights.timm_settings import OTHERS, name_in_path, timm_settings

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
NAMES = (CONFIG, PREPROCESSOR)
MODEL_TYPES = {name: kind for family in FAMILIES for name, kind in family.model_types.items()}
TIMM_MODELS = tuple(model for family in FAMILIES for model in family.timm_models)
_DOUBTS = tuple(doubt for family in FAMILIES for doubt in family.doubts)

_WRAPPER: keys.Rules = {"do_pooling": keys.Only((True,), "tokens without pooling", "pooling")}
_MAX_COUNT = 100_000  # of heads, pixels and the like
_MIN_CROP = 1 / 16  # of the resized image; the smallest known is 0.8


class Setting(NamedTuple):
    """A field of the configuration as one source states it.

    Args:
        value: Its value.
        origin: The source, such as `"config.json: hidden_act"`.
    """

    value: Any
    origin: str


class Refusal(NamedTuple):
    """What a sidecar file or the arrays ask for, and no model of this package computes.

    Args:
        text: What it is, and where it stands.
        fields: Fields of the configuration. A caller who sets all of them does not need it.
        open: Whether nothing says what the fields are, so that a given model may have any.
    """

    text: str
    fields: tuple[str, ...] = ()
    open: bool = False


@dataclasses.dataclass
class Sidecar:
    """Settings that neither names nor shapes of a checkpoint tell, collected key by key.

    Args:
        settings: Fields of the configuration.
        image_size: Pixels along (height, width) that the positions are for, or `None`.
        sizes: Sizes that the arrays must agree with: key, name in `Checkpoint.sizes`, value.
        refusals: Everything that cannot be computed or understood.
        licence: Licence of the weights, if it says.
        timm_name: Name of timm's model, with its tag if that is known.
        class_names: Names of the classes, in the order of the outputs; empty if it has none.
        input_size: Pixels along (height, width) that the preprocessing of the checkpoint gives to
            its model, if it says: the crop or size of transformers, or timm's `input_size`.
    """

    settings: dict[str, Setting] = dataclasses.field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    sizes: list[tuple[str, str, Any]] = dataclasses.field(default_factory=list)
    refusals: list[Refusal] = dataclasses.field(default_factory=list)
    licence: str | None = None
    timm_name: str | None = None
    class_names: tuple[str, ...] = ()
    input_size: Setting | None = None

    def refuse(self, text: str, *fields: str, open: bool = False) -> None:
        self.refusals.append(Refusal(text, fields, open))

    def set(self, field: str, value: Any, origin: str) -> None:
        self.settings[field] = Setting(value, origin)

    def read(self, section: dict[str, Any], rules: keys.Rules, name: str) -> None:
        """Applies the rules to every key of a part of a file."""
        for key, value in section.items():
            where = f"{name}: {key}"
            if key not in rules:
                self.refuse(
                    f"{where} = {_short(value)}: what this key does to the outputs is not known. "
                    "Remove it from the file if it does nothing"
                )
                continue
            rule = rules[key]
            if isinstance(rule, keys.Sets):
                self.follow(rule, value, where)
            elif isinstance(rule, keys.Only) and not _is_one_of(value, (None, *rule.values)):
                fields = (rule.field,) if rule.field else ()
                self.refuse(f"{where} = {_short(value)}: {rule.feature}", *fields)
            elif isinstance(rule, keys.Size) and value is not None:
                self.sizes.append((where, rule.field, value))
            elif isinstance(rule, keys.Part):
                self.read(self.part(section, key), rule.rules, where)
            elif isinstance(rule, keys.Images):
                self._read_image_size(value, where)
                if key == "input_size" and value is not None and self.image_size is not None:
                    self.input_size = Setting(self.image_size, where)

    def part(self, config: dict[str, Any], key: str) -> dict[str, Any]:
        """Returns an object within an object, empty if it is not there."""
        value = config.get(key)
        if value is None or isinstance(value, dict):
            return value or {}
        self.refuse(f"{CONFIG}: {key} = {_short(value)} is no object")
        return {}

    def doubt(self, where: str, name: str | None, notes: Any = None) -> None:
        """Refuses a name of timm that does not tell a setting of the checkpoint."""
        for doubt in _DOUBTS:
            is_noted = notes is None or doubt.notes in str(notes)
            if is_noted and name is not None and re.fullmatch(doubt.names, name):
                self.refuse(f"{where}: {doubt.text.format(name)}", doubt.field)

    def follow(self, rule: keys.Sets, value: Any, where: str) -> None:
        if value is None:
            return  # the default
        if isinstance(rule.values, Mapping):
            values = rule.values.items()
            all_found = [ours for theirs, ours in values if _is_one_of(value, (theirs,))]
        else:
            checks: dict[Any, Callable[[Any], bool]] = {int: _is_count, float: _is_share}
            is_good = checks.get(rule.values, _is_base)(value)
            all_found = [rule.values(value)] if is_good else []
        if not all_found:
            self.refuse(f"{where} = {_short(value)} cannot be computed", rule.field)
            return
        found = all_found[0]
        for field, also in rule.also.items():
            self.set(field, also, where)
        before = self.settings.get(rule.field)
        if before is not None and before.value != found and before.origin.startswith(CONFIG):
            self.refuse(
                f"{where} = {_short(value)}, but {before.origin} says otherwise", rule.field
            )
        self.set(rule.field, found, where)

    def _read_image_size(self, value: Any, where: str) -> None:
        size = [value, value] if _is_count(value) else value
        if isinstance(size, (list, tuple)) and len(size) == 3:
            size = size[1:]  # (C, H, W)
        if size is None:
            return
        if isinstance(size, (list, tuple)) and len(size) == 2 and all(map(_is_count, size)):
            self.image_size = (size[0], size[1])
        else:
            self.refuse(f"{where} = {_short(value)} is no size of images", "image_size")


def read_sidecar(path: pathlib.Path, layout: Layout) -> Sidecar:
    """Reads `config.json` and `preprocessor_config.json` in the folder of a checkpoint.

    Args:
        path: The checkpoint.
        layout: Layout of its arrays.

    Returns:
        What they say, and what the name in the path of a downloaded file of timm says.
    """
    sidecar = Sidecar()
    config = _load(path.with_name(CONFIG), sidecar)
    if {"recipe", "versions"} <= config.keys():
        config = {}  # settings of a run of `keras-vit train`
    processor = _load(path.with_name(PREPROCESSOR), sidecar)
    if "architecture" in config or "pretrained_cfg" in config or "model_args" in config:
        _read_timm(config, sidecar, path, layout.name)
    else:
        if layout.project == "timm":
            found = name_in_path(path)
            _use_name(found, "the address", sidecar)
            sidecar.doubt("the address", found)
        if config:
            _read_transformers(config, sidecar, layout.name)
    if processor:
        _add_images(transformers_preprocessing, processor, PREPROCESSOR, sidecar)
        known = find_processor(processor)
        if sidecar.input_size is None:  # `config.json` comes first
            sidecar.input_size = _input_size(processor)
        if known is not None:
            stated = {key: processor[key] for key in known.rules if key in processor}
            sidecar.read({**known.defaults, **stated}, known.rules, PREPROCESSOR)
    sidecar.class_names = _class_names(config)
    return sidecar


def read_network(config: dict[str, Any], layout: str) -> Sidecar:
    """Reads the configuration of a Transformer that is a part of a larger network."""
    sidecar = Sidecar()
    _read_transformers(config, sidecar, layout)
    return sidecar


def _input_size(processor: dict[str, Any]) -> Setting | None:
    """The size of the images of `preprocessor_config.json`; nothing of a file that is refused."""
    found = processor_size(processor)
    if found is None or not all(map(_is_count, found[0])):
        return None
    return Setting(found[0], f"{PREPROCESSOR}: {found[1]}")


def _class_names(config: dict[str, Any]) -> tuple[str, ...]:
    """`id2label` of transformers, or `label_names` of timm, if they name every class in a line."""
    labels = config.get("id2label")
    if isinstance(labels, dict):
        names = [labels.get(str(number)) for number in range(len(labels))]
    else:
        labels = config.get("label_names")
        names = labels if isinstance(labels, list) else []
    if not all(isinstance(name, str) and len(name.splitlines()) == 1 for name in names):
        return ()
    is_numbered = names == [f"LABEL_{number}" for number in range(len(names))]  # no names
    return () if is_numbered else tuple(map(str, names))


def model_type_of(path: pathlib.Path) -> str | None:
    """What `config.json` in the folder of a checkpoint says that it is, for messages."""
    config = _load(path.with_name(CONFIG), Sidecar())
    names = (config.get(key) for key in ("architecture", "model_type"))
    return next((name[:80] for name in names if isinstance(name, str)), None)


def architecture_of(path: pathlib.Path) -> str:
    """The class of transformers that `config.json` beside a checkpoint names, or nothing."""
    names = _load(path.with_name(CONFIG), Sidecar()).get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _add_images(
    read: Callable[[dict[str, Any]], Preprocessing],
    fields: dict[str, Any],
    where: str,
    sidecar: Sidecar,
) -> None:
    """Takes the preprocessing of images, or says why not; `config.json` comes first."""
    try:
        found = read(fields)
        numbers = (*found.mean, *found.std)
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"statistics of {numbers}")
        if found.crop_ratio is not None and found.crop_ratio < _MIN_CROP:
            raise ValueError(f"images of {1 / found.crop_ratio:.3g} times the size of the crop")
    except CheckpointError as error:
        sidecar.refuse(str(error), "preprocessing", open=True)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        text = f"{where}: the preprocessing of images is not understood ({_short(str(error))})"
        sidecar.refuse(text, "preprocessing", open=True)
    else:
        if "preprocessing" not in sidecar.settings:
            sidecar.set("preprocessing", found, where)


def _read_timm(config: dict[str, Any], sidecar: Sidecar, path: pathlib.Path, layout: str) -> None:
    """Reads a configuration of timm, also within transformers' TimmWrapper."""
    pretrained = sidecar.part(config, "pretrained_cfg") if "pretrained_cfg" in config else None
    args = sidecar.part(config, "model_args")
    name = config.get("architecture", (pretrained or {}).get("architecture"))
    if name is None:
        name = name_in_path(path)
    elif not isinstance(name, str):
        sidecar.refuse(f"{CONFIG}: architecture = {_short(name)} is no name")
        name = None
    _use_name(name, f"{CONFIG}: architecture", sidecar)
    notes = (pretrained or {}).get("notes")
    if notes is not None:
        sidecar.doubt(f"{CONFIG}: pretrained_cfg: notes", name, notes)
    if pretrained is None:  # before timm 0.9 in one level
        pretrained = {key: config[key] for key in config if key in keys.TIMM_PRETRAINED}
        config = {key: config[key] for key in config if key not in keys.TIMM_PRETRAINED}
    rules = next((model.rules for model in TIMM_MODELS if layout in model.layouts), keys.TIMM_ARGS)
    pool = {"global_pool": rules["global_pool"]}
    sidecar.read(pretrained, {**keys.TIMM_PRETRAINED, **pool}, f"{CONFIG}: pretrained_cfg")
    # What transformers' TimmWrapper writes, too.
    wrapper = _WRAPPER if config.get("model_type") == "timm_wrapper" else {}
    sidecar.read(config, {**keys.TIMM, **wrapper, **pool}, CONFIG)
    sidecar.read(args, rules, f"{CONFIG}: model_args")
    if isinstance(pretrained.get("license"), str):
        sidecar.licence = pretrained["license"][:80]
    if "mean" in pretrained:
        images = {**pretrained, OWN: config.get(OWN)}
        _add_images(timm_preprocessing, images, f"{CONFIG}: pretrained_cfg", sidecar)


def _use_name(name: str | None, where: str, sidecar: Sidecar) -> None:
    """Takes the settings of a name of timm."""
    if name is None:
        return
    name, tag = name.partition(".")[0], name
    settings = timm_settings(name)
    if settings is None:
        sidecar.refuse(
            f"{where} names {name!r}: {OTHERS.get(name) or 'no model that this package knows'}",
            "gelu", "norm_epsilon", "num_heads", "pooling", open=name not in OTHERS,
        )  # fmt: skip
        return
    sidecar.timm_name = tag
    for field, value in settings.items():
        sidecar.set(field, value, f"timm's {name}")


def type_of(layout: str, holds: Callable[[keys.ModelType], bool] = lambda kind: True) -> str | None:
    """Name of the first model type of a layout, of those for which a function holds."""
    fitting = (name for name, kind in MODEL_TYPES.items() if layout in kind.layouts and holds(kind))
    return next(fitting, None)


def _read_transformers(config: dict[str, Any], sidecar: Sidecar, layout: str) -> None:
    """Reads a configuration of transformers; of two towers, that of the images."""
    where, name = CONFIG, config.get("model_type")
    again: dict[str, Any] = {}
    if "vision_config" in config:
        images = type_of(layout)
        if name is None:
            name = next((name for name, kind in MODEL_TYPES.items() if kind.images == images), None)
        both = _find_type(name, where, sidecar)
        if both is None:
            return
        sidecar.read(config, both.rules, CONFIG)
        again = sidecar.part(config, "vision_config_dict")
        config, where = sidecar.part(config, "vision_config"), f"{CONFIG}: vision_config"
        name = config.get("model_type", both.images)
    kind = _find_type(type_of(layout) if name is None else name, where, sidecar)
    if kind is None:
        return
    if again:  # it overrides the other, with its defaults
        config = {**config, **kind.defaults, **again}
    for key, value in kind.defaults.items():
        rule = kind.rules[key]
        if key not in config and isinstance(rule, keys.Sets):
            sidecar.follow(rule, value, f"the default of transformers for {name}")
    gated = kind.gate is not None and config.get(kind.gate[0])
    activation = {"hidden_act": kind.gate[1]} if kind.gate is not None and gated else {}
    sidecar.read(config, {**kind.rules, **activation}, where)


def _find_type(name: Any, where: str, sidecar: Sidecar) -> keys.ModelType | None:
    kind = MODEL_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        sidecar.refuse(f"{where}: model_type = {_short(name)}: no model that this package knows")
    return kind


def _load(path: pathlib.Path, sidecar: Sidecar) -> dict[str, Any]:
    try:
        if not path.exists():
            return {}
        content = read_json(path)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        sidecar.refuse(
            f"{path.name} next to it cannot be read ({str(error)[:200]}). Fetch it again"
        )
        return {}
    return content


def _short(value: Any) -> str:
    """A value for a message, however long or deep."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if type(value) is int and abs(value) > 10**30:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _is_one_of(value: Any, choices: tuple[Any, ...]) -> bool:
    """Whether a value is there, of the same type: `1` is not `True`."""
    return any(type(value) is type(choice) and value == choice for choice in choices)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MAX_COUNT


def _is_share(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 1


def _is_base(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1
