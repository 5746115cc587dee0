"""Files that hold the state of a training run, and that show when they are damaged.

A file is a line that says what it is, the length of a header, the header in JSON, the bytes of
the arrays one after the other, and a digest of all before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import struct
from typing import Any, BinaryIO

import numpy as np

from keras_vit.errors import DamagedStateError

_MAGIC = b"keras_vit training state, version 1\n"
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32


def write_snapshot(path: pathlib.Path, facts: dict[str, Any], arrays: dict[str, np.ndarray]):
    """Writes a file of training state, whole or not at all.

    It is written under another name, forced to the disk, and renamed: a process that is killed
    while it writes leaves the file of that name as it was.

    Args:
        path: The file, in a folder that exists.
        facts: What JSON can hold.
        arrays: Arrays by name.
    """
    header = {
        "facts": facts,
        "arrays": [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()],
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(partial, "wb") as file:
        _write(file, json.dumps(header).encode(), arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    _sync_folder(path.parent)


def _write(file: BinaryIO, header: bytes, arrays: dict[str, np.ndarray]) -> None:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    parts: list[Any] = [_MAGIC, _LENGTH.pack(len(header)), header]
    parts += [np.ascontiguousarray(a).reshape(-1).view("uint8") for a in arrays.values()]
    for part in parts:
        digest.update(part)
        file.write(part)
    file.write(digest.digest())


def _sync_folder(folder: pathlib.Path) -> None:
    """Forces a new name to the disk, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows does not open folders
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_snapshot(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads a file of `write_snapshot`.

    Args:
        path: The file.

    Returns:
        The facts, and the arrays by name.

    Raises:
        DamagedStateError: If a single bit is not as it was written.
    """
    try:
        content = memoryview(path.read_bytes())  # its slices are no copies
    except OSError as error:
        raise DamagedStateError(f"{path} cannot be read: {error}.") from error
    start = len(_MAGIC) + _LENGTH.size
    body, digest = content[:-_DIGEST_BYTES], bytes(content[-_DIGEST_BYTES:])
    if len(body) < start or hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise DamagedStateError(
            f"{path} is damaged: its {len(content):,} bytes do not match their digest."
        )
    if body[: len(_MAGIC)] != _MAGIC:
        raise DamagedStateError(
            f"{path} is of another version of keras_vit, it starts with "
            f"{bytes(body[: len(_MAGIC)])!r}."
        )
    length = _LENGTH.unpack_from(body, len(_MAGIC))[0]
    header = json.loads(bytes(body[start : start + length]))
    return header["facts"], _split(body[start + length :], header["arrays"])


def _split(body: memoryview, entries: list) -> dict[str, np.ndarray]:
    arrays, start = {}, 0
    for name, dtype, shape in entries:
        end = start + int(np.prod(shape, dtype="int64")) * np.dtype(dtype).itemsize
        arrays[name] = np.frombuffer(body[start:end], dtype).reshape(shape)
        start = end
    return arrays
