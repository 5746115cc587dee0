"""Atomic writing of files and directories, local or on a remote file system of TensorFlow."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_NO_SPACE = os.strerror(errno.ENOSPC)  # in the text of errors of TensorFlow and HDF5
_ABANDONED_SECONDS = 60  # between the creation of a directory and its lock lie microseconds


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
    ONNX graph do. When the block raises, the directory is removed and `path` is unchanged; a
    process that is killed leaves the directory behind, and the next one that writes the same path
    removes it.

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
    staging = _make_staging(path)
    lock = _lock(staging)
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
    except Exception as error:
        if not _is_disk_full(error):
            raise
        raise OSError(
            errno.ENOSPC,
            f"The disk of {path.parent} is full ({shutil.disk_usage(path.parent).free:,} bytes are "
            f"free), so {path.name} was not written: {_NO_SPACE}. Free some space, or write to a "
            "folder of another disk",
        ) from error
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(staging, ignore_errors=True)


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that there is no space left."""
    while error is not None:
        if getattr(error, "errno", None) in DISK_FULL or _NO_SPACE in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


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
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"A remote address needs TensorFlow. Received: {address!r}. Install it: pip install "
            "tensorflow; or use a local path."
        ) from error

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
    """Locks a directory for as long as this process lives, where the system can."""
    try:
        import fcntl

        descriptor = os.open(staging, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # Windows, or a file system without locks
        return None
    return descriptor


def _remove_abandoned(path: pathlib.Path) -> None:
    """Removes what killed processes left of `path`: directories that no process has locked."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.unfinished-*"):
        with contextlib.suppress(OSError):
            is_old = time.time() - left.stat().st_mtime > _ABANDONED_SECONDS
            lock = _lock(left) if is_old else None
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
