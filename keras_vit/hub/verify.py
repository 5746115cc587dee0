"""Whether a fetched file is the one that it should be: its hash, its size, its structure."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import struct
import zipfile

_CHUNK = 1 << 20  # bytes read at a time
_LARGEST_HEADER = 100 << 20  # bytes, the limit of the safetensors format
_LARGEST_RATIO = 200  # a member packed tighter than this is left to the reader of the file


def hash_file(path: str | os.PathLike, algorithm: str = "sha256") -> str:
    """The hash of a file's bytes in hexadecimal digits, read in bounded memory."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def find_structure_fault(path: str | os.PathLike, name: str | None = None) -> str | None:
    """What is wrong with the structure of a weights file.

    A `.npz` must be a whole zip archive whose members have the checksums that it states. A
    `.safetensors` must be exactly as long as its header says. Other files are not looked into.

    Args:
        path: The file.
        name: Its final name, where it still has another.

    Returns:
        The fault in a few words, or `None`.
    """
    path = pathlib.Path(path)
    suffix = pathlib.Path(name or path.name).suffix
    check = {".npz": _zip_fault, ".safetensors": _safetensors_fault}.get(suffix)
    return check(path) if check else None


def _zip_fault(path: pathlib.Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_member(archive, member)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        return f"it is not a whole zip archive ({error})"
    except Exception as error:  # zlib.error has no public base class
        return f"it cannot be unpacked ({error})"
    return None


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    if member.file_size > _LARGEST_RATIO * max(member.compress_size, 1):
        return
    with archive.open(member) as file:  # reading to the end checks the checksum
        while file.read(_CHUNK):
            pass


def _safetensors_fault(path: pathlib.Path) -> str | None:
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return f"it has only {size} bytes"
        (length,) = struct.unpack("<Q", start)
        if length > min(size - 8, _LARGEST_HEADER):
            return f"its header claims {length:,} bytes and the file has {size:,}"
        return _header_fault(file.read(length), size - 8 - length)


def _header_fault(text: bytes, data_size: int) -> str | None:
    try:
        header = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "its header is not that of a safetensors file"
    if not all(isinstance(end, int) for end in ends):
        return "its header is not that of a safetensors file"
    if max(ends, default=0) != data_size:
        return f"its header describes {max(ends, default=0):,} bytes and {data_size:,} follow"
    return None
