"""Files that appear whole or not at all, and labels."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def all_or_nothing(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """A place beside `path` that takes its name when the block ends well.

    Args:
        path: File or directory to make, which must not exist.

    Yields:
        Path to write to, in a new directory beside `path`. It vanishes when the block raises.

    Raises:
        FileExistsError: If there is something at `path`.
        OSError: If the directory of `path` cannot be written to.
    """
    path = pathlib.Path(path)
    _check_free(path)
    staging = _make_staging(path)
    try:
        yield staging / path.name
        made = sorted(staging.iterdir(), key=lambda file: file.name == path.name)
        for file in made:  # the weights beside an ONNX graph before the graph
            _check_free(path.parent / file.name)
        for file in made:
            os.replace(file, path.parent / file.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_free(path: pathlib.Path) -> None:
    if path.exists():
        raise FileExistsError(
            f"There is something at {str(path)!r} already. Remove it, or choose another path."
        )


def _make_staging(path: pathlib.Path) -> pathlib.Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.unfinished-", dir=path.parent))
    except OSError as error:
        raise type(error)(
            error.errno, f"Cannot write to the directory of {str(path)!r}: {error.strerror}"
        ) from error


def size_of(path: str | os.PathLike) -> int:
    """Bytes of a file and of the weights beside it, or of all files in a directory."""
    path = pathlib.Path(path)
    files = path.rglob("*") if path.is_dir() else [path, path.with_name(path.name + ".data")]
    files = [file for file in files if file.is_file()]
    return sum(file.stat().st_size for file in files)


def check_labels(labels: Sequence[str] | None, classes: int | None) -> list[str]:
    """The labels, one a class; the numbers of the classes where there are none.

    Raises:
        ValueError: If there are more or fewer labels than classes.
    """
    if labels is None:
        return [str(index) for index in range(classes or 0)]
    if isinstance(labels, str) or len(labels) != (classes or 0):
        received = f"the string {labels!r}" if isinstance(labels, str) else f"{len(labels)} labels"
        raise ValueError(
            f"`labels` must name each of the model's {classes or 0} classes, in their order. "
            f"Received: {received}."
        )
    return [str(label) for label in labels]
