"""What a command of the command line is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Argument:
    """A flag or a positional argument, as `argparse` takes it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def argument(*names: str, **settings: Any) -> Argument:
    """An `Argument`, written as the call of `add_argument` that it becomes."""
    return Argument(names, settings)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of one word or several, and the function that it calls."""

    name: str
    function: Callable[..., None]
    arguments: tuple[Argument, ...] = ()
