"""Files of training state, with a digest that detects damage.

A file contains a line with the format's name, the length of a header, the header in JSON, the bytes
of the arrays, and a digest of everything before it.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import struct
from typing import Any, BinaryIO

import numpy as np

from keras_vit.errors import DamagedStateError
from keras_vit.files import write_atomically

_MAGIC = b"keras_vit training state, version 1\n"
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32


def write_state(path: pathlib.Path, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Writes a file of training state atomically, and forces it to the disk.

    Args:
        path: The file; an existing one is replaced.
        facts: Values that JSON can hold.
        arrays: Arrays by name.
    """
    header = {
        "facts": facts,
        "arrays": [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()],
    }
    text = json.dumps(header).encode()
    with write_atomically(path, replace=True) as unfinished, open(unfinished, "wb") as file:
        _write(file, text, arrays)


def _write(file: BinaryIO, header: bytes, arrays: dict[str, np.ndarray]) -> None:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    parts: list[Any] = [_MAGIC, _LENGTH.pack(len(header)), header]
    parts += [np.ascontiguousarray(a).reshape(-1).view("uint8") for a in arrays.values()]
    for part in parts:
        digest.update(part)
        file.write(part)
    file.write(digest.digest())


def read_state(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads a file of `write_state`.

    Args:
        path: The file.

    Returns:
        The facts, and the arrays by name.

    Raises:
        DamagedStateError: If the file cannot be read, or a single bit of it changed.
    """
    try:
        content = memoryview(path.read_bytes())  # slices of it are not copied
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
            f"{path} was written by another version of keras_vit: it starts with "
            f"{bytes(body[: len(_MAGIC)])!r}."
        )
    length = _LENGTH.unpack_from(body, len(_MAGIC))[0]
    header = json.loads(bytes(body[start : start + length]))
    return header["facts"], _split(body[start + length :], header["arrays"])


def _split(body: memoryview, entries: list[Any]) -> dict[str, np.ndarray]:
    arrays, start = {}, 0
    for name, dtype, shape in entries:
        end = start + int(np.prod(shape, dtype="int64")) * np.dtype(dtype).itemsize
        arrays[name] = np.frombuffer(body[start:end], dtype).reshape(shape)
        start = end
    return arrays
