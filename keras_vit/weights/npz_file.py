"""`.npz` files: zip archives of arrays, read without unpickling anything."""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import zipfile

import numpy as np

from keras_vit.errors import CheckpointError
from keras_vit.reading import open_regular, read_array_header
from keras_vit.weights.array_file import ArrayFile, Entry, check_count, check_shape

_CHUNK = 1 << 20  # bytes
_MAX_DIRECTORY = 1 << 22  # bytes of the list of members; 5,000 names have a fifth of it
_MAX_HEADER = 1 << 14  # bytes with shape and type of an array; NumPy allows 10,000
_MAX_DEFLATE = 1032  # to 1: the largest compression ratio of the deflate format
_MAX_RATIO, _FREE = 20, 1 << 26  # weights shrink to a half; 64 MB of zeros are no matter
_MAX_VERIFIED = 200  # to 1: `verify` does not expand more, which could take hours; `read` does

# Archives that are no arrays, by how the name of a member ends.
_OTHER_ARCHIVES = (
    (
        "data.pkl",
        "a pickled PyTorch file, which can run any code when it is read, so it is not read. Fetch "
        "the .safetensors file of the same checkpoint.",
    ),
    (
        "model.weights.h5",
        "a whole model of Keras, a .keras file. Load it with `keras.saving.load_model` after "
        "`import keras_vit`; `keras_vit.adapt_model` makes one of other classes or another image "
        "size of it.",
    ),
)


def open_npz(path: pathlib.Path) -> ArrayFile:
    """Opens an `.npz` file: every name, shape and type is checked, no array is read."""
    with contextlib.ExitStack() as stack:
        archive = zipfile.ZipFile(stack.enter_context(BoundedFile(path)))
        members = _npz_members(path, archive)
        headers = {name: _npz_header(path, archive, info) for name, info in members.items()}
        close = stack.pop_all().close
    entries = {name: entry for name, (entry, _) in headers.items()}

    def read(name: str) -> np.ndarray:
        _, (dtype, fortran, offset) = headers[name]
        shape = entries[name].shape
        flat = np.empty(math.prod(shape), dtype)
        data = flat.view(np.uint8).data
        with archive.open(members[name]) as stream:  # in chunks: zipfile copies what it reads
            stream.read(offset)
            for start in range(0, len(data), _CHUNK):
                length = min(_CHUNK, len(data) - start)
                chunk = stream.read(length)
                if len(chunk) < length:
                    raise EOFError(f"{len(data) - start - len(chunk)} bytes are missing")
                data[start : start + length] = chunk
            stream.read(1)  # makes zipfile compare the checksum
        return flat.reshape(shape, order="F" if fortran else "C")

    def verify() -> None:
        for info in members.values():
            if info.file_size <= _MAX_VERIFIED * max(info.compress_size, 1):
                _verify_member(archive, info)

    return ArrayFile(path, "npz", entries, read, close, verify)


class BoundedFile(io.BufferedReader):
    """A file of which zipfile cannot read a list of members of any length.

    Attributes:
        is_bounded: Set it to `False` when the list was read: zipfile reads members, and skips parts
            of them, by up to 16 MiB at a time.
    """

    def __init__(self, path: pathlib.Path):
        super().__init__(open_regular(path).detach())
        self.is_bounded = True

    def read(self, size: int | None = -1, /) -> bytes:
        if self.is_bounded and size is not None and size > _MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"its list of members has {size:,} bytes")
        return super().read(size)


def _npz_members(path: pathlib.Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Lists the members by the names of their arrays, after checks that need no reading."""
    size = path.stat().st_size
    check_count(path, len(archive.infolist()))
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        for ending, what in _OTHER_ARCHIVES:
            if info.filename.endswith(ending):
                raise CheckpointError(f"{path} is {what}")
    for info in archive.infolist():
        if not info.filename.endswith(".npy"):
            raise CheckpointError(
                f"{path} holds {info.filename!r}, which is no array: it is some other zip file. "
                "An .npz file is needed."
            )
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CheckpointError(
                f"{info.filename!r} in {path} is compressed in a way that NumPy does not write. "
                "Save it again with `numpy.savez`."
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
    total = sum(info.file_size for info in members.values())
    if total > _MAX_RATIO * size + _FREE:
        raise CheckpointError(
            f"{path} unpacks from {size:,} to {total:,} bytes, and weights shrink by little. Fetch "
            "the file again, or save it again with `numpy.savez`."
        )
    return members


def _npz_header(
    path: pathlib.Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> tuple[Entry, tuple[np.dtype, bool, int]]:
    """Reads the header of a member: shape, type, order, and the offset of its data."""
    with archive.open(info) as stream:
        start = io.BytesIO(stream.read(_MAX_HEADER))
    shape, fortran, dtype = read_array_header(start)
    offset = start.tell()
    name = info.filename.removesuffix(".npy")
    check_shape(path, name, shape)
    if dtype.hasobject:
        raise CheckpointError(
            f"{name!r} in {path} holds pickled Python objects, which can run any code when they "
            "are read, so the file is not read. Save it again with arrays of numbers only."
        )
    if math.prod(shape) * dtype.itemsize != info.file_size - offset:
        raise CheckpointError(
            f"{name!r} in {path} claims shape {shape} of {dtype}, but has "
            f"{info.file_size - offset} bytes of data. Fetch the file again."
        )
    # NumPy has no bfloat16: such arrays are written as raw pairs of bytes.
    label = "bfloat16" if dtype == np.dtype("V2") else dtype.newbyteorder("=").name
    return Entry(tuple(shape), label), (dtype, fortran, offset)


def _verify_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Reads a member to its end, where zipfile compares the checksum."""
    with archive.open(info) as stream:
        while stream.read(_CHUNK):
            pass
