"""Arguments of commands: inputs and flags, those that several commands have, and `Command`.

This module imports nothing of Keras, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.cli.run_settings import UNREADABLE
from keras_vit.cli.settings import HEADINGS, Setting


@dataclasses.dataclass(frozen=True)
class Argument:
    """A flag, or an input of a command, with the parameters of `add_argument` and a heading.

    An input has a position and a flag, see `parser.py`: the first name has no hyphens, those that
    follow are further flags. Without `nargs` or with `"+"` it is required.
    """

    names: tuple[str, ...]
    settings: dict[str, Any]
    group: str | None = None

    @property
    def is_input(self) -> bool:
        """Whether it is an input."""
        return not self.names[0].startswith("-")

    @property
    def is_required(self) -> bool:
        """Whether the command needs it."""
        is_needed = self.is_input and self.settings.get("nargs") in (None, "+")
        return is_needed or self.settings.get("required", False)

    @property
    def takes_many(self) -> bool:
        """Whether it is of several words."""
        return self.settings.get("nargs") in ("+", "*")

    @property
    def flag(self) -> str:
        """The flag."""
        return f"--{self.names[0].lstrip('-')}"

    @property
    def dest(self) -> str:
        """The parameter of the function."""
        return self.settings.get("dest", self.names[0].lstrip("-").replace("-", "_"))

    @property
    def shown(self) -> str:
        """The name of an input in the usage."""
        return self.settings.get("metavar", self.names[0].upper())

    def add_to(self, parser: Any) -> list[str]:
        """Adds the flag to a parser or to a group of flags, and returns its names."""
        settings = {name: value for name, value in self.settings.items() if name != "required"}
        if self.is_input:
            default = () if settings.get("nargs") == "*" else None
            settings = {"default": default, "metavar": self.shown, "dest": self.dest, **settings}
            if settings.get("nargs") == "?" or "action" in settings:  # as a flag it has one value
                del settings["nargs"]
        return parser.add_argument(self.flag, *self.names[1:], **settings).option_strings


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of one or several words, and the function that it calls.

    Args:
        name: The words.
        target: `"module:function"` in `keras_vit`.
        summary: What it does: the first line of the function's docstring.
        arguments: Its flags.
        keeps_buffers: Whether it computes with large batches, see `keep_buffers`.
        settings: What its `--config` may hold.
        check: Raises a `ValueError` if the values of its arguments do not fit together, before
            anything of Keras is imported.
    """

    name: str
    target: str
    summary: str
    arguments: tuple[Argument, ...] = ()
    keeps_buffers: bool = False
    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], object] | None = None

    @property
    def inputs(self) -> list[Argument]:
        """The arguments that have a position, in their order."""
        return [each for each in self.arguments if each.is_input]

    @property
    def function(self) -> Callable[..., None]:
        """The function, imported now."""
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(f"keras_vit.{module}"), name)


def argument(*names: str, **settings: Any) -> Argument:
    """Makes an `Argument`, written like a call of `add_argument`."""
    return Argument(names, settings)


def setting_argument(setting: Setting, *names: str, **changes: Any) -> Argument:
    """Makes the flag of a setting, without a default: it may be in `--config`.

    Args:
        setting: The setting.
        *names: Names of an input, see `Argument`; by default it is a flag.
        **changes: Parameters of `add_argument` in place of those that follow from its type.
    """

    def parse(text: str) -> Any:
        try:
            return setting.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    options: dict[str, Any] = {"default": argparse.SUPPRESS}
    options["help"] = setting.summary.replace("%", "%%")
    if setting.is_switch:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options |= {"type": parse, "metavar": "VALUE"}
    return Argument(names or (setting.flag,), {**options, **changes}, HEADINGS[setting.group])


def parse_size(text: str) -> tuple[int, int]:
    """Reads `224` as 224 x 224 pixels, and `224x320` as height and width."""
    sides = text.lower().split("x")
    if not 1 <= len(sides) <= 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(
            f"pixels such as 224, or height and width such as 224x320, are expected. "
            f"Received: {text!r}"
        )
    return int(sides[0]), int(sides[-1])


def parse_share(text: str) -> float:
    """Reads `0.5%` and `0.005`."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"a share such as 0.5% or 0.005 is expected. Received: {text!r}"
        ) from None


def parse_sizes(text: str) -> list[tuple[int, int]]:
    """Reads `224,336`, sizes as in `parse_size` with commas."""
    return [parse_size(part) for part in text.split(",")]


def size_argument(text: str, parse: Callable[[str], Any] = parse_size) -> Argument:
    """Makes the flag of an image size."""
    return argument("--image-size", type=parse, metavar="PIXELS", help=text)


IMAGE_SIZE = size_argument(
    "size of the images that the model takes, such as 224, or 224x320 for height and width; by "
    "default that of the model, of a checkpoint the one that its preprocessing states"
)
UNREADABLE_FILES = argument(
    "--unreadable",
    default="error",
    choices=UNREADABLE,
    help="treatment of files that cannot be read: one error that lists them, or a warning that "
    "lists them; skip decodes every file once before it begins",
)
JSON = argument("--json", dest="as_json", action="store_true", help="print JSON")
TRIALS = (
    argument("--config", help="TOML file with settings; flags win over it"),
    argument("--dry-run", action="store_true", help="print plan, memory and time, and stop"),
)
OUTPUTS = (
    argument("--quiet", action="store_true", help="print results and errors alone"),
    argument("--verbose", action="store_true", help="print a progress bar to files and pipes too"),
)
