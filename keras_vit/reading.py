"""Opens files that somebody else may have written: regular files, of bounded size and depth.

Every file is opened here, which `tests/test_reading.py` checks. Content that cannot be read is a
`ValueError` that names the file, whatever the parser raises: see `refusing`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.resources
import io
import json
import math
import os
import stat
import tomllib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from keras_vit.errors import DamagedFileError, KerasVitError, printable

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 16_000_000  # of a text; a thousand times the usual, names of 21,843 classes fit
_MAX_DEPTH = 100  # of lists and objects in each other; configurations have five
_MAX_BITS = 128  # of an integer; transformers writes some of 100 bits for "no limit"
_MAX_REASON = 200  # letters of a parser's message


@contextlib.contextmanager
def refusing(
    path: str | os.PathLike[str],
    problem: str = "is damaged",
    advice: str = "Fetch it again.",
    kind: type[ValueError] = DamagedFileError,
) -> Iterator[None]:
    """Turns whatever a parser raises for the content of a file into one exception that names it.

    What the system says of a file (there is none, no permission), missing packages and too little
    memory stay what they are, and so do exceptions of the type `kind` that name the file.

    Args:
        path: The file, or what messages call it, such as an array in a file.
        problem: What is wrong with it, after its name.
        advice: What to do, a sentence.
        kind: The exception to raise.

    Raises:
        ValueError: Of the type `kind`: "{path} {problem} ({reason}). {advice}".
    """
    try:
        yield
    except Exception as error:  # parsers raise errors of many kinds
        of_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
        if of_system or isinstance(error, ImportError) or lacks_memory(error):
            raise
        name, text = printable(os.fspath(path)), printable(error, lines=True)
        if name in text and isinstance(error, kind):
            raise
        if name not in text:
            known = type(error) in (ValueError, OSError) or isinstance(error, KerasVitError)
            reason = text if known and text else f"{type(error).__name__}: {text}"
            text = f"{name} {problem} ({' '.join(reason.split()):.{_MAX_REASON}}). {advice}"
        raise kind(text) from error


def lacks_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that there is too little memory."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
            return True
        error = error.__cause__ or error.__context__
    return False


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a file of bytes: opening a pipe or a device could wait forever.

    Raises:
        OSError: If there is nothing at the path.
    """
    return stat.S_ISREG(os.stat(path).st_mode)


# Besides hidden files: archives of macOS, previews and bins of file servers, Windows, repairs of
# disks, Python.
_LEFT_OVER = {
    *("__macosx", "network trash folder", "temporary items", "icon\r"),
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp"),
    *("thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "system volume information"),
    *("lost+found", "__pycache__"),
}


def is_left_over(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or was left by a system or program."""
    return name.lower() in _LEFT_OVER or (name[:1] == "." and name not in (".", ".."))


def list_left_over(folder: str | os.PathLike[str]) -> list[str]:
    """Lists the files and folders below a folder that readers skip, see `is_left_over`."""
    found = []
    for parent, folders, names in os.walk(folder):
        found += [os.path.join(parent, name) for name in folders + names if is_left_over(name)]
        folders[:] = [name for name in folders if not is_left_over(name)]
    return sorted(found)


def locate(folder: str | os.PathLike[str], name: str, endings: tuple[str, ...] = ("",)) -> str:
    """The path of a file that a table names, which Windows may have written with backslashes.

    Args:
        folder: The folder of the files.
        name: The name in the table.
        endings: What may follow it.

    Returns:
        The first path where there is a file; if there is none, the name as it is written.
    """
    names = dict.fromkeys((name, name.replace("\\", "/")))
    paths = [os.path.join(folder, each + ending) for each in names for ending in endings]
    return next(filter(os.path.exists, paths), paths[0])


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a file for reading its bytes.

    Raises:
        OSError: If there is no such file, or it cannot be opened.
        ValueError: If it is a folder, a pipe, a device or a socket.
    """
    if not is_regular(path):
        raise ValueError(
            f"{os.fspath(path)} is no regular file, so it is not opened. Copy it to one."
        )
    return open(path, "rb")


def open_text(
    path: str | os.PathLike[str], encoding: str = "utf-8-sig", errors: str = "strict"
) -> io.TextIOWrapper:
    """Opens a file for reading its text, with its own ends of lines: see `open_regular`."""
    return io.TextIOWrapper(open_regular(path), encoding, errors, newline="")


def read_bytes(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """Reads a file as a whole.

    Raises:
        OSError: If there is no such file, or it cannot be opened.
        ValueError: If it is no regular file, or has more than `max_bytes` bytes.
    """
    with open_regular(path) as file:
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise ValueError(f"{os.fspath(path)} has more than {max_bytes:,} bytes.")
    return content


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """Reads a file of UTF-8 as a whole, without a byte order mark; ends of lines are those of Unix.

    Raises:
        OSError: If there is no such file, or it cannot be opened.
        ValueError: If it is no regular file, no UTF-8, or has more than `max_bytes` bytes.
    """
    with refusing(path, "is not UTF-8", "Save it again as UTF-8."):
        text = read_bytes(path, max_bytes).decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Reads the lines of a text that are not blank, such as names of classes: see `read_text`."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def read_package_file(name: str) -> str:
    """Reads a text file of this package, such as `report/page.css`."""
    return importlib.resources.files("keras_vit").joinpath(name).read_text("utf-8")


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Any:
    """Reads a file of JSON: see `parse_json`.

    Raises:
        OSError: If there is no such file, or it cannot be opened.
        ValueError: If it is no regular file, too large, or no such JSON. The message names it.
    """
    with refusing(path, "is not JSON", "Correct it, or fetch it again."):
        return parse_json(read_text(path, max_bytes))


def parse_json(text: str | bytes) -> Any:
    """Parses JSON without duplicate names, up to 100 levels deep, with integers of 128 bits.

    Raises:
        ValueError: If it is anything else.
    """
    try:
        content = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("lists and objects are nested too deep") from error
    _check_values(content)
    return content


def read_toml(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Reads a file of TOML, with the bounds of `parse_json`.

    Raises:
        OSError: If there is no such file, or it cannot be opened.
        ValueError: If it is no regular file, too large, or no such TOML. The message names it.
    """
    with refusing(path, "is not a TOML file", "Correct it."):
        content: dict[str, Any] = tomllib.loads(read_text(path, max_bytes))
        _check_values(content)
    return content


def read_array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Reads shape, order (whether Fortran's) and type of an array in NumPy's format."""
    from numpy.lib import format

    version = format.read_magic(stream)
    read = format.read_array_header_1_0 if version == (1, 0) else format.read_array_header_2_0
    return read(stream)


def read_array(path: str | os.PathLike[str], mmap_mode: Any = None) -> np.ndarray:
    """Reads or maps an `.npy` file, whose size must be that of its array.

    Raises:
        OSError: If there is no such file, or it cannot be opened.
        ValueError: If it is no regular file, is damaged, or holds Python objects.
    """
    import numpy as np

    with refusing(path, "is no array of NumPy"), open_regular(path) as file:
        shape, _, dtype = read_array_header(file)
        size = os.fstat(file.fileno()).st_size - file.tell()
        if math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{size:,} bytes do not hold an array of its type and shape")
        array: np.ndarray = np.load(path, mmap_mode, allow_pickle=False)
    return array


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return names


def _check_values(content: Any) -> None:
    """Raises ValueError for lists and objects that are too deep, and for too large integers.

    Whoever walks through the first ends in a RecursionError, whoever computes with the second in an
    OverflowError.
    """
    level, depth = [content], 0
    while level:
        if depth > _MAX_DEPTH:
            raise ValueError(f"lists and objects are nested more than {_MAX_DEPTH} levels deep")
        if any(type(each) is int and each.bit_length() > _MAX_BITS for each in level):
            raise ValueError(f"it holds an integer of more than {_MAX_BITS} bits")
        rows = (each.values() if isinstance(each, dict) else each for each in level if each
                and isinstance(each, dict | list))  # fmt: skip
        level = [value for row in rows for value in row]
        depth += 1
