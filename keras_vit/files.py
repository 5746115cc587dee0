"""Atomic writing of files and directories, local or on a remote file system of TensorFlow."""

from __future__ import annotations

import contextlib
import csv
import errno
import glob
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from keras_vit.errors import needing_tensorflow

DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_NO_SPACE = os.strerror(errno.ENOSPC)  # in the text of errors of TensorFlow and HDF5


def cache_dir() -> pathlib.Path:
    """Returns the folder of the user's cache.

    `KERAS_VIT_CACHE`, or else `keras_vit` in `XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        OSError: If the user has no home directory, and the variables do not name another.
    """
    chosen = os.environ.get("KERAS_VIT_CACHE")
    folder = chosen or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "keras_vit")
    try:
        return pathlib.Path(folder).expanduser()
    except RuntimeError as error:
        raise OSError(
            f"The folder of the cache, {folder}, is unknown: this user has no home directory. Set "
            "KERAS_VIT_CACHE to a folder that this user may write to."
        ) from error


@contextlib.contextmanager
def write_atomically(
    path: str | os.PathLike[str], *, replace: bool = False
) -> Iterator[pathlib.Path]:
    """Yields a temporary path, and renames it to `path` when the block succeeds.

    The temporary path lies in a new directory in the folder of `path`, called
    `.NAME.unfinished-*`. Its content is forced to the disk before it is renamed. Other files that
    the block writes to that directory move to the folder of `path` first, as the weights of an
    ONNX graph do. When the block raises, the directory is removed, with the parent folders that
    were created for it, and `path` is unchanged; a process that is killed leaves the directory
    behind, and the next one that writes the same path removes it.

    A remote address such as `gs://bucket/name` is written locally first, and copied by
    TensorFlow's file system; the file `saved_model.pb` of a SavedModel is copied last, so that a
    server does not load a part of it.

    Args:
        path: File or directory to write, or a remote address. `~` is the home directory. Missing
            parent folders are created.
        replace: Whether an existing file at `path` is replaced. A directory is never replaced.

    Yields:
        The path to write to.

    Raises:
        FileExistsError: If `path` exists and `replace` is false.
        OSError: If the folder of `path` cannot be written to, or its disk is full: then the message
            names both, whatever library noticed it.
        ValueError: If TensorFlow has no file system for a remote address.

    Example:

    >>> with write_atomically("results.json", replace=True) as unfinished:  # doctest: +SKIP
    ...     unfinished.write_text("{}")
    """
    path = local_or_remote(path)
    if isinstance(path, str):
        with _write_remote(path, replace) as unfinished:
            yield unfinished
        return
    if not replace:
        _check_free(path)
    _remove_abandoned(path)
    created = [folder for folder in path.parents if not folder.exists()]
    staging, lock = _make_staging(path)
    try:
        with explain_full_disk(path):
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
        if lock is not None:
            os.close(lock)
        shutil.rmtree(staging, ignore_errors=True)
        for folder in created:  # innermost first
            with contextlib.suppress(OSError):  # there is a file in it
                folder.rmdir()


@contextlib.contextmanager
def explain_full_disk(path: pathlib.Path, needed: int | None = None) -> Iterator[None]:
    """Raises an error that names the folder and its free bytes when the block finds a full disk.

    Args:
        path: The file that the block writes.
        needed: Bytes that it needs, for the message.

    Raises:
        OSError: If the disk is full, whatever library noticed it.
    """
    try:
        yield
    except Exception as error:
        if not _is_disk_full(error):
            raise
        free = f"{shutil.disk_usage(path.parent).free:,} bytes are free"
        raise OSError(
            errno.ENOSPC,
            f"The disk of {path.parent} is full ({free}"
            f"{'' if needed is None else f', {needed:,} are needed'}), so {path.name} was not "
            f"written: {_NO_SPACE}. Free some space, or write to a folder of another disk",
        ) from error


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that there is no space left."""
    while error is not None:
        if getattr(error, "errno", None) in DISK_FULL or _NO_SPACE in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def no_link(path: str, flags: int) -> int:
    """An `opener` of `open` for files with names that others can guess: follows no symbolic link.

    Whoever may write to the folder could have this process write to another file by a link.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


_FORMULA = re.compile(r"[\s']*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # also in full width


def write_text(path: str | os.PathLike[str], text: str, errors: str = "strict") -> None:
    """Writes a text in UTF-8, which replaces an older file when it is complete.

    Args:
        path: The file.
        text: Its content, with line feeds as the ends of lines.
        errors: Treatment of what is no UTF-8, as of `open`; Linux allows such names of files.
    """
    with write_atomically(path, replace=True) as unfinished:
        unfinished.write_text(text, "utf-8", errors, "\n")


def write_csv(path: str | os.PathLike[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a table that spreadsheets open without computing any of its cells.

    A name that begins like a formula, as `=1+1` or `@x`, gets an apostrophe before it, which
    `read_cell` removes; numbers stay as they are. File names that are no UTF-8 keep their bytes.
    """
    with (
        write_atomically(path, replace=True) as unfinished,
        open(unfinished, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        csv.writer(file).writerows(map(_to_cell, row) for row in rows)


def _to_cell(value: object) -> object:
    if not isinstance(value, str) or not _FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def read_cell(text: str) -> str:
    """The name in a cell of `write_csv`."""
    return text[1:] if text[:1] == "'" and _FORMULA.match(text) else text


def local_or_remote(path: str | os.PathLike[str]) -> pathlib.Path | str:
    """Returns a local path with `~` expanded, or a remote address as a string.

    `pathlib` turns `gs://bucket` into `gs:/bucket`, which means the same here.
    """
    found = re.fullmatch(r"([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)", os.fspath(path))
    return f"{found[1]}://{found[2]}" if found else pathlib.Path(path).expanduser()


def publish_version(unfinished: pathlib.Path, base: pathlib.Path) -> pathlib.Path:
    """Renames a finished directory to the next number in `base`, also beside other processes.

    Args:
        unfinished: A directory in the same file system as `base`.
        base: The directory of the versions.

    Returns:
        The new path.
    """
    _sync(unfinished)
    while True:
        path = base / str(next_version([entry.name for entry in base.iterdir()]))
        try:
            unfinished.rename(path)
        except OSError:
            if not path.exists():
                raise
            continue  # another process took the number
        return path


def next_version(names: Iterable[str]) -> int:
    """Returns the number after the largest of the names that are numbers, from 1."""
    return max((int(name) for name in names if name.isdecimal()), default=0) + 1


def list_names(path: pathlib.Path | str) -> list[str]:
    """Lists a directory, local or remote; a missing directory is empty."""
    if isinstance(path, pathlib.Path):
        return [entry.name for entry in path.iterdir()] if path.is_dir() else []
    files = _remote_files(path)
    return [name.strip("/") for name in files.listdir(path)] if files.isdir(path) else []


def _remote_files(address: str) -> Any:
    """TensorFlow's functions for files, if it has a file system for the address."""
    with needing_tensorflow(f"The remote address {address!r}"):
        import tensorflow as tf

    scheme = address.partition("://")[0]
    if scheme not in tf.io.gfile.get_registered_schemes():
        raise ValueError(
            f"TensorFlow has no file system for {scheme}:// here. Received: {address!r}. Write to "
            "a local folder and copy it, or install the file system (for gs://, pip install "
            '"tensorflow[gcs-filesystem]"; for s3://, tensorflow-io).'
        )
    return tf.io.gfile


@contextlib.contextmanager
def _write_remote(address: str, replace: bool) -> Iterator[pathlib.Path]:
    files = _remote_files(address)
    if not replace and files.exists(address):
        raise FileExistsError(f"{address!r} already exists. Remove it, or choose another path.")
    parent, _, name = address.rstrip("/").rpartition("/")
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder) / name
        written = [file for file in pathlib.Path(folder).rglob("*") if file.is_file()]
        for file in sorted(written, key=lambda file: file.name == "saved_model.pb"):
            target = f"{parent}/{file.relative_to(folder).as_posix()}"
            files.makedirs(target.rpartition("/")[0])
            files.copy(os.fspath(file), target, overwrite=True)


def _lock(staging: pathlib.Path) -> int | None:
    """Locks a directory for as long as this process lives, where the system can.

    Raises:
        BlockingIOError: If another process has locked it.
        FileNotFoundError: If another process has removed it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    descriptor = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None  # a file system without locks
    return descriptor


def _remove_abandoned(path: pathlib.Path) -> None:
    """Removes what killed processes left of `path`: directories that no process has locked.

    Of a version such as `2`, what they left of other versions, too.
    """
    name = "[0-9]*" if path.name.isdecimal() else glob.escape(path.name)
    for left in path.parent.glob(f".{name}.unfinished-*"):
        with contextlib.suppress(OSError):
            lock = _lock(left)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)


def remove_unfinished(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Removes what `write_atomically` left when a process was killed, at once.

    Args:
        folder: A folder that this process alone writes to.
        names: Names of the files that were to be written; may hold wildcards.
    """
    for name in names:
        for left in folder.glob(f".{name}.unfinished-*"):
            shutil.rmtree(left, ignore_errors=True)


def _check_free(path: pathlib.Path) -> None:
    if path.exists():
        raise FileExistsError(f"{str(path)!r} already exists. Remove it, or choose another path.")


def _make_staging(path: pathlib.Path) -> tuple[pathlib.Path, int | None]:
    """Creates and locks a directory for what is written to `path`."""
    prefix = f".{path.name}.unfinished-"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            staging = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            # Before it was locked, another process may have taken it for abandoned.
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                lock = _lock(staging)
                if lock is None or staging.exists():
                    return staging, lock
                os.close(lock)
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
