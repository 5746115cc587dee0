"""Output of commands. Control characters in names that others chose are escaped."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence

from keras_vit.errors import printable
from keras_vit.progress import align_columns


def say(text: object) -> None:
    """Prints a text of one or several lines, whose names have no line feeds."""
    print(printable(text, lines=True), flush=True)


def complain(text: object, kind: str = "") -> None:
    """Prints an error, a warning or a note to standard error.

    Lines after the first are indented: a line feed in a name cannot begin a line of another kind.
    """
    shown = re.sub(r"(?!^)\n(?! |$)", "\n  ", printable(text, lines=True))
    print(f"keras-vit: {kind}: {shown}" if kind else shown, file=sys.stderr, flush=True)


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Prints pairs of a name and a text, one per line."""
    width = max(len(name) for name, _ in facts) + 2
    for name, text in facts:
        print(f"{printable(name) + ':':{width}}{printable(text)}")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells in columns."""
    print(align_columns(rows))


@contextlib.contextmanager
def hidden_stderr() -> Iterator[None]:
    """Hides what is written to stderr, but shows it after an error.

    TensorFlow's C++ code writes its banners to the file descriptor, whatever its log level.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            hidden.seek(0)
            os.write(stderr, hidden.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
