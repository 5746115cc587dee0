"""Atomic writing of files and directories."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def write_atomically(
    path: str | os.PathLike[str], *, replace: bool = False
) -> Iterator[pathlib.Path]:
    """Yields a temporary path, and renames it to `path` when the block succeeds.

    The temporary path lies in a new directory in the folder of `path`, called
    `.NAME.unfinished-*`. Its content is forced to the disk before it is renamed. Other files that
    the block writes to that directory move to the folder of `path` first, as the weights of an
    ONNX graph do. When the block raises, the directory is removed and `path` is unchanged; a
    process that is killed leaves the directory behind.

    Args:
        path: File or directory to write. Missing parent folders are created.
        replace: Whether an existing file at `path` is replaced. A directory is never replaced.

    Yields:
        The path to write to.

    Raises:
        FileExistsError: If `path` exists and `replace` is false.
        OSError: If the folder of `path` cannot be written to.

    Example:

    >>> with write_atomically("results.json", replace=True) as unfinished:  # doctest: +SKIP
    ...     unfinished.write_text("{}")
    """
    path = pathlib.Path(path)
    if not replace:
        _check_free(path)
    staging = _make_staging(path)
    try:
        yield staging / path.name
        written = sorted(staging.iterdir(), key=lambda file: file.name == path.name)
        for file in written:
            if not replace:
                _check_free(path.parent / file.name)
            _sync(file)
        for file in written:
            os.replace(file, path.parent / file.name)
        _sync_directory(path.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_free(path: pathlib.Path) -> None:
    if path.exists():
        raise FileExistsError(f"{str(path)!r} already exists. Remove it, or choose another path.")


def _make_staging(path: pathlib.Path) -> pathlib.Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.unfinished-", dir=path.parent))
    except OSError as error:
        raise type(error)(
            error.errno, f"Cannot write to the directory of {str(path)!r}: {error.strerror}"
        ) from error


def _sync(path: pathlib.Path) -> None:
    """Forces a file, or all files of a directory, to the disk."""
    if not path.is_dir():
        with open(path, "rb+") as file:  # Windows syncs no file that is only read
            os.fsync(file.fileno())
        return
    for child in path.iterdir():
        _sync(child)
    _sync_directory(path)


def _sync_directory(path: pathlib.Path) -> None:
    """Forces the names in a directory to the disk, where the system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows does not open directories
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
