"""`.safetensors` files: a header of JSON, then the bytes of the arrays."""

from __future__ import annotations

import math
import pathlib
import reprlib
import struct
from typing import Any

import numpy as np

from keras_vit.errors import CheckpointError
from keras_vit.reading import open_regular, parse_json
from keras_vit.weights.array_file import ArrayFile, Entry, check_count, check_shape

_MAX_HEADER = 1 << 22  # bytes of JSON; 5,000 arrays have a fifth of it, the format allows 100 MB
_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def open_tensors(path: pathlib.Path) -> ArrayFile:
    """Opens a `.safetensors` file: its whole header is checked, no array is read."""
    size = path.stat().st_size
    with open_regular(path) as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > min(size - 8, _MAX_HEADER):
            raise CheckpointError(
                f"{path} is neither .npz nor .safetensors, or was cut off: a header of {length} "
                f"bytes does not fit into its {size} bytes, or is more than {_MAX_HEADER}. Fetch "
                "the file again."
            )
        header = parse_json(stream.read(length))
    if not isinstance(header, dict):
        raise TypeError("its header is not a table of arrays")
    header.pop("__metadata__", None)
    check_count(path, len(header))
    start = 8 + length
    spans = {name: _span(path, name, row) for name, row in header.items()}
    _check_spans(path, sorted(span for _, span in spans.values()), size - start)
    entries = {name: entry for name, (entry, _) in spans.items()}
    stream = open_regular(path)  # the ArrayFile closes it

    def read(name: str) -> np.ndarray:
        entry, (begin, _) = spans[name]
        code = "u2" if entry.dtype == "bfloat16" else entry.dtype
        raw = np.dtype(code).newbyteorder("<")
        flat = np.empty(math.prod(entry.shape), raw)
        stream.seek(start + begin)
        if stream.readinto(flat.view(np.uint8).data) != flat.nbytes:
            raise EOFError("bytes are missing")
        return flat.reshape(entry.shape)

    # Without `check_bytes`: the format has no checksums, and opening compares all sizes.
    return ArrayFile(path, "safetensors", entries, read, stream.close)


def _span(path: pathlib.Path, name: str, row: Any) -> tuple[Entry, tuple[int, int]]:
    """Checks the header's row of an array; returns its shape, type and byte range."""
    dtype, shape, (begin, end) = row["dtype"], row["shape"], row["data_offsets"]
    numbers = [*shape, begin, end]
    if any(type(n) is not int or n < 0 for n in numbers) or dtype not in _BYTES:
        raise CheckpointError(
            f"{name!r} in {path} is described as {reprlib.repr(row)}. Fetch the file again."
        )
    check_shape(path, name, shape)
    if math.prod(shape) * _BYTES[dtype] != end - begin:
        raise CheckpointError(
            f"{name!r} in {path} claims shape {tuple(shape)} of {dtype}, but has {end - begin} "
            "bytes of data. Fetch the file again."
        )
    return Entry(tuple(shape), _FLOATS.get(dtype, dtype)), (begin, end)


def _check_spans(path: pathlib.Path, spans: list[tuple[int, int]], size: int) -> None:
    """Raises CheckpointError unless the arrays fill the file without gaps or overlaps."""
    position = 0
    for begin, end in spans:
        if begin != position:
            raise CheckpointError(f"{path} has overlapping arrays or gaps. Fetch it again.")
        position = end
    if position != size:
        raise CheckpointError(
            f"{path} should have {position} bytes of arrays but has {size}: it was cut off or "
            "something was added. Fetch it again."
        )
