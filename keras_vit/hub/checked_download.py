"""Downloads that are checked before they are used, by one process at a time."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pathlib
import sys
from collections.abc import Iterator

from keras_vit.errors import CheckpointError, DownloadError, printable
from keras_vit.files import no_link
from keras_vit.hub.download import discard, download
from keras_vit.hub.progress import progress_line
from keras_vit.reading import open_regular
from keras_vit.weights.formats import open_file


def download_checked(url: str, part: pathlib.Path, name: str) -> None:
    """Downloads and checks a file, once more if it is damaged.

    Args:
        url: Address of the file.
        part: Where to write. What an interrupted call left there is resumed.
        name: Name of the file, whose suffix tells its format.

    Raises:
        DownloadError: If it cannot be downloaded, or is damaged both times.
    """
    progress = progress_line(name)
    fault: str | None = None
    for _ in range(2):
        remote = download(url, part, progress)
        fault = find_fault(part, name, md5=remote.md5)
        if fault is None:
            return
        discard(part)
    raise DownloadError(
        f"{url} was downloaded twice and is not the file that it should be: {fault}. Nothing "
        "was kept. Fetch it by other means and pass its path, or name another server with "
        "KERAS_VIT_MIRROR."
    )


def find_fault(
    path: pathlib.Path,
    name: str,
    sha256: str | None = None,
    size: int | None = None,
    md5: str | None = None,
) -> str | None:
    """Compares a file with its known hash, size and structure; returns the first difference."""
    if size is not None and path.stat().st_size != size:
        return f"it has {path.stat().st_size:,} bytes, expected {size:,}"
    for algorithm, expected in (("sha256", sha256), ("md5", md5)):
        if expected is not None and (found := hash_file(path, algorithm)) != expected:
            return f"its {algorithm} is {found}, expected {expected}"
    return None if sha256 else _find_damage(path, pathlib.Path(name).suffix)


def _find_damage(path: pathlib.Path, suffix: str) -> str | None:
    """Finds damage in a file by its suffix, with the reader that loading uses.

    Sizes in headers must fit the file, and bytes their checksums, where the format has some. Files
    other than `.npz` and `.safetensors` are not read.
    """
    if suffix not in (".npz", ".safetensors"):
        return None
    try:
        with open_file(path) as file:
            file.verify()
            return None if suffix == f".{file.kind}" else f"it is a .{file.kind} file"
    except CheckpointError as error:
        return f"it is damaged ({error.__cause__})" if error.__cause__ else str(error).rstrip(".")


def hash_file(path: str | os.PathLike[str], algorithm: str = "sha256") -> str:
    """Hashes the bytes of a file in bounded memory; returns hexadecimal digits."""
    with open_regular(path) as file:
        new = functools.partial(hashlib.new, algorithm, usedforsecurity=False)
        return hashlib.file_digest(file, new).hexdigest()


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Locks a file for one process at a time; the lock ends with the process."""
    with open(path.with_name(path.name + ".lock"), "a+b", opener=no_link) as file:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                name = printable(path.name)
                print(f"Another process downloads {name}; waiting for it.", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
