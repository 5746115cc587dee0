"""Files of training state, with a digest that detects damage.

A file contains a line with the format's name, the length of a header, the header in JSON, the bytes
of the arrays, and a digest of everything before it.
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
import reprlib
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from keras_vit.errors import DamagedStateError
from keras_vit.files import write_atomically
from keras_vit.reading import parse_json, read_bytes, refusing

_MAGIC = b"keras_vit training state, version 1\n"
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32
_MOST = 1 << 40  # more than a run has of anything that is counted


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
        DamagedStateError: If the file cannot be read, a single bit of it changed, or its header
            does not describe its arrays.
    """
    try:
        content = memoryview(read_bytes(path))  # slices of it are not copied
    except (OSError, ValueError) as error:
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
    problem = "has a right digest, but its header does not describe its content"
    advice = "It was not written by `ResumeTraining`."
    with refusing(path, problem, advice, DamagedStateError):
        header = parse_json(bytes(body[start : start + length]))
        return header["facts"], _split(body[start + length :], header["arrays"])


def check_facts(path: pathlib.Path, facts: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Checks the content of a training state: what `ResumeTraining` reads must be there.

    Args:
        path: The file, for the message.
        facts: The facts of the file.
        arrays: Its arrays.

    Raises:
        DamagedStateError: If entries are missing or have impossible values; lists all of them.
    """
    found = facts if isinstance(facts, dict) else {}
    data, history, run = (_entries(found, name) for name in ("data", "history", "run"))
    counts = {name: found.get(name) for name in ("epoch", "batch", "steps", "epochs")}
    counts |= {f"data/{name}": data.get(name) for name in ("iterators", "drawn", "all iterators")}
    if data.get("num_batches", -1) is not None:
        counts["data/num_batches"] = data.get("num_batches")
    problems = [
        f"{name} is {reprlib.repr(value)}"
        for name, value in counts.items()
        if type(value) is not int or not 0 <= value < _MOST
    ]
    kinds = {"finished": (found, bool), "epochs": (history, list), "logs": (history, dict)}
    kinds |= {"setup": (run, dict), "variables": (run, list)}
    for name, (entries, kind) in kinds.items():
        if not isinstance(entries.get(name), kind):
            problems.append(f"{name} is {reprlib.repr(entries.get(name))}")
    if not problems:
        problems = _find_array_problems(run["variables"], arrays)
    if problems:
        raise DamagedStateError(f"{path} holds no training state: {'; '.join(problems[:20])}.")


def _entries(facts: dict[str, Any], name: str) -> dict[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


def _find_array_problems(variables: list[Any], arrays: Mapping[str, np.ndarray]) -> list[str]:
    problems = []
    for number, row in enumerate(variables):
        array = arrays.get(f"{number}.0")
        if not isinstance(row, list) or len(row) != 4 or array is None:
            problems.append(f"variable {number} has no array or no description")
        elif [list(array.shape), array.dtype.name] != row[2:]:
            problems.append(f"{row[1]} is {array.dtype.name} {list(array.shape)}, not {row[2:]}")
    return problems


def _split(body: memoryview, entries: list[Any]) -> dict[str, np.ndarray]:
    arrays, start = {}, 0
    for name, dtype, shape in entries:
        end = start + int(math.prod(shape)) * np.dtype(dtype).itemsize
        arrays[name] = np.frombuffer(body[start:end], dtype).reshape(shape)
        start = end
    return arrays
