"""Locks of folders that only one run may write to."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import platform
import threading
from collections.abc import Callable
from typing import IO, ClassVar

from keras_vit.errors import FolderInUseError, printable
from keras_vit.files import no_link


class FolderLock:
    """Keeps other processes, and other threads of this one, from writing to a folder.

    The lock is an advisory one of the system (`fcntl.lockf`) on a file in the folder. The system
    releases it when the process ends, however it ends; a child process does not inherit it. File
    systems without locks, and Windows, give no protection.

    Args:
        path: The lock file, which stays in the folder.
        is_in_use: Tells whether the holder still writes; a later lock of the same process takes
            over from one that does not.
    """

    _held: ClassVar[dict[str, FolderLock]] = {}  # of this process: `lockf` knows processes only
    _guard = threading.Lock()

    def __init__(self, path: pathlib.Path, is_in_use: Callable[[], bool] = lambda: True):
        self._path = path
        self._is_in_use = is_in_use
        self._file: IO[str] | None = None
        self._process = 0

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            FolderInUseError: If another process or thread holds it. The message names it.
        """
        key = os.path.realpath(self._path)
        with self._guard:
            holder = self._held.get(key)
            if holder is not None and holder._process == os.getpid():
                if holder._is_in_use():
                    raise self._refusal("another thread of this process")
                holder._close()
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(  # noqa: SIM115 - held open
                    self._path, "a+", encoding="utf-8", opener=no_link
                )
            except OSError as error:
                if error.errno == errno.ELOOP:  # the file that a link leads to would be emptied
                    raise
                return  # a folder that cannot be written to needs no lock
            if not _lock_file(self._file):
                self._file.seek(0)
                found = self._file.read(200).strip()
                self._file.close()
                raise self._refusal(printable(found) or "another process")
            self._process = os.getpid()
            self._held[key] = self
            self._file.truncate(0)
            with contextlib.suppress(OSError):  # on a full disk the holder has no name
                os.write(
                    self._file.fileno(), f"process {self._process} on {platform.node()}\n".encode()
                )

    def release(self) -> None:
        """Releases the lock, if this object holds it."""
        with self._guard:
            if self._file is not None and self._held.get(os.path.realpath(self._path)) is self:
                del self._held[os.path.realpath(self._path)]
                self._close()

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _refusal(self, holder: str) -> FolderInUseError:
        return FolderInUseError(
            f"{self._path.parent} is in use by {holder}. Two runs in one folder would overwrite "
            "each other's files: wait until that one ends, stop it, or choose another folder."
        )


def _lock_file(file: IO[str]) -> bool:
    """Locks a file for this process. Returns False if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)  # others: no locks there
    return True
