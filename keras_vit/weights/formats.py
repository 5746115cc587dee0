"""Files of named arrays, read one array at a time with NumPy alone; nothing in them is run."""

from __future__ import annotations

import json
import math
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_CHUNK = 1 << 20  # bytes
_MAX_HEADER = 100_000_000  # bytes of JSON, the limit of the safetensors format itself
_MAX_DEFLATE = 1032  # to 1: what the deflate format can reach at most
# What a damaged file can make the standard library and NumPy raise.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
_SAFETENSORS_BYTES = {
    dtype: size
    for size, dtypes in {
        8: "F64 I64 U64 C64",
        4: "F32 I32 U32",
        2: "F16 BF16 I16 U16",
        1: "I8 U8 BOOL F8_E4M3 F8_E5M2 F8_E8M0",
    }.items()
    for dtype in dtypes.split()
}
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
FLOATS = tuple(_FLOATS.values())  # types that weights may have
_PICKLED = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle", ".joblib")


class CheckpointError(ValueError):
    """A file that cannot be loaded as it is. The message says why and what to do."""


class Entry(NamedTuple):
    """What a file says about one of its arrays.

    Args:
        shape: Its shape.
        dtype: NumPy's name of its type, or `"bfloat16"`.
    """

    shape: tuple[int, ...]
    dtype: str


class ArrayFile:
    """The named arrays of a file. Opening reads only names, shapes and types.

    Args:
        path: The file.
        kind: `"npz"` or `"safetensors"`.
        entries: Shape and type by name.
        read: From a name to its raw array.
        close: Lets the file go.
        metadata: Strings that the file carries beside its arrays.
    """

    def __init__(
        self,
        path: pathlib.Path,
        kind: str,
        entries: dict[str, Entry],
        read: Callable[[str], np.ndarray],
        close: Callable[[], None],
        metadata: dict[str, str],
    ):
        self.path = path
        self.kind = kind
        self.entries = entries
        self.metadata = metadata
        self._read = read
        self._close = close

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def read(self, name: str) -> np.ndarray:
        """One array as float32.

        Args:
            name: Its name, one of `entries`.

        Returns:
            float32 array of the shape in `entries`.

        Raises:
            CheckpointError: If its bytes are damaged, its values no floats, or some not finite.
        """
        dtype = self.entries[name].dtype
        if dtype not in FLOATS:
            raise CheckpointError(
                f"{name!r} in {self.path} holds {dtype} values; weights must be float16, "
                "bfloat16, float32 or float64. Fetch the original file again."
            )
        try:
            array = self._read(name)
        except CheckpointError:
            raise
        except _DAMAGE as error:
            raise CheckpointError(
                f"{name!r} in {self.path} is damaged ({error}). Fetch the file again."
            ) from error
        array = _to_float32(array, dtype)
        if not _all_finite(array):
            raise CheckpointError(
                f"{name!r} in {self.path} holds NaN or infinity, so a model with it would give "
                "nothing else. Fetch the file again, or take an earlier checkpoint."
            )
        return array


def open_arrays(path: str | os.PathLike) -> ArrayFile:
    """Opens a file of arrays by what its first bytes say, whatever its name.

    Args:
        path: An `.npz` or a `.safetensors` file.

    Returns:
        An `ArrayFile`, to be used in a `with` statement.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is of another format, pickled or damaged.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder. Pass the .npz or .safetensors file in it.")
    with open(path, "rb") as stream:
        head = stream.read(16)
    _refuse_others(path, head)
    opener = _open_npz if head.startswith(b"PK") else _open_safetensors
    try:
        return opener(path)
    except CheckpointError:
        raise
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path} is damaged or no checkpoint ({error}). An .npz or .safetensors file is "
            "needed; fetch it again."
        ) from error


def _refuse_others(path: pathlib.Path, head: bytes) -> None:
    """Raises where the first bytes or the name say that it is no format of ours."""
    if len(head) < 16:
        raise CheckpointError(
            f"{path} has only {len(head)} bytes: it was cut off, or is no checkpoint. Fetch it "
            "again."
        )
    if (head[:1] == b"\x80" and head[1] <= 5) or path.suffix in _PICKLED:
        raise CheckpointError(
            f"{path} is a pickled file, which can run any code when it is read, so it is not "
            "read. Fetch the .safetensors file of the same checkpoint (model.safetensors on "
            "Hugging Face), or the official .npz."
        )
    if head.startswith(b"\x89HDF"):
        raise CheckpointError(
            f"{path} is an HDF5 file. Files of Keras end in .weights.h5 and are read by "
            "`model.load_weights`; of other checkpoints fetch the .safetensors or .npz file."
        )
    if head.lstrip()[:1] == b"<" or head.startswith(b"version https"):
        raise CheckpointError(
            f"{path} is a page of text, not a checkpoint: the download gave a web page or a Git "
            "LFS pointer. Fetch the file itself."
        )


def _open_npz(path: pathlib.Path) -> ArrayFile:
    archive = zipfile.ZipFile(path)
    try:
        members = _npz_members(path, archive)
        headers = {name: _npz_header(path, archive, info) for name, info in members.items()}
    except BaseException:
        archive.close()
        raise
    entries = {name: entry for name, (entry, _) in headers.items()}
    stream = open(path, "rb")  # noqa: SIM115 - `close` closes it

    def read(name: str) -> np.ndarray:
        _, (dtype, fortran, offset) = headers[name]
        shape, info = entries[name].shape, members[name]
        flat = np.empty(math.prod(shape), dtype)
        if info.compress_type == zipfile.ZIP_STORED:
            _read_stored(stream, info, flat, offset)
        else:
            _read_deflated(archive, info, flat, offset)
        return flat.reshape(shape, order="F" if fortran else "C")

    def close() -> None:
        stream.close()
        archive.close()

    return ArrayFile(path, "npz", entries, read, close, {})


def _npz_members(path: pathlib.Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The archive's members by the names of their arrays, after checks that need no reading."""
    size = path.stat().st_size
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename.endswith("data.pkl"):
            raise CheckpointError(
                f"{path} is a pickled PyTorch file, which can run any code when it is read, so "
                "it is not read. Fetch the .safetensors file of the same checkpoint."
            )
        if not info.filename.endswith(".npy"):
            raise CheckpointError(
                f"{path} holds {info.filename!r}, which is no array: it is some other zip file. "
                "An .npz file is needed."
            )
        name = info.filename.removesuffix(".npy")
        possible = info.compress_size * (_MAX_DEFLATE if info.compress_type else 1) + 64
        if info.compress_size > size or info.file_size > possible:
            raise CheckpointError(
                f"{name!r} in {path} claims {info.file_size} bytes, more than a file of {size} "
                "bytes can hold. Fetch the file again."
            )
        if name in members:
            raise CheckpointError(f"{path} holds {name!r} twice. Fetch the file again.")
        members[name] = info
    return members


def _npz_header(
    path: pathlib.Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> tuple[Entry, tuple[np.dtype, bool, int]]:
    """Shape and type of a member, and how to read it: NumPy type, order, where its data begins."""
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        offset = stream.tell()
    name = info.filename.removesuffix(".npy")
    if dtype.hasobject:
        raise CheckpointError(
            f"{name!r} in {path} holds pickled Python objects, which can run any code when they "
            "are read, so the file is not read. Save it again with arrays of numbers only."
        )
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != info.file_size - offset:
        raise CheckpointError(
            f"{name!r} in {path} claims shape {shape} of {dtype}, but has "
            f"{info.file_size - offset} bytes of data. Fetch the file again."
        )
    # bfloat16 is no type of NumPy: such arrays were written as raw pairs of bytes.
    label = "bfloat16" if dtype == np.dtype("V2") else dtype.newbyteorder("=").name
    return Entry(tuple(shape), label), (dtype, fortran, offset)


def _read_stored(stream, info: zipfile.ZipInfo, flat: np.ndarray, offset: int) -> None:
    """Reads a member that lies in the file as it is: at once, into the array's own memory."""
    stream.seek(info.header_offset)
    local = struct.unpack("<26x2H", stream.read(30))  # lengths of the name and of other fields
    stream.seek(sum(local), os.SEEK_CUR)
    checksum = zlib.crc32(stream.read(offset))
    data = flat.view(np.uint8).data
    if stream.readinto(data) != len(data):
        raise EOFError("bytes are missing")
    if zlib.crc32(data, checksum) != info.CRC:
        raise zipfile.BadZipFile("its checksum differs from that of its bytes")


def _read_deflated(archive, info: zipfile.ZipInfo, flat: np.ndarray, offset: int) -> None:
    with archive.open(info) as stream:
        stream.read(offset)
        _fill(stream, flat.view(np.uint8).data)
        stream.read(1)  # makes zipfile compare the checksum


def _fill(stream, buffer: memoryview) -> None:
    """Reads exactly as many bytes as `buffer` has, a chunk at a time."""
    done = 0
    while done < len(buffer):
        chunk = stream.read(min(_CHUNK, len(buffer) - done))
        if not chunk:
            raise EOFError(f"{len(buffer) - done} bytes are missing")
        buffer[done : done + len(chunk)] = chunk
        done += len(chunk)


def _open_safetensors(path: pathlib.Path) -> ArrayFile:
    size = path.stat().st_size
    with open(path, "rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > min(size - 8, _MAX_HEADER):
            raise CheckpointError(
                f"{path} is neither .npz nor .safetensors, or was cut off: a header of {length} "
                f"bytes does not fit into its {size} bytes. Fetch the file again."
            )
        header = json.loads(stream.read(length), object_pairs_hook=_unique)
    metadata = header.pop("__metadata__", None) or {}
    start = 8 + length
    spans = {name: _safetensors_span(path, name, row) for name, row in header.items()}
    _check_spans(path, sorted(span for _, span in spans.values()), size - start)
    entries = {name: entry for name, (entry, _) in spans.items()}
    stream = open(path, "rb")  # noqa: SIM115 - the ArrayFile closes it

    def read(name: str) -> np.ndarray:
        entry, (begin, _) = spans[name]
        raw = np.dtype("<u2" if entry.dtype == "bfloat16" else f"<f{_itemsize(entry.dtype)}")
        flat = np.empty(math.prod(entry.shape), raw)
        stream.seek(start + begin)
        if stream.readinto(flat.view(np.uint8).data) != flat.nbytes:
            raise EOFError("bytes are missing")
        return flat.reshape(entry.shape)

    return ArrayFile(path, "safetensors", entries, read, stream.close, metadata)


def _safetensors_span(path: pathlib.Path, name: str, row: Any) -> tuple[Entry, tuple[int, int]]:
    """Shape, type and place of one array, all checked."""
    dtype, shape, (begin, end) = row["dtype"], row["shape"], row["data_offsets"]
    numbers = [*shape, begin, end]
    if any(type(n) is not int or n < 0 for n in numbers) or dtype not in _SAFETENSORS_BYTES:
        raise CheckpointError(f"{name!r} in {path} is described as {row}. Fetch the file again.")
    if math.prod(shape) * _SAFETENSORS_BYTES[dtype] != end - begin:
        raise CheckpointError(
            f"{name!r} in {path} claims shape {tuple(shape)} of {dtype}, but has {end - begin} "
            "bytes of data. Fetch the file again."
        )
    return Entry(tuple(shape), _FLOATS.get(dtype, dtype)), (begin, end)


def _check_spans(path: pathlib.Path, spans: list[tuple[int, int]], size: int) -> None:
    """Raises unless the arrays lie one after the other and fill the file."""
    position = 0
    for begin, end in spans:
        if begin != position:
            raise CheckpointError(f"{path} has arrays that overlap or gaps. Fetch it again.")
        position = end
    if position != size:
        raise CheckpointError(
            f"{path} should have {position} bytes of arrays but has {size}: it was cut off or "
            "something was added. Fetch it again."
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name occurs twice in the header")
    return names


def _itemsize(dtype: str) -> int:
    return np.dtype(dtype).itemsize


def _to_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":  # the upper half of a float32
        raw = np.ascontiguousarray(array).view("<u2").reshape(array.shape)
        return (raw.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are found right after
        return array.astype(np.float32, copy=False)


def _all_finite(array: np.ndarray) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # one pass; any NaN or infinity shows in the sum
            return True
    return bool(np.isfinite(array).all())
