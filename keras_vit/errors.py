"""Every exception that this package defines, under one base class; names in their messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import lazy_loader

# Control characters, ends of lines, marks that reverse the direction of text, and bytes of a file
# name that are no UTF-8.
_UNPRINTABLE = "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_IN_NAMES, _IN_TEXT = re.compile(_UNPRINTABLE), re.compile(rf"(?![\n\t]){_UNPRINTABLE}")


def printable(text: object, *, lines: bool = False) -> str:
    r"""Escapes the characters of a name that would change what a terminal or a log shows.

    Args:
        text: A name or path that somebody else may have chosen.
        lines: Whether it is a text of several lines, whose line feeds and tabs stay.

    Returns:
        The text, with `\x1b` in place of an escape character, and the like.
    """
    found = _IN_TEXT if lines else _IN_NAMES
    return found.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def listed(texts: Sequence[object], most: int = 20, separator: str = ", ") -> str:
    """Joins names for a message: of many the first ones, and how many more there are.

    Args:
        texts: Names that somebody else may have chosen.
        most: How many are shown.
        separator: What is between two.
    """
    rest = len(texts) - most
    shown = [printable(text) for text in texts[:most]]
    return separator.join([*shown, *[f"and {rest:,} more"] * (rest > 0)])


def raise_problems(source: object, problems: Sequence[str], what: str = "problems") -> None:
    """Raises a `ValueError` that lists problems of a source, if there are any."""
    if problems:
        lines = listed(problems, separator="\n  ")
        raise ValueError(f"{printable(source)} has {len(problems):,} {what}:\n  {lines}")


class KerasVitError(Exception):
    """Base class of the exceptions of this package."""

    def __str__(self) -> str:
        return printable(super().__str__(), lines=True)


class DamagedFileError(KerasVitError, ValueError):
    """A file that cannot be read as what it should be. The message names it."""


class CheckpointError(KerasVitError, ValueError):
    """A checkpoint file that cannot be loaded as it is. The message says why and what to do."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint that does not fit the model. The message lists every mismatch."""


class DownloadError(KerasVitError, OSError):
    """A file that could not be fetched, or that differs from the published one."""


class UploadError(KerasVitError, OSError):
    """A model that could not be published: the hub refuses it, or cannot be reached."""


class DamagedStateError(KerasVitError, ValueError):
    """A damaged file of training state. The message names it."""


class StateMismatchError(KerasVitError, ValueError):
    """A training state that does not fit the model. The message lists every mismatch."""


class FolderInUseError(KerasVitError, OSError):
    """A folder that another process writes to. The message names the process."""


class ExportMismatchError(KerasVitError, ValueError):
    """An exported file that computes other numbers than the model it was made from.

    Args:
        message: What differs, and by how much.
        report: The `ExportReport` with the numbers.
    """

    def __init__(self, message: str, report: Any):
        super().__init__(message)
        self.report = report


@contextlib.contextmanager
def needing_tensorflow(what: str) -> Iterator[None]:
    """Names what needs TensorFlow, if an import in this context does not find it.

    Args:
        what: The subject of the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ModuleNotFoundError(
            f"{what} needs TensorFlow, with every backend of Keras. Install it: "
            "pip install tensorflow",
            name="tensorflow",
        ) from error


def attach_names(package: str, file: str) -> tuple[Any, Any, Any]:
    """`lazy_loader.attach_stub` for packages of which some modules need TensorFlow.

    Args:
        package: `__name__` of the package.
        file: Its `__file__`; the names are in the `.pyi` file next to it.

    Returns:
        `__getattr__`, `__dir__` and `__all__` of the package.
    """
    find, names, public = lazy_loader.attach_stub(package, file)

    def find_name(name: str) -> Any:
        with needing_tensorflow(f"`{package}.{name}`"):
            return find(name)

    return find_name, names, public
